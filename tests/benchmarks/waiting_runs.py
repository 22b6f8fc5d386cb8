"""Memory of a waiting run, by object: which types a run keeps, how many of each, how many the collector tracks.

    python -m tests.benchmarks.waiting_runs                   # every case
    python -m tests.benchmarks.waiting_runs full --by site    # one case, by the line that allocated the memory

Each case is a process of its own: RUNS runs are started, each waits after one turn, and what has come into being is
counted. Bytes are those of the allocator (tracemalloc), so they do not depend on the load of the machine. `hand` is
the hand-written loop. `bare` and `full` wait for their model, with the journal in memory; `person` waits for an
approval, on SQLite; `evicted` is the same after `evict_after`, when only the callers are left.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import subprocess
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import CoroutineType, FunctionType, GeneratorType, ModuleType
from typing import Any

CASES = ("hand", "bare", "full", "person", "evicted")
RUNS = 400
LIMITS = {
    "hand": (3.6, 24),
    "bare": (25.7, 127),
    "full": (27.5, 131),
    "person": (23.0, 131),
    "evicted": (3.5, 17),
}
"""The most KiB, and the most objects that the collector tracks, of a waiting run. Lower them with each improvement."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What one run keeps, as means over all runs."""

    bytes: float
    """Bytes of the allocator."""
    tracked: float
    """Objects that the garbage collector walks through."""
    rows: list[tuple[float, float, str]]
    """Bytes, objects, and their type or the line that allocated them; largest first."""


