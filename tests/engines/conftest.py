"""Processes with engines, the journal they share, and the command line that looks at it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.engines import engine_directory as roster
from tests.engines.process import ROOT, Outside, Said, Start, Worker
from tests.postgres import Cluster


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process with an engine on this folder's journal. None outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*prompts: str, **options: Any) -> Worker:
        command = [sys.executable, "-W", "error", "-m", "tests.engines.worker", str(tmp_path)]
        process = subprocess.Popen(
            [*command, json.dumps(options), *prompts],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert line[:1] == ["ready"], process.communicate()[1]
        return Worker(process, line[1])

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path)


@pytest.fixture
def command(
    outside: Outside, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Said]:
    """`orchestrator …` on the journal of the folder."""
    monkeypatch.setattr(
        roster, "ANSWERS_WITHIN", 30.0
    )  # an engine that is not frozen answers, on a busy machine too

    def ran(*arguments: str) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([*arguments, "--journal", str(outside.folder / "journal.db")])
        said = capsys.readouterr()
        return Said(end.value.code if isinstance(end.value.code, int) else -1, said.out, said.err)

    return ran


@pytest.fixture
def operate(command: Callable[..., Said]) -> Callable[..., Said]:
    """`orchestrator operate …` on the journal of the folder."""
    return functools.partial(command, "operate")


@pytest.fixture
def database(postgres: Cluster, with_tables: str) -> str:
    """The URL of a database that has the tables of dispatchers, and nothing in them."""
    return postgres.database(with_tables)
