"""Workers of one database: how much 1, 2 and 4 of them carry, and how soon one takes over; part of `make bench`.

All of it is on this machine: the server, whoever leaves the runs, and each worker, a process of its own as
`orchestrator worker` starts it. So they share its cores, and more workers than cores show what that costs. A run asks a
model that answers at once and calls one tool that is not pure in each of its turns. All runs are left before the
workers start; the time is from when the first of them begins until the last has ended.

A takeover is from `kill -9` of a worker that has asked the model until another one has asked it for the same run.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from orchestrator.engines.dbos import DbosDispatcher
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.llm.message import Request, Response
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent import Agent
from tests.benchmarks.stores import DISK, Noting, note
from tests.crash.fleet import Fleet
from tests.postgres import cluster, programs

NAME: Final = "workers"
AGENT: Final = "tests.benchmarks.workers:agent"
TURNS: Final = 5
PATIENCE: Final = 120.0


class Model(Noting):
    """Takes its notes; asked to hold, it says where it was asked, and answers once it may."""

    def __init__(self, folder: Path) -> None:
        super().__init__(TURNS)
        self._folder = folder

    async def complete(self, request: Request) -> Response:
        """Answer at once, or once a file of the run's name is there."""
        what, _, run = request.messages[-1].text.partition(" ")
        if what != "hold":
            return await super().complete(request)
        with (self._folder / "asked").open("ab") as file:
            file.write(orjson.dumps({"run": run, "pid": os.getpid(), "at": time.monotonic()}) + b"\n")
        while not (self._folder / run).exists():  # noqa: ASYNC110 - told by another process
            await asyncio.sleep(0.02)
        return Response("held")


def agent(journal: Any) -> Agent:
    """Return the agent of a worker."""
    model = Model(
        Path(os.environ.get("FLEET_FOLDER", ""))
    )  # whoever only leaves runs has none, and asks no model
    return Agent(model, tools=[note], limits=Limits(max_iterations=0), journal=journal, observers=())


@dataclass(frozen=True, slots=True)
class Carried:
    """What so many workers carried."""

    workers: int
    runs: int
    runs_per_s: float
    turns_per_s: float
    processor_s: float
    """Processor seconds of the workers, their start included."""

    def told(self) -> str:
        """Return a line of the table."""
        return f"{self.workers:7} {self.runs:6} {self.runs_per_s:8.1f} {self.turns_per_s:9.0f}"


@dataclass(frozen=True, slots=True)
class Takeover:
    """How long runs of killed workers stood still: seconds."""

    kills: int
    p50_s: float
    p95_s: float

    def told(self) -> str:
        """Return a line."""
        return f"takeover after kill -9: p50 {self.p50_s:.2f} s, p95 {self.p95_s:.2f} s ({self.kills} kills)"


def measure(
    workers: Sequence[int] = (1, 2, 4), runs: int = 300, kills: int = 20
) -> tuple[list[Carried], Takeover | None]:
    """Measure; nothing where PostgreSQL is not installed."""
    if programs() is None:
        return [], None
    with ExitStack() as open_:
        server = open_.enter_context(cluster(DISK))
        disk = Path(open_.enter_context(tempfile.TemporaryDirectory(dir=DISK)))
        rows = [carried(server.database(), disk, count, runs) for count in workers]
        return rows, asyncio.run(_takeovers(server.database(), disk, kills))


def lines(rows: Sequence[Carried], takeover: Takeover | None) -> Iterator[str]:
    """Yield the table."""
    if takeover is None:
        yield "LEFT OUT: workers: PostgreSQL's initdb is not installed"
        return
    yield f"workers of one database on this machine, {os.cpu_count()} cores; runs of {TURNS} turns"
    yield f"{'workers':>7} {'runs':>6} {'runs/s':>8} {'turns/s':>9}"
    yield from (row.told() for row in rows)
    yield takeover.told()


# ---- throughput ----


def carried(dsn: str, disk: Path, count: int, runs: int) -> Carried:
    """Leave runs in a database and measure the workers that execute them."""
    asyncio.run(leave(dsn, runs))
    return asyncio.run(executed(dsn, disk, count, runs))


async def executed(dsn: str, disk: Path, count: int, runs: int) -> Carried:
    """Measure workers from their start until they have executed the runs that were left in a database."""
    async with _people(dsn, disk, [f"w{number}" for number in range(count)]) as (journal, fleet):

        async def over() -> bool:
            return await _ended(journal) == runs

        await _until(over)
        last = max([head.updated_at async for head in journal.runs(status="ended")])
        first = min([await _begun(journal, f"r{number}") for number in range(runs)])
        spent = sum(processor_seconds(process.pid) for process in fleet.processes.values())
    return Carried(count, runs, runs / (last - first), runs * TURNS / (last - first), spent)


