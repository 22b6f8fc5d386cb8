"""What a listing and a view of a run do not do: read the records of other runs, and import what they do not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.runs import run_service
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.machines.approval.graph import APPROVAL
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.rlm.code_mode import CODE_MODE
from orchestrator.machines.rlm.tools_mode import TOOLS_MODE
from orchestrator.runtime.pipeline import orchestration
from tests.cli.conftest import Cli
from tests.cli.recorded import JOURNAL, Tape, record

AT = ("--journal", JOURNAL)


@pytest.mark.parametrize("options", [(), ("--json",), ("--limit", "0", "--sort", "cost")])
def test_a_listing_reads_no_record(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    record(*(Tape(f"run-{number}").begin() for number in range(5)))
    loaded: list[str] = []

    async def load(_: SqliteJournal, run_id: str, since: int = 0) -> list[object]:
        loaded.append(f"{run_id} {since}")
        return []

    monkeypatch.setattr(SqliteJournal, "load", load)
    assert cli("runs", "list", *AT, *options).out.count("run-") >= 5
    assert loaded == []


LOOKS = (["list"], ["list", "--sort", "cost"], ["show", "run-1"], ["events", "run-1"])
NEEDLESS = {
    *("pydantic", "pydantic_settings", "prometheus_client", "structlog", "tenacity", "transitions"),
    *("orchestrator.machines.ralph.contract", "orchestrator.settings", "orchestrator.runtime.runs.runs"),
}


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
@pytest.mark.usefixtures("folder")
def test_a_look_at_runs_imports_neither_machines_nor_settings_nor_metrics(words: list[str]) -> None:
    record(Tape("run-1").begin().completes())
    program = (
        "import sys; from orchestrator.cli import main\n"
        f"try: main(['runs', *{words!r}, *{AT!r}])\n"
        "except SystemExit as end: print(end.code, *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, *modules = done.stderr.split()
    assert (code, NEEDLESS.intersection(modules)) == ("0", set())


def test_the_names_of_graphs_are_those_of_the_graphs() -> None:
    groups = {PIPELINE: "pipeline", RALPH: "ralph", CODE_MODE: "rlm", TOOLS_MODE: "rlm"}
    assert {graph.name: group for graph, group in groups.items()} == run_service.GROUPS
    assert (APPROVAL.name, LLM_LOOP.name) == (run_service.APPROVAL, run_service.LLM_LOOP)
    assert run_service.CHECKPOINT == orchestration.GRAPH
