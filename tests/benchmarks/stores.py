"""A turn of the loop on each store: in memory, in SQLite, in PostgreSQL; part of `make bench`.

SQLite and a cluster of the benchmark's own are on one disk, and the server is on this machine: over a network each
append takes its round trip as well. A turn asks a model that answers at once and calls one tool that is not pure, which
is two appends, each waited for. What a store adds is the difference to the store in memory in the same round.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.opening import journal_at
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.sqlite.high_water import HighWater
from orchestrator.kernel.journal import Draft, Journal
from orchestrator.llm.message import Request, Response
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import tool
from tests.postgres import Cluster, cluster, programs

NAME: Final = "stores"
DISK: Final = Path("/var/tmp")  # noqa: S108  a disk also where /tmp is memory
MARK_AIM: Final = 3.0
"""Percent that the high-water mark may add to an append."""
ITERATION: Final = 0.5
"""Seconds of a model's answer that what a store adds is compared with."""


@tool(effect="idempotent")
async def note(number: int) -> str:
    """Take note."""
    return f"noted {number}"


class Noting:
    """A model that takes a note in each of so many turns."""

    model = "noting"

    def __init__(self, turns: int) -> None:
        self._turns = turns

    async def complete(self, request: Request) -> Response:
        """Answer at once."""
        done = sum(message.role == "tool" for message in request.messages)
        if done >= self._turns:
            return Response("done")
        return Response(tool_calls=(call("note", number=done),))


@dataclass(frozen=True, slots=True)
class Row:
    """One store with so many runs at once: medians over the rounds."""

    store: str
    runs: int
    turns_per_s: float
    added_ms: float
    """Of a turn, beyond the same with the store in memory."""

    def told(self) -> str:
        """Return a line of the table."""
        share = self.added_ms / (ITERATION * 1e3) * 100
        alone = f"  {share:5.2f} % of {ITERATION:g} s" if self.runs == 1 else ""
        return f"{self.store:12} {self.runs:5} {self.turns_per_s:10,.0f} {self.added_ms:12.3f}{alone}"


def measure(runs: Sequence[int] = (1, 20, 100), turns: int = 20, rounds: int = 3) -> list[Row]:
    """Measure every store; PostgreSQL only where it is installed."""
    with _opened() as opened:
        rows: list[Row] = []
        for count in runs:
            spans: dict[str, list[float]] = {name: [] for name in opened}
            for number in range(rounds + 1):
                for name, make in opened.items():
                    taken = asyncio.run(_once(make, count, turns))
                    if number:  # the first round warms up
                        spans[name].append(taken)
            for name, taken_all in spans.items():
                added = [one - base for one, base in zip(taken_all, spans["memory"], strict=True)]
                per_turn = statistics.median(taken_all) / count / turns
                rows.append(Row(name, count, 1 / per_turn, statistics.median(added) / turns * 1e3))
        return rows


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    yield "turns of the loop by store (one tool, two appends); what a store adds to a turn of one of the runs"
    yield f"{'store':12} {'runs':>5} {'turns/s':>10} {'added ms':>12}"
    yield from (row.told() for row in rows)
    if not any(row.store == "postgres" for row in rows):
        yield "LEFT OUT: postgres: its initdb is not installed"


@dataclass(frozen=True, slots=True)
class MarkCost:
    """What the high-water mark of a SQLite journal costs in an append that is alone in its commit."""

    append_us: float
    mark_us: float
    """Of it: what is done for the mark in each append and commit."""

    @property
    def share(self) -> float:
        """Percent that the mark adds to an append without it."""
        return 100 * self.mark_us / (self.append_us - self.mark_us)

    def line(self) -> str:
        """Return a line under the table."""
        return (
            f"high-water mark: {self.mark_us:.2f} of the {self.append_us:.0f} µs of an append, "
            f"+{self.share:.2f} % (aim: at most {MARK_AIM:g} %)"
        )


def mark_cost(appends: int = 500, rounds: int = 5) -> MarkCost:
    """Measure appends on a disk, and the work for the mark alone: a difference of two appends is below the noise."""
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        return asyncio.run(_mark_cost(Path(folder) / "journal.db", appends, rounds))


async def _mark_cost(path: Path, appends: int, rounds: int) -> MarkCost:
    async with SqliteJournal(path) as journal:
        lease = await journal.create("run", "bench", {"graph": "g", "fingerprint": "f", "at": 0.0})
        handle = journal._handle
        assert handle is not None
        mark = handle.writer._mark
        assert mark is not None
        head = bytes.fromhex(lease.head)
        spans: list[float] = []
        alone: list[float] = []
        for _ in range(rounds):
            for number in range(appends):
                started = time.perf_counter()
                waiting = journal.append(lease, [Draft("note", {"number": number, "text": "x" * 200})])
                assert waiting is not None
                await waiting
                spans.append(time.perf_counter() - started)
            started = time.perf_counter()
            for number in range(10 * appends):
                mark.begin(handle.writer.db)
                mark.advance(HighWater(1, 1, number, 0, head))
                mark.settle(handle.writer.db)
            alone.append((time.perf_counter() - started) / (10 * appends))
        return MarkCost(statistics.median(spans) * 1e6, statistics.median(alone) * 1e6)


@contextmanager
def _opened() -> Iterator[dict[str, Callable[[], Journal]]]:
    with ExitStack() as open_:
        disk = Path(open_.enter_context(tempfile.TemporaryDirectory(dir=DISK)))
        names = iter(range(1_000_000))
        made: dict[str, Callable[[], Journal]] = {
            "memory": MemoryJournal,
            "sqlite": lambda: journal_at(disk / f"{next(names)}.db"),
        }
        if programs() is not None:
            server: Cluster = open_.enter_context(cluster(DISK))
            made["postgres"] = lambda: PostgresJournal(server.dsn(), schema=f"s{next(names)}")
        yield made


async def _once(make: Callable[[], Journal], runs: int, turns: int) -> float:
    """Return the seconds that so many runs take in a new store."""
    journal = make()
    agent = Agent(Noting(turns), tools=[note], limits=Limits(max_iterations=0), journal=journal, observers=())
    try:
        await _checked(agent.run("go"))
        started = time.perf_counter()
        await asyncio.gather(*(_checked(agent.run("go")) for _ in range(runs)))
        return time.perf_counter() - started
    finally:
        await journal.close()


async def _checked(running: Awaitable[object]) -> None:
    result = await running
    if getattr(result, "outcome", None) != "completed":
        raise RuntimeError(f"the workload ended as {result}")
