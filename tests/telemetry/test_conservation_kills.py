"""What kill -9 may cost the log, and no more.

A commit is an append that holds transitions; its lines are written together when it is durable, in order, before the
run does anything else. So a kill can come between a commit and its lines for one commit of each run under way, and for
no other: of K kills a run owes at most K commits the lines, and of a commit the last lines. Counted in transitions that
is more, for one append of the loop holds a chain of pure states: up to `folds()` of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import RunUnknown
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.machines.llm_loop.graph import LLM_LOOP

pytestmark = pytest.mark.campaign

WORKER = """
import asyncio, json, sys
from orchestrator import Agent, Limits, tool
from orchestrator.errors import RunUnknown
from orchestrator.journal.crashing import CrashingJournal, kill
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Response, ToolCall, Usage
from orchestrator.telemetry.log import TransitionLog

folder, runs, turns, at, when = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]

@tool(effect="pure")
async def look(number: int) -> str:
    "Look."
    return str(number)

class Model:
    model, double = "script", True
    async def complete(self, request):
        turn = sum(message.role == "assistant" for message in request.messages)
        if turn >= turns:
            return Response("done", usage=Usage(1, 1))
        return Response(None, (ToolCall(f"c{turn}", "look", json.dumps({"number": turn})),), "tool_calls", Usage(1, 1))

class Noting(CrashingJournal):
    "Says which transitions go into each append, before it is made."

    def append(self, lease, drafts, blobs=None):
        seqs = [draft.body["seq"] for draft in drafts if draft.kind == "transition"]
        if seqs:
            notes.write(json.dumps([lease.run_id, seqs]).encode() + b"\\n")
        return super().append(lease, drafts, blobs)

async def one(agent, store, name):
    try:
        await store.head(name)
    except RunUnknown:
        await agent.run("go", run_id=name)
    else:
        await agent.resume(name)

async def main():
    async with SqliteJournal(f"{folder}/j.db") as store:
        journal = Noting(store, at=at, when=when, crash=kill)
        agent = Agent(Model(), tools=[look], journal=journal, observers=[TransitionLog(stream)], limits=limits)
        await asyncio.gather(*(one(agent, store, f"r{number}") for number in range(runs)))

limits = Limits(max_iterations=1_000_000)
notes, stream = open(f"{folder}/notes", "ab", buffering=0), open(f"{folder}/log", "ab", buffering=0)
asyncio.run(main())
"""


def folds() -> int:
    """How many transitions one append of the loop holds at most: a chain of pure states, and the one after it."""
    longest = 0
    for state in LLM_LOOP.pure:
        chain, at = {state}, [state]
        while at:
            here = at.pop()
            ahead = {dest for source, _, dest, _ in LLM_LOOP.rows if source == here} & LLM_LOOP.pure - chain
            chain |= ahead
            at += ahead
        longest = max(longest, len(chain))
    return longest + 1


class Lives:
    """The lives of one process that runs `runs` runs at once, each `turns` turns long, and what they left behind."""

    def __init__(self, folder: Path, runs: int, turns: int) -> None:
        self.folder, self.runs, self.turns = folder, runs, turns
        self.log, self.notes = folder / "log", folder / "notes"

    def begin(self, at: int = 0, when: str = "before", turns: int | None = None) -> subprocess.Popen[bytes]:
        length = self.turns if turns is None else turns
        given = [str(self.folder), str(self.runs), str(length), str(at), when]
        quiet = subprocess.DEVNULL
        return subprocess.Popen([sys.executable, "-c", WORKER, *given], stdout=quiet, stderr=quiet)

    def told(self) -> dict[str, list[int]]:
        """Return the transitions of each run that have a line, in the order of the lines."""
        found: dict[str, list[int]] = {}
        for text in self.log.read_bytes().splitlines():
            line = json.loads(text)
            if line["msg"] == "fsm.transition":
                found.setdefault(line["run_id"], []).append(line["seq"])
        return found

    async def durable(self) -> dict[str, list[int]]:
        """Return the transitions of each run that the journal has."""
        found: dict[str, list[int]] = {}
        async with SqliteJournal(self.folder / "j.db") as journal:
            for name in (f"r{number}" for number in range(self.runs)):
                try:
                    records = await journal.load(name)
                except RunUnknown:
                    continue
                found[name] = [record.body["seq"] for record in records if record.kind == "transition"]
        return found

    def appends(self) -> dict[str, list[list[int]]]:
        """Return the transitions of each run by append. What never became durable was noted again: the last counts."""
        group: dict[tuple[str, int], int] = {}
        noted = [json.loads(text) for text in self.notes.read_bytes().splitlines()]
        for number, (name, seqs) in enumerate(noted):
            group |= {(name, seq): number for seq in seqs}
        found: dict[str, list[list[int]]] = {}
        for number in sorted(set(group.values())):
            name, seqs = noted[number]
            found.setdefault(name, []).append([seq for seq in seqs if group[name, seq] == number])
        return found

    def owed(self) -> Iterator[tuple[str, int]]:
        """Check what must hold of every commit; yield run and missing lines of each that lacks some."""
        told, durable, appends = self.told(), asyncio.run(self.durable()), self.appends()
        assert told.keys() <= durable.keys()
        for name, seqs in durable.items():
            lines = told.get(name, [])
            assert seqs == list(range(1, len(seqs) + 1))
            assert lines == sorted(set(lines)), "a line twice, or out of order"
            assert set(lines) <= set(seqs), "a line of what is not durable"
            for commit in appends[name]:
                if not set(commit) <= set(seqs):
                    continue  # it never became durable
                there = [seq for seq in commit if seq in set(lines)]
                assert there == commit[: len(there)], "a line is missing before one that is there"
                if len(there) < len(commit):
                    yield name, len(commit) - len(there)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_an_append_costs_the_lines_of_that_commit_or_none(
    tmp_path: Path, when: str, seed: int, campaign: Callable[[int, int], int]
) -> None:
    chance, lives, kills = random.Random(seed), Lives(tmp_path, 1, 6), 0
    while lives.begin(chance.randint(2, 7), when).wait(60) < 0:
        kills += 1
        if kills >= campaign(2, 40):
            assert lives.begin().wait(60) == 0
            break
    owed = list(lives.owed())
    assert kills >= 1
    # A kill after an append that holds no transition, as that of the run's end, owes nothing; the first one holds some.
    assert 1 <= len(owed) <= kills if when == "after" else not owed
    assert all(missing <= folds() for _, missing in owed)


def test_a_kill_at_any_moment_costs_each_run_under_way_the_lines_of_one_commit_at_most(
    tmp_path: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    chance, lives, kills = random.Random(seed), Lives(tmp_path, 8, 20), 0
    for _ in range(campaign(2, 20)):
        running = lives.begin(turns=1_000_000)  # it has not ended, however late the kill comes
        more = (lives.log.stat().st_size if lives.log.exists() else 0) + chance.randint(2_000, 40_000)
        end = time.monotonic() + 60
        while not lives.log.exists() or lives.log.stat().st_size < more:
            assert time.monotonic() < end
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"it ended with {running.wait(0.01)}")
        running.kill()
        assert running.wait(60) == -signal.SIGKILL
        kills += 1
    owed = list(lives.owed())
    assert max(Counter(name for name, _ in owed).values(), default=0) <= kills
    assert len(owed) <= kills * lives.runs
    assert lives.begin().wait(60) == 0
    assert len(list(lives.owed())) == len(owed), "what is owed is not told later, and nothing more is"
