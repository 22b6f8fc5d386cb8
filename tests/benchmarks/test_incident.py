"""The benchmark of the commands of a runbook runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import SqliteJournal
from tests.benchmarks import incident


@pytest.mark.campaign
async def test_every_command_of_the_benchmark_is_printed_with_its_aim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    await incident.fill(path, 3)
    assert incident.measure(path, 1).keys() == incident.AIMS.keys()
    said = capsys.readouterr().out.splitlines()
    assert [line.partition("orchestrator ")[2] for line in said] == [
        " ".join(words) for words in incident.AIMS
    ]


@pytest.mark.canary
async def test_the_runs_of_the_benchmark_are_those_of_an_agent(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await incident.fill(path, 3)
    async with SqliteJournal(path) as journal:
        heads = [head async for head in journal.runs(outcome="completed", agent="support")]
        assert {head.run_id for head in heads} == {"run0", "run1", "run2"}
        assert len(await journal.load("run1")) > 20
