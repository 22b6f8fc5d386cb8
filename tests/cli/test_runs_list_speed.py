"""What a listing and a view of a run do not do: read the records of other runs, and import what they do not need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.runs import run_service
from orchestrator.cli.runs.store import journal_file
from orchestrator.cli.trust.consent import project_settings
from orchestrator.errors import ConfigError
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


CONVERSION = {"pydantic", "pydantic_settings", "orchestrator.settings"}
AGENTS = {"prometheus_client", "structlog", "orchestrator.runtime.llm_loop.agent"}
MACHINES = {
    "tenacity",
    "transitions",
    "orchestrator.machines.ralph.contract",
    "orchestrator.runtime.runs.runs",
}

NEEDLESS = {
    "runs list": CONVERSION | AGENTS | MACHINES | {"pydantic_core", "orchestrator.kernel.fact"},
    "runs list --sort cost": CONVERSION | AGENTS | MACHINES | {"pydantic_core", "orchestrator.kernel.fact"},
    "runs list --waiting": CONVERSION | AGENTS | MACHINES | {"pydantic_core", "orchestrator.kernel.fact"},
    "runs show run-1": CONVERSION | AGENTS | MACHINES,
    "runs events run-1": CONVERSION | AGENTS | MACHINES,
    "operate status": CONVERSION | AGENTS,
    "doctor": CONVERSION | AGENTS,
    "run --help": CONVERSION | {"prometheus_client", "structlog"},
}
"""Command -> modules that it leaves out."""


PROGRAM = """
import os, sys
from orchestrator.cli import main

def run(words):
    try:
        main(words)
    except SystemExit:
        pass

words = sys.argv[1:]
run(words)
run(words if "--help" in words else [*words, "--journal", {journal!r}])
os.environ["ORCHESTRATOR_JOURNAL"] = {journal!r}
run(words)
print("modules", *sys.modules, file=sys.stderr)
"""
"""Executes a command with a journal at its usual place, one of an option, and one of a variable."""


@pytest.mark.parametrize("command", NEEDLESS)
def test_a_command_imports_nothing_that_it_does_not_use(
    command: str, untrusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("ORCHESTRATOR_")]:
        monkeypatch.delenv(name)
    for path in (".orchestrator/journal.db", JOURNAL):
        record(Tape("run-1").begin().completes(), path=path)
    program = [sys.executable, "-c", PROGRAM.format(journal=JOURNAL), *command.split()]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    loaded = done.stderr.splitlines()[-1].split()
    assert (loaded[0], NEEDLESS[command].intersection(loaded)) == ("modules", set())


@pytest.mark.parametrize(
    ("variables", "file", "found"),
    [
        ({}, "", ".orchestrator/journal.db"),
        ({"ORCHESTRATOR_JOURNAL": "kept/there.db"}, "", "kept/there.db"),
        ({"orchestrator_journal": "kept/there.db"}, "", "kept/there.db"),
        ({}, 'journal = "of_file.db"', "of_file.db"),
        ({"ORCHESTRATOR_JOURNAL": "kept/there.db"}, 'journal = "of_file.db"', "kept/there.db"),
        ({"ORCHESTRATOR_JOURNAL": "kept/there.db", "ORCHESTRATOR_LOG_LEVEL": "debug"}, "", "kept/there.db"),
        ({"ORCHESTRATOR_JOURNAL": "mysql://there"}, "", "setting journal: "),
        ({"ORCHESTRATOR_JOURNEY": "there.db"}, "", "unknown setting ORCHESTRATOR_JOURNEY"),
        ({}, "journey = 1", "journey"),
    ],
)
def test_the_address_without_other_settings_is_that_of_the_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], file: str, found: str
) -> None:
    if not file:
        monkeypatch.delenv("ORCHESTRATOR_TRUST")  # it is none of the settings, so it is not looked at
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if file:
        Path("orchestrator.toml").write_text(file)
    said = _said(lambda: journal_file(None))
    assert found in said
    assert said == _said(lambda: project_settings().journal)


def _said(address: Callable[[], Any]) -> str:
    try:
        return str(Path.cwd() / address())
    except ConfigError as error:
        return str(error)


def test_the_names_of_graphs_are_those_of_the_graphs() -> None:
    groups = {PIPELINE: "pipeline", RALPH: "ralph", CODE_MODE: "rlm", TOOLS_MODE: "rlm"}
    assert {graph.name: group for graph, group in groups.items()} == run_service.GROUPS
    assert (APPROVAL.name, LLM_LOOP.name) == (run_service.APPROVAL, run_service.LLM_LOOP)
    assert run_service.CHECKPOINT == orchestration.GRAPH