async def _tables(dsn: str) -> None:
    """Let the dispatcher make its tables."""

    async def nothing(run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        raise RuntimeError(f"nothing was left, and {run_id}:{slice} is driven")

    first = DbosDispatcher(dsn)
    await first.start(nothing, "first", 1)
    await first.stop()


async def leave(dsn: str, runs: int) -> None:
    """Leave the runs with the journal and the dispatcher while nobody works: whoever leaves them costs time, too."""
    await _tables(dsn)
    placer, journal = DbosDispatcher(dsn), PostgresJournal(dsn)
    own = agent(journal)

    async def deposit(number: int) -> None:
        await own.deposit("go", run_id=f"r{number}")
        await placer.submit(f"r{number}", 0)

    async with journal:
        for first in range(0, runs, 10):
            await asyncio.gather(*(deposit(number) for number in range(first, min(first + 10, runs))))
        await placer.stop()


async def _begun(journal: PostgresJournal, run: str) -> float:
    """Return when a worker began a run (epoch seconds)."""
    return next(float(record.body["at"]) for record in await journal.load(run) if record.kind == "resumed")


async def _ended(journal: PostgresJournal) -> int:
    ended = [head async for head in journal.runs(status="ended", graph="llm_loop")]
    if wrong := [head for head in ended if head.reason not in {"", "none"}]:
        raise RuntimeError(f"the workload ended as {wrong[0]}")
    return len(ended)


# ---- takeover ----


async def _takeovers(dsn: str, disk: Path, kills: int) -> Takeover:
    names = ["k0", "k1"]
    spans: list[float] = []
    async with _people(dsn, disk, names) as (journal, fleet):
        placer, own = DbosDispatcher(dsn), agent(journal)
        for number in range(kills):
            run = f"t{number}"
            await own.deposit(f"hold {run}", run_id=run)
            await placer.submit(run, 0)
            [first] = await _asked(fleet.folder, run, 1)
            victim = next(name for name, one in fleet.processes.items() if one.pid == first["pid"])
            fleet.kill(victim)
            second = (await _asked(fleet.folder, run, 2))[-1]
            spans.append(second["at"] - fleet.deaths[first["pid"]])
            (fleet.folder / run).touch()
            if number + 1 < kills:
                fleet.start(f"k{number + 2}")
                await _until(lambda name=f"k{number + 2}": _works(fleet, name))  # type: ignore[misc]
        await placer.stop()
    spans.sort()
    return Takeover(kills, statistics.median(spans), spans[min(len(spans) - 1, int(0.95 * len(spans)))])


async def _asked(folder: Path, run: str, times: int) -> list[dict[str, Any]]:
    """Return where a run's model was asked, once that were so many times."""
    found: list[dict[str, Any]] = []

    async def enough() -> bool:
        file = folder / "asked"
        said = map(orjson.loads, file.read_bytes().splitlines()) if file.exists() else ()
        found[:] = [one for one in said if one["run"] == run]
        return len(found) >= times

    await _until(enough)
    return found


# ---- both ----


def processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process and its descendants, ended ones included."""
    spent: dict[int, float] = {}
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            spent[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(spent.get(one, 0.0) for one in below)


@asynccontextmanager
async def _people(dsn: str, disk: Path, names: Sequence[str]) -> AsyncIterator[tuple[PostgresJournal, Fleet]]:
    """Start workers and wait until they work; yield a journal beside them, and them."""
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        fleet = Fleet(dsn, Path(folder), "--slots", "16", agent=AGENT)
        try:
            for name in names:
                fleet.start(name)
            for name in names:
                await _until(lambda name=name: _works(fleet, name))  # type: ignore[misc]
            async with PostgresJournal(dsn) as journal:
                yield journal, fleet
        finally:
            fleet.close()


async def _works(fleet: Fleet, name: str) -> bool:
    if (code := fleet.processes[name].poll()) is not None:
        raise RuntimeError(f"worker {name} ended with {code}: {fleet.said(name)}")
    return fleet.works(name)


async def _until(ready: Callable[[], Any]) -> None:
    ends = time.monotonic() + PATIENCE
    while not await ready():
        if time.monotonic() > ends:
            raise RuntimeError("it never came to that")
        await asyncio.sleep(0.05)
