"""Many workers on one database: killed, frozen and asked to stop, while the server is stopped and started."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.dbos import DbosDispatcher
from orchestrator.engines.dispatcher import Dispatcher, WorkerLimits
from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.errors import AnswerRefused, JournalError, RunUnknown
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Posted
from orchestrator.machines.question import Question
from tests.crash import outside
from tests.crash.fleet import HOLD, Fleet, Worlds
from tests.crash.invariants import check_run
from tests.crash.outside import CALLS, SCRIPT, Line, happened, said_by
from tests.postgres import Cluster, cluster
from tests.tiers import SOAK

SECONDS = 60.0 if SOAK else 9.0
RUNS = 200 if SOAK else 24
NAMES = ("w1", "w2", "w3")
CAPS = WorkerLimits(concurrency=12, tenant_concurrency=6)
SLOTS = 6
OPTIONS = ("--slots", str(SLOTS), "--concurrency", str(CAPS.concurrency), "--tenant-concurrency", "6")
PLACERS: dict[str, Callable[[str], Dispatcher]] = {
    "dbos": DbosDispatcher,
    "procrastinate": ProcrastinateDispatcher,
}
PATIENCE = 120.0
"""Seconds in which everything has to come to its end once nothing is broken any more."""
EXACT = {tool: sum(tools.count(tool) for tools in CALLS.values()) for tool in outside.EFFECTS}


@pytest.fixture
def database(postgres: Cluster, with_tables: str) -> str:
    """The URL of a database that has the tables of dispatchers, and nothing in them."""
    return postgres.database(with_tables)


class People:
    """Who leaves runs to the workers, and answers what they ask: what happened is told, what did not is let run."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.journal = PostgresJournal(dsn, patience=60.0)
        self.worlds = Worlds(folder)
        made: Any = outside.agent
        self.agent = made(self.worlds, self.journal, observers=())
        self.open: set[str] = set()

    async def leave(self, run: str, tenant: str, scheduler: Dispatcher | None = None) -> None:
        await self.agent.deposit(f"go {run}", run_id=run, tenant=tenant)
        self.open.add(run)
        if scheduler is not None:  # else a sweep tells of it
            await scheduler.submit(run, 0, tenant=tenant)
            await scheduler.stop()

    async def look(self) -> None:
        """Answer what is asked, and take note of what has ended and was given back, which is done after it."""
        for run in sorted(self.open):
            head = await self.journal.head(run)
            if head.status == "ended":
                if head.owner is None:
                    self.open.discard(run)
            elif head.status == "parked" and head.owner is None:
                for question in await self.agent.pending(run):
                    await self._answer(run, question)

    async def _answer(self, run: str, question: Question) -> None:
        key, lines = question.key, self.worlds.of(run).lines
        it_did = question.why != "approval" and happened(lines, question.tool, f"{run}:{key}")
        said = {"content": said_by(question.tool, int(key.partition(":")[0]))} if it_did else {}
        body = {"call": key, "digest": question.digest, **said}
        name = f"{key} {question.digest} {question.why}"
        await self.journal.post(run, Posted(name, "respond" if it_did else "approve", body, "ann"))

    async def until_all_ended(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while self.open:
            assert time.monotonic() < ends, (
                f"not at their end: {[await self._where(run) for run in self.open]}"
            )
            await self.look()
            await asyncio.sleep(0.2)

    async def _where(self, run: str) -> str:
        return str(await self.journal.head(run))


@asynccontextmanager
async def people(dsn: str, folder: Path) -> AsyncIterator[People]:
    found = People(dsn, folder)
    try:
        yield found
    finally:
        await found.journal.close()


async def until(ready: Callable[[], bool], seconds: float = PATIENCE) -> None:
    ends = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < ends, "it never came to that"
        await asyncio.sleep(0.05)


async def ended(fleet: Fleet, *names: str) -> None:
    """Ask workers to stop, and wait until each has ended as it should."""
    codes = await asyncio.gather(*(asyncio.to_thread(fleet.end, name) for name in names))
    assert set(codes) == {0}, [fleet.said(name) for name in names]


def is_under_way(ann: People, run: str) -> bool:
    """Tell whether the model was asked about a run."""
    return any(line["what"] == "served" for line in ann.worlds.of(run).lines)


async def proved(one: People, run: str) -> list[Line]:
    """Check every invariant of a run that is over, and that it did and said what the script says; return its lines.

    The workers must have ended: one that read a run in a list before its end may hold it for a moment after it.
    """
    world = one.worlds.of(run)
    ran = await check_run(one.journal, run, world.history, agent=one.agent)
    ended = ran.state.ended
    assert ended is not None
    assert (ended["outcome"], ended["reason"]) == ("completed", "none"), (run, ended)
    lines = world.lines
    for tool, count in EXACT.items():
        effects = world.history.outstanding(tool, run)
        assert len(effects) == count, (run, tool, effects)
        assert tool == "look" or set(effects.values()) == {1}, (run, tool, effects)
    return lines


def repeated(lines: list[Line]) -> int:
    """Return how many steps of a run were done more than once: questions to the model, and calls."""
    asked = len([line for line in lines if line["what"] == "served"])
    calls: Counter[str] = Counter(line["key"] for line in lines if line["what"] in {"effect", "repeat"})
    return max(0, asked - len(SCRIPT)) + int(sum(count - 1 for count in calls.values()))


async def repeated_in(one: People, run: str) -> int:
    """Return how many steps of a run that is over were repeated: not more than others took it up."""
    steps, records = repeated(await proved(one, run)), await one.journal.load(run)
    taken_up = max(record.epoch for record in records) - 1
    assert steps <= taken_up, (run, steps, taken_up)
    return steps


# ---- the campaign ----


class Nemesis:
    """Breaks workers and the server, by a seed."""

    def __init__(self, fleet: Fleet, server: Cluster, seed: int) -> None:
        self._fleet = fleet
        self._server = server
        self._chance = random.Random(seed)
        self.kills = 0
        self.restarts = 0

    async def kill_workers(self, ends: float) -> None:
        while (now := time.monotonic()) < ends:
            await asyncio.sleep(min(self._chance.uniform(1, 3), ends - now))
            name = self._chance.choice(list(self._fleet.processes))
            self._fleet.kill(name)
            self.kills += 1
            # Under its own name, as a supervisor starts it, it waits for the death of itself; else it begins at once.
            self._fleet.start(self._chance.choice((name, f"w{len(NAMES) + self.kills}")))

    async def restart_server(self, ends: float) -> None:
        while (now := time.monotonic()) < ends:
            await asyncio.sleep(min(self._chance.uniform(2, 6), ends - now))
            await asyncio.to_thread(self._server.stop, "immediate")
            await asyncio.sleep(self._chance.uniform(0, 3))
            await asyncio.to_thread(self._server.start)
            self.restarts += 1


@pytest.mark.timeout(SECONDS + 3 * PATIENCE)
async def test_nothing_is_lost_while_workers_are_killed_and_the_server_is_stopped_at_once(
    tmp_path: Path, seed: int
) -> None:
    with cluster() as server:
        dsn = server.database()
        fleet = Fleet(dsn, tmp_path, *OPTIONS, pause=0.1)
        nemesis = Nemesis(fleet, server, seed)
        try:
            async with people(dsn, tmp_path) as ann:
                for name in NAMES:
                    fleet.start(name)
                for number in range(RUNS):
                    await ann.leave(f"r{number:03}", f"tenant {number % 3}")
                await until(
                    lambda: any(fleet.works(name) for name in NAMES)
                )  # or nothing is in the middle of a step
                ends = time.monotonic() + SECONDS
                breaking = asyncio.gather(nemesis.kill_workers(ends), nemesis.restart_server(ends))
                while not breaking.done():
                    await answered_meanwhile(ann)
                    await asyncio.sleep(0.2)
                await breaking
                began = time.monotonic()
                await ann.until_all_ended(PATIENCE)
                took = time.monotonic() - began
                for name in list(fleet.processes):  # one that has just started ends by the signal itself
                    await asyncio.to_thread(fleet.end, name)
                again = [await repeated_in(ann, f"r{number:03}") for number in range(RUNS)]
        finally:
            fleet.close()
    breaks = nemesis.kills + nemesis.restarts
    print(  # noqa: T201 - the figures of `make soak`
        f"{RUNS} runs, {nemesis.kills} workers killed, {nemesis.restarts} restarts of the server, {sum(again)} steps "
        f"repeated, at most {fleet.most_at_once()} runs at once, all ended {took:.1f} s after the last fault"
    )
    assert breaks > 0
    assert max(again) <= breaks
    assert sum(again) <= breaks * SLOTS
    assert fleet.most_at_once() <= CAPS.concurrency


async def answered_meanwhile(ann: People) -> None:
    with contextlib.suppress(JournalError, AnswerRefused, RunUnknown):  # the server is away; asked again
        await ann.look()


# ---- single faults ----


@pytest.mark.parametrize("placed_by", PLACERS)
async def test_a_frozen_worker_that_wakes_is_fenced_and_what_it_had_was_done_once(
    database: str, tmp_path: Path, placed_by: str
) -> None:
    """With Procrastinate it marks its job done when it wakes, whoever has it by then: the epoch makes that harmless."""
    options = ["--slots", "2", "--grace", "5", "--dispatcher", placed_by]
    if placed_by == "dbos":  # the other has no limit over all workers
        options += ["--concurrency", "2"]
    fleet = Fleet(database, tmp_path, *options, pause=0.2)
    try:
        async with people(database, tmp_path) as ann:
            fleet.start("w1")
            await until(lambda: fleet.works("w1"))
            (tmp_path / HOLD).touch()
            for number in range(2):
                await ann.leave(f"f{number}", "", PLACERS[placed_by](database))
            await until(lambda: all(is_under_way(ann, f"f{number}") for number in range(2)))
            fleet.signal("w1", signal.SIGSTOP)
            (tmp_path / HOLD).unlink()
            fleet.start("w2")
            await ann.until_all_ended(PATIENCE)
            fleet.signal("w1", signal.SIGCONT)
            await ended(fleet, "w1", "w2")
            for number in range(2):
                await proved(ann, f"f{number}")
                records = await ann.journal.load(f"f{number}")
                assert max(record.epoch for record in records) > 1, "somebody took it over"
            stored = StoredRun.of("f0", await ann.journal.load("f0"))
            assert stored.ended is not None
            assert fleet.most_at_once() == 2, "what the frozen worker was in the middle of is not counted"
    finally:
        fleet.close()


async def test_a_worker_that_is_asked_to_stop_leaves_its_runs_to_another(
    database: str, tmp_path: Path
) -> None:
    fleet = Fleet(database, tmp_path, "--slots", "4", "--grace", "0", pause=0.2)
    try:
        async with people(database, tmp_path) as ann:
            fleet.start("w1")
            await until(lambda: fleet.works("w1"))
            (tmp_path / HOLD).touch()
            for number in range(4):
                await ann.leave(f"d{number}", "", DbosDispatcher(database))
            await until(lambda: any(is_under_way(ann, f"d{number}") for number in range(4)))
            fleet.start("w2")
            (tmp_path / HOLD).unlink()
            await ended(fleet, "w1")
            assert "left to others" in fleet.said("w1")
            await ann.until_all_ended(PATIENCE)
            await ended(fleet, "w2")
            for number in range(4):
                assert repeated(await proved(ann, f"d{number}")) == 0, (
                    "what was asked to stop had ended its step"
                )
    finally:
        fleet.close()
