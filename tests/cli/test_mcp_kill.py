"""kill -9 of a run whose MCP server asks a person: the question is answered elsewhere, and another process continues.

The servers are real: `asker` returns its requests (2026-07-28), `everything` asks within the call, and `support` is an
agent that `mcp serve` offers.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.sqlite import SqliteJournal
from tests.cli.test_mcp_serve import AGENTS
from tests.providers.mcp_official import Official

Start = Callable[..., subprocess.Popen[str]]
Cli = Callable[..., Any]

MODEL = """
from orchestrator import ToolCall


async def caller(request):
    last = request.messages[-1]
    if last.role == "tool":
        return f"told: {last.text}"
    name, _, arguments = last.text.partition(" ")
    return ToolCall("1", name, arguments or "{}")
"""
PARKED = "waits for a person"
SERVE = ("-m", "orchestrator", "mcp", "serve", "--agent", "my_agents:support")


@dataclass(frozen=True)
class Case:
    """A server, a call of it, and the answers to its questions: the first one after the kill, the others later."""

    server: str
    call: str
    answer: tuple[str, ...]
    told: str
    later: tuple[tuple[str, ...], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "asker": Case(
        "asker",
        "s_book",
        ("respond", '{"seat": "aisle"}'),
        "told: seat: accept [('seat', 'aisle')]; name: decline []; pay: accept []",
        later=(("reject",), ("approve",)),
    ),
    "everything": Case(
        "everything",
        "s_trigger-elicitation-request",
        ("respond", '{"name": "Ann"}'),
        "- Name: Ann",
        options={"effects": "idempotent", "include": ["trigger-elicitation-request"]},
    ),
    "everything, irreversible": Case(
        "everything",
        "s_trigger-elicitation-request",
        ("respond", '{"name": "Ann"}'),
        "- Name: Ann",
        later=(("approve",),),
        options={"effects": "irreversible", "include": ["trigger-elicitation-request"]},
    ),
    "support": Case(
        "support",
        's_support {"prompt": "pay 5"}',
        ("respond", '{"decision": "approve", "reason": "it is due"}'),
        "told: Done: paid 5",
    ),
}


@contextmanager
def serving(case: Case, transport: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the entry of a server in a file of servers; a server over HTTP lives as long as the block."""
    if case.server == "support":
        (folder / "my_agents.py").write_text(AGENTS)
        if transport == "stdio":
            passed = {name: os.environ[name] for name in ("HOME", "PYTHONPATH", "ORCHESTRATOR_TRUST")}
            yield {"command": sys.executable, "args": [*SERVE], "cwd": str(folder), "env": passed}
            return
        with subprocess.Popen(
            [sys.executable, *SERVE, "--http", "0"], cwd=folder, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            try:
                yield {"url": process.stderr.readline().strip().rpartition(" ")[2]}
            finally:
                process.terminate()
        return
    official = Official(case.server, folder)
    if transport == "stdio":
        command, *arguments = official.command
        try:
            yield {"command": command, "args": arguments, "env": {"TEST_FOLDER": str(folder)}}
        finally:
            end_orphans(folder)
        return
    with official.over_http() as url:
        yield {"url": url}


def end_orphans(folder: Path) -> None:
    """End the servers of a killed client: `everything` does not end when its standard input is closed."""
    mark = f"TEST_FOLDER={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def until_parked(running: subprocess.Popen[str]) -> None:
    assert running.stdout is not None
    for line in running.stdout:
        if PARKED in line:
            return
    raise AssertionError("the run does not wait for a person")


def approvals(folder: Path) -> list[Mapping[str, Any]]:
    async def read() -> list[Mapping[str, Any]]:
        async with SqliteJournal(folder / ".orchestrator" / "journal.db") as journal:
            return [one.body for one in await journal.load("r") if one.kind == "approval"]

    return asyncio.run(read())


@pytest.mark.campaign
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("name", CASES)
def test_an_open_question_survives_kill_9_and_its_one_answer_reaches_the_tool(
    start: Start,
    cli: Cli,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    transport: str,
) -> None:
    case, place = CASES[name], tmp_path_factory.mktemp("server")
    (folder / "calls.py").write_text(MODEL)
    with serving(case, transport, place) as entry:
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"s": {**entry, **case.options}}}))
        running = start(
            "run", case.call, "--run-id", "r", "--model", "python:calls:caller", "--mcp", "mcp.json"
        )
        until_parked(running)
        running.kill()
        running.wait()
        assert cli("runs", case.answer[0], "r", *case.answer[1:], "--by", "ann").code == 0
        second = cli("runs", "reject", "r", "--by", "bob")
        assert second.code == 2
        assert "by ann" in second.err

        resumed = start("runs", "resume", "r")
        for answer in case.later:
            until_parked(resumed)
            assert cli("runs", *answer, "r", "--by", "cid").code == 0
        out, err = resumed.communicate(timeout=90)
    assert (resumed.returncode, err) == (0, "")
    assert case.told in out
    given = approvals(folder)
    assert [one["by"] for one in given] == ["ann", *("cid" for _ in case.later)]
    assert given[0]["input"] == "accept"
    assert given[0]["values"] == json.loads(case.answer[1])
    if case.server == "support":
        assert (place / "paid").read_text() == "5\n"
    if case.server == "asker":
        assert [line.split()[1] for line in (place / "requests").read_text().splitlines()] == [
            "None",
            "first",
            "seat:",
        ]