@asynccontextmanager
async def waiting(case: str, runs: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Yield a function that starts `runs` runs and returns when all wait; the runs are stopped at the end."""
    from tests.benchmarks.script import Script

    script = Script(1, held=runs)
    tasks: list[asyncio.Future[Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        async with _starter(case, script, Path(folder)) as (start, reached):

            async def begin() -> None:
                tasks.extend(asyncio.ensure_future(start(f"run-{number}")) for number in range(runs))
                waits = asyncio.ensure_future(reached(runs))
                await asyncio.wait({waits, *tasks}, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        raise RuntimeError(f"a run ended before all of them waited: {task.result()!r}")

            yield begin
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


Starter = tuple[Callable[[str], Awaitable[Any]], Callable[[int], Awaitable[Any]]]


@asynccontextmanager
async def _starter(case: str, script: Any, folder: Path) -> AsyncIterator[Starter]:
    """Yield a function that starts a run, and one that waits until so many wait."""

    async def held(_: int) -> None:
        await script.reached.wait()

    if case == "hand":
        from tests.benchmarks.peers.children.by_hand import ByHand

        yield ByHand(script).run, held
    elif case in {"person", "evicted"}:
        async with _approvals(folder, 0.001 if case == "evicted" else 0.0) as found:
            yield found
    else:
        from tests.benchmarks.peers.children.ours import Ours

        warm = script.turns, script.held
        script.held = 0
        ours = Ours(script, full=case == "full")
        await ours.run("rehearsal")
        script.turns, script.held = warm
        yield ours.run, held
        ours.close()


@asynccontextmanager
async def _approvals(folder: Path, evict_after: float) -> AsyncIterator[Starter]:
    from orchestrator.journal.sqlite import SqliteJournal
    from orchestrator.runtime.llm_loop.agent import Agent
    from orchestrator.runtime.service.runtime import Runtime
    from orchestrator.tools.spec import tool
    from tests.benchmarks.evicted_runs import Payer

    @tool(effect="irreversible", approval=True)
    async def pay(to: str) -> str:
        """Pay somebody."""
        return to

    @tool(effect="pure")
    async def look_up(key: str) -> str:
        """Look something up."""
        return key

    async with SqliteJournal(folder / "journal.db") as journal:
        runtime = Runtime(journal=journal, observers=(), evict_after=evict_after)
        agent = Agent(Payer(), tools=[look_up, pay], runtime=runtime)

        async def start(run_id: str) -> Any:
            return await agent.run("go", run_id=run_id)

        async def all_wait(runs: int) -> None:
            evicted = agent._service.evicted

            async def left() -> int:
                quiet = sum(run.is_quiet for run in evicted) if evict_after else runs
                return runs - min(quiet, (await agent.runs.count()).waiting)

            while await left():  # noqa: ASYNC110 - a journal has no event
                await asyncio.sleep(0.05)

        rehearsal = asyncio.ensure_future(start("rehearsal"))
        await all_wait(1)
        yield start, lambda runs: all_wait(1 + runs)
        rehearsal.cancel()
        with suppress(asyncio.CancelledError):
            await rehearsal


# ---- counting ----

_BUILT_IN = (ModuleType, type, int)
"""Types that are left out: of a whole process, or most of them of this measurement."""


def _objects() -> dict[int, object]:
    """Return every object that can be reached from the ones that the collector tracks, by identity."""
    found = {id(one): one for one in gc.get_objects()}
    for one in tuple(found.values()):
        for part in gc.get_referents(one):
            found.setdefault(id(part), part)
    return found


def _name(one: object) -> str:
    if isinstance(one, FunctionType | CoroutineType | GeneratorType):
        kind = "function" if isinstance(one, FunctionType) else "coroutine"
        return f"{kind} {one.__qualname__}"
    found = type(one)
    return (
        found.__qualname__ if found.__module__ == "builtins" else f"{found.__module__}.{found.__qualname__}"
    )


def _is_tracked(value: object) -> bool:
    """Return whether the collector walks through a value.

    Dictionaries of atoms do not count: Python 3.14 tracks them, and earlier versions do not.
    """
    if type(value) is dict:
        return any(gc.is_tracked(part) for part in gc.get_referents(value))
    return gc.is_tracked(value)


def _by_type(before: frozenset[int], runs: int) -> tuple[list[tuple[float, float, str]], float]:
    gc.collect()
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    tracked = 0
    for number, one in _objects().items():
        if number not in before and one is not before and not isinstance(one, _BUILT_IN):
            name = _name(one)
            counts[name] += 1
            sizes[name] += sys.getsizeof(one)
            tracked += _is_tracked(one)
    rows = [(sizes[name] / runs, counts[name] / runs, name) for name in counts if counts[name] >= runs / 2]
    return sorted(rows, reverse=True), tracked / runs


async def measured(case: str, *, runs: int = RUNS, by: str = "type") -> Kept:
    """Return what a waiting run keeps; `by` is `type` or `site`."""
    async with waiting(case, runs) as begin:
        gc.collect()
        before = frozenset(_objects()) if by == "type" else frozenset[int]()
        tracemalloc.start()
        start, _ = tracemalloc.get_traced_memory()
        await begin()
        gc.collect()
        now, _ = tracemalloc.get_traced_memory()
        if by == "type":
            tracemalloc.stop()
            rows, tracked = _by_type(before, runs)
            return Kept((now - start) / runs, tracked, rows)
        found = tracemalloc.take_snapshot().statistics("lineno")
        tracemalloc.stop()
        rows = [
            (one.size / runs, one.count / runs, _place(str(one.traceback[0])))
            for one in found
            if one.count >= runs / 2
        ]
        return Kept((now - start) / runs, 0.0, rows)


def _place(line: str) -> str:
    return line.removeprefix(f"{Path(__file__).parents[2]}/")


def _table(case: str, kept: Kept, most: int) -> Iterator[str]:
    tracked = f", {kept.tracked:,.0f} objects that the collector tracks" if kept.tracked else ""
    yield f"{case}: {kept.bytes / 1024:.1f} KiB a run{tracked}"
    yield f"  {'bytes':>8} {'count':>7}"
    for size, count, name in kept.rows[:most]:
        yield f"  {size:8,.0f} {count:7.1f}  {name}"


def main(arguments: Iterable[str] | None = None) -> None:
    """Print the tables of some cases, each measured in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("case", nargs="*", choices=[*CASES, []], help="by default all")
    parser.add_argument("--by", choices=("type", "site"), default="type", help="what a row of the table is")
    parser.add_argument("--runs", type=int, default=RUNS, help="number of runs that wait at once")
    parser.add_argument("--most", type=int, default=40, help="most rows of a table")
    given = parser.parse_args(None if arguments is None else list(arguments))
    if len(given.case) != 1:
        for case in given.case or CASES:
            options = ["--by", given.by, "--runs", str(given.runs), "--most", str(given.most)]
            subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.waiting_runs", case, *options], check=True
            )
        return
    (case,) = given.case
    print("\n".join(_table(case, asyncio.run(measured(case, runs=given.runs, by=given.by)), given.most)))


if __name__ == "__main__":
    main()
