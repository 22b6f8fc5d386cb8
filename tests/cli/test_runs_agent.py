"""Runs of agents with names on the command line: resumed only by a transfer, and forked under the same name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, SqliteJournal
from orchestrator.errors import StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.tools.spec import tool
from tests.cli.parked import AGENTS, bodies
from tests.cli.recorded import JOURNAL

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)
PARTS = ("--model", "python:agents:looker", "--tool", "agents:look")

pytestmark = pytest.mark.usefixtures("cli")  # modules of the folder can be imported


def left(folder: Path, *, at: int | None = 2, **options: Any) -> None:
    """Store the run `run-1` of an agent of a program, which died before its first call; with `at=None` it ended."""

    @tool(effect="pure")
    def look(number: int) -> str:
        return f"seen {number}"

    def answer(request: Any) -> Any:
        return "done" if request.messages[-1].role == "tool" else call("look", number=1)

    (folder / "agents.py").write_text(AGENTS)

    async def run() -> None:
        async with SqliteJournal(folder / JOURNAL) as journal:
            store: Any = journal if at is None else CrashingJournal(journal, at=at)
            made = Agent(FunctionLLM(answer), tools=[look], journal=store, observers=(), **options)
            result = await made.run("go", run_id="run-1")
            assert (at is None) == (result.error is None)
            assert at is None or isinstance(result.error, StoreDown)

    asyncio.run(run())


def head(run_id: str = "run-1") -> Any:
    async def read() -> Any:
        async with SqliteJournal(JOURNAL) as journal:
            return await journal.head(run_id)

    return asyncio.run(read())


def test_a_run_of_an_agent_of_a_program_is_transferred_by_its_name(cli: Cli, folder: Path) -> None:
    left(folder, name="sales", version="7")
    refused = cli("runs", "resume", "run-1", *PARTS, *AT)
    assert refused.code == 2
    assert (
        "run run-1 belongs to agent 'sales', which a program has: that program resumes it, or transfer it to this "
        "command line with --from-agent sales"
    ) in refused.err
    other = cli("runs", "resume", "run-1", *PARTS, "--from-agent", "support", *AT)
    assert (other.code, bodies("resumed")) == (2, [])
    assert "run run-1 belongs to agent 'sales', not to 'support'" in other.err
    done = cli("runs", "resume", "run-1", *PARTS, "--from-agent", "sales", "--by", "ann", *AT)
    assert (done.code, done.err) == (0, "")
    (resumed,) = bodies("resumed")
    assert [resumed[key] for key in ("by", "from_agent", "agent", "agent_version")] == [
        "ann",
        "sales",
        "",
        "",
    ]
    assert (head().agent, head().agent_version, head().outcome) == ("", "", "completed")
    listed = [json.loads(line) for line in cli("runs", "list", "--json", *AT).out.splitlines()]
    assert [one.get("agent") or "" for one in listed] == [""]


def test_a_run_of_an_agent_without_a_name_is_resumed_with_the_tools_of_the_command_line(
    cli: Cli, folder: Path
) -> None:
    left(folder)
    done = cli("runs", "resume", "run-1", *PARTS, *AT)
    assert (done.code, done.err) == (0, "")


def test_a_fork_keeps_the_name_and_version_of_its_agent_and_is_resumed_under_them(
    cli: Cli, folder: Path
) -> None:
    left(folder, at=None, name="sales", version="7")
    done = cli("runs", "fork", "run-1", "--turn", "1", *PARTS, "--run-id", "run-2", *AT)
    assert (done.code, done.err) == (0, "")
    (created,) = bodies("created", "run-2")
    assert (created["agent"], created["agent_version"]) == ("sales", "7")
    assert (head("run-2").agent, head("run-2").agent_version) == ("sales", "7")
    again = cli("runs", "fork", "run-2", "--turn", "0", "--run-id", "run-3", *AT)
    assert (again.code, head("run-3").agent) == (0, "sales")
