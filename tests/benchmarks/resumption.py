"""CPU time from the call that resumes a run until its model is asked: `python -m tests.benchmarks.resumption [TURNS]`.

A run of 1,000 turns was stopped at its next request, and each round resumes a copy of its journal, in SQLite and in
PostgreSQL (without the time of the server). All threads of the process count and waiting for the disk does not, so that
the least of many rounds means something on a busy machine too. The collections are those of the garbage collector, by
generation: a full one takes longer than all else, and depends on how many objects the process has besides.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from tests.benchmarks.peers.children.ours import Ours
from tests.benchmarks.script import ANSWER, Call, Script
from tests.benchmarks.stores import DISK
from tests.postgres import cluster, programs

TURNS: Final = 1_000
ROUNDS: Final = 30
_RUN: Final = "stopped"


class TimedScript(Script):
    """A script that notes the CPU time of its first request."""

    used: float = 0.0

    async def calls(self, turn: int) -> Any:
        """Return the calls of a turn."""
        self.used = self.used or time.process_time()
        found: list[Call] = list(await Script.calls(self, turn))
        return found


@dataclass(slots=True)
class Resumption:
    """What the rounds took with one store."""

    store: str
    milliseconds: list[float] = field(default_factory=list)
    collections: Counter[int] = field(default_factory=Counter)
    """Generation -> collections in all rounds."""

    def line(self) -> str:
        """Return a line of the table."""
        rounds = len(self.milliseconds)
        found = ", ".join(f"{self.collections[number] / rounds:.1f}" for number in range(3))
        return (
            f"{self.store:9}{min(self.milliseconds):7.1f} ms at least, {statistics.median(self.milliseconds):.1f} "
            f"median of {rounds}; collections of generations 0 to 2 in each: {found}"
        )


async def prepare(journal: Any, turns: int) -> None:
    """Leave a run of so many turns that was stopped at its next request."""
    script = Script(turns, held=1)
    async with journal:
        with _agent(script, journal) as agent:
            await script.stop(agent.run(_RUN))


async def resume(journal: Any, turns: int, into: Resumption) -> None:
    """Resume it in a process that has the journal open, and note what that took."""
    script = TimedScript(turns)
    async with journal:
        with _agent(script, journal) as agent, _collections(into.collections):
            started = time.process_time()
            end = await agent.resume(_RUN)
    script.proved(effects=0, asked=1)
    if end != ANSWER:
        raise RuntimeError(f"the resumed run ended with {end!r}")
    into.milliseconds.append((script.used - started) * 1e3)


@contextmanager
def _agent(script: Script, journal: Any) -> Iterator[Ours]:
    agent = Ours(script, journal, full=False)
    try:
        yield agent
    finally:
        agent._log.close()


@contextmanager
def _collections(counted: Counter[int]) -> Iterator[None]:
    def note(phase: str, about: dict[str, int]) -> None:
        counted[about["generation"]] += phase == "stop"

    gc.callbacks.append(note)
    try:
        yield
    finally:
        gc.callbacks.remove(note)


def measure(store: str, original: Any, copied: Callable[[], Any], turns: int, rounds: int) -> Resumption:
    """Resume copies of a journal, after a round that warms up."""
    asyncio.run(prepare(original, turns))
    asyncio.run(resume(copied(), turns, Resumption(store)))
    found = Resumption(store)
    for _ in range(rounds):
        asyncio.run(resume(copied(), turns, found))
    return found


def main(turns: int = TURNS, rounds: int = ROUNDS) -> None:
    """Print a line for each store; PostgreSQL only where it is installed."""
    print(f"CPU of this process to resume a run of {turns:,} turns, every record verified")
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        original, copy = Path(folder) / "original", Path(folder) / "copy"

        def of_file() -> SqliteJournal:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(original, copy)
            return SqliteJournal(copy / "journal.db")

        first = SqliteJournal(original / "journal.db")
        print(measure("sqlite", first, of_file, turns, rounds).line())
    if programs() is None:
        print("LEFT OUT: postgres: its initdb is not installed")
        return
    with cluster() as server:
        dsn = server.database()
        name = dsn.rpartition("/")[2]

        def of_database() -> PostgresJournal:
            return PostgresJournal(server.database(like=name))

        print(measure("postgres", PostgresJournal(dsn), of_database, turns, rounds).line())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
