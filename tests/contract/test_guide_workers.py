"""The guide's workers, with a database in the place of the one that it names."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.contract.test_guides import WORKERS, _run, of_language

NAMED = "postgresql://agents@db.example/agents"


@pytest.mark.campaign
def test_the_commands_of_workers_carry_what_is_submitted(database: str, tmp_path: Path) -> None:
    [module] = [one for one in of_language("python") if one.place == WORKERS]
    (tmp_path / "my_agents.py").write_text(module.text)
    [block] = [one for one in of_language("sh") if one.place == WORKERS]
    worker, submit, show = (
        f"{sys.executable} -m {line}" for line in block.text.replace(NAMED, database).splitlines()
    )
    with subprocess.Popen(["bash", "-c", f"exec {worker}"], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert b"carries llm_loop" in process.stdout.readline()
            assert _run(["bash", "-c", submit], cwd=tmp_path).stdout == "monday\n"
            ends = time.monotonic() + 60
            while "completed" not in (shown := _run(["bash", "-c", show], cwd=tmp_path)).stdout:
                assert time.monotonic() < ends, shown
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
