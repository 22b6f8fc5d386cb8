"""Many branches in one state: `python -m tests.benchmarks.branches`.

Each branch is a pure tool. Printed are, for 250, 500 and 1,000 of them, the records, the largest memory beside the
journal's records, the calls of Python and C functions, the processor time, and the bytes of the console page; then what
the last 500 branches cost, by the 250 before them: 2.00 is linear. Only the processor time depends on the machine.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any, Final

from orchestrator import MemoryJournal, Runs, tool
from orchestrator.branches import Branch, Fan
from tests.console.client import Client, readable
from tests.runtime.branches.machine import SpreadContext, workflow

COUNTS: Final = (250, 500, 1_000)
_TIMES: Final = 5
"""Runs of which the fastest counts."""


@tool(effect="pure")
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def of_double(number: Any) -> Branch[Any]:
    """Return the branch of an item."""
    return Branch(double, {"number": number})


async def spread_over(count: int) -> MemoryJournal:
    """Run so many branches in one state, and return their journal."""
    journal = MemoryJournal(ended=2_000)
    machine = workflow(Fan(max=1_000), of_double, journal=journal)
    result = await machine.run(SpreadContext(list(range(count))), run_id="p1")
    assert result.output == [2 * number for number in range(count)]
    return journal


async def records(count: int) -> int:
    """Return the number of records, those of the branches included."""
    journal = await spread_over(count)
    return sum([len(await journal.load(head.run_id)) async for head in journal.runs()])


async def memory(count: int) -> int:
    """Return the bytes that are held at most beside the journal's records."""
    gc.collect()
    gc.disable()  # a collection at another moment would give another maximum
    tracemalloc.start()
    try:
        await spread_over(count)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()


async def calls(count: int) -> int:
    """Return the number of calls of Python and C functions: exact, unlike a time."""
    seen = 0

    def counted(frame: Any, event: str, _: Any) -> None:
        nonlocal seen
        seen += event in {"call", "c_call"}

    sys.setprofile(counted)
    try:
        await spread_over(count)
    finally:
        sys.setprofile(None)
    return seen


async def processor_us(count: int) -> int:
    """Return the microseconds of processor time of the fastest of several runs."""
    found = []
    for _ in range(_TIMES):
        gc.collect()
        began = time.process_time()
        await spread_over(count)
        found.append(time.process_time() - began)
    return round(min(found) * 1e6)


async def page(count: int) -> int:
    """Return the bytes of the page of the run in the console."""
    client = Client(readable(Runs(await spread_over(count))))
    return len((await client.get("/runs/p1")).body)


def growth(figures: list[int]) -> float:
    """Return what 500 further branches cost by what 250 further ones did."""
    first, second, third = figures
    return (third - second) / (second - first)


MEASURES: Final[tuple[tuple[str, Callable[[int], Awaitable[int]]], ...]] = (
    ("records", records),
    ("bytes of memory", memory),
    ("calls of functions", calls),
    ("µs of processor time", processor_us),
    ("bytes of the page", page),
)


async def main() -> None:
    """Print the figures."""
    await spread_over(10)  # what is made once
    print(f"{'branches':<22}" + "".join(f"{count:>13,}" for count in COUNTS) + f"{'growth':>9}")
    for name, measure in MEASURES:
        figures = [await measure(count) for count in COUNTS]
        told = "" if measure is page else f"{growth(figures):9.2f}"
        print(f"{name:<22}" + "".join(f"{figure:>13,}" for figure in figures) + told)


if __name__ == "__main__":
    asyncio.run(main())
