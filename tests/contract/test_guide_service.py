"""The guide's web service: its commands as a person types them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.test_guides import ROOT, SERVICE, of_language
from tests.examples.service_client import TOKEN
from tests.ports import free_port

COMMANDS, SERVERS = (block.text for block in of_language("sh") if block.place == SERVICE)


def shell(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        check=False,
        capture_output=True,
        timeout=60,
        env={**os.environ, "TOKEN": TOKEN, **variables},
    )


def typed(command: str, folder: Path, **variables: str) -> str:
    done = shell(command, folder, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def waits(command: str, folder: Path, text: str) -> str:
    ends = time.monotonic() + 60
    while True:
        done = shell(command, folder)
        if text in (found := done.stdout.decode()):
            return found
        assert time.monotonic() < ends, f"{command}: {found}{done.stderr.decode()}"
        time.sleep(0.05)


@contextmanager
def serving(command: str, folder: Path, journal: str) -> Iterator[str]:
    """Run a command of the guide on a free port, which is the result."""
    port = str(free_port())
    program, *arguments = shlex.split(command)
    module = [] if program == "python" else ["-m", program]
    place = ["--bind", f"127.0.0.1:{port}"] if program == "gunicorn" else ["--port", port]
    if "--port" in arguments:
        del arguments[-2:]
    path = os.pathsep.join(str(ROOT / part) for part in ("", "callbacks", "guards"))
    environment = {**os.environ, "PYTHONPATH": path, "ORCHESTRATOR_JOURNAL": journal}
    environment["SERVICE_TOKEN"] = f"ann:{TOKEN}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *module, *arguments, *place],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        waits(f"curl -s localhost:{port}/readyz", folder, '"ready": true')
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (folder / "log").read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@pytest.mark.canary
@pytest.mark.campaign
@pytest.mark.system("curl")
def test_the_commands_of_the_service_do_what_the_guide_says(tmp_path: Path) -> None:
    token, serve, *commands = COMMANDS.splitlines()
    assert len(typed(f"{token.replace('python', sys.executable)}; echo $TOKEN", tmp_path).strip()) == 43
    with serving(
        serve.removeprefix("SERVICE_TOKEN=ann:$TOKEN "), tmp_path, str(tmp_path / "runs.db")
    ) as port:
        start, questions, approve, events, result = (one.replace("8000", port) for one in commands)
        assert json.loads(typed(start, tmp_path))["run_id"] == "monday"
        (question,) = json.loads(waits(questions, tmp_path, "refund"))
        assert question["tool"] == "refund"
        assert json.loads(typed(approve, tmp_path, DIGEST=question["digest"])) == {
            "run_id": "monday",
            "repeated": False,
        }
        stream = typed(events, tmp_path)
        assert stream.startswith("retry: ")
        assert '"by": "ann", "why": "paid twice"' in stream
        assert stream.rstrip().splitlines()[-3] == "event: RunFinished"
        assert json.loads(typed(result, tmp_path))["output"] == "Done: 40 EUR for order 7 are on their way."


@pytest.mark.campaign
@pytest.mark.system("curl")
@pytest.mark.parametrize("command", SERVERS.splitlines(), ids=lambda line: line.split()[0])
def test_each_server_of_the_guide_serves_and_stops(command: str, tmp_path: Path, database: str) -> None:
    with serving(command, tmp_path, database) as port:
        curl = "curl -s --oauth2-bearer $TOKEN"
        typed(f'{curl} --json \'{{"prompt": "1", "run_id": "r"}}\' localhost:{port}/runs', tmp_path)
        waits(f"{curl} localhost:{port}/runs/r/questions", tmp_path, "refund")
