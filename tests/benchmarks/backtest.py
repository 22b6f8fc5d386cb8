"""A backtest of many runs of 20 turns on SQLite: `python -m tests.benchmarks.backtest 10000`.

Prints one JSON object: runs, seconds, processor seconds, and the greatest resident memory in MB.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator import Agent, Limits, MemoryJournal, Response, Usage
from orchestrator.backtest import Policy, Report, backtest
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, Record, write_records
from orchestrator.providers.scripted import call
from orchestrator.runtime.runs.runs import Runs
from orchestrator.testing import ScriptedLLM

TURNS = 20
KINDS = 50
"""Different runs; the others are copies of their records."""
AT_ONCE = 200


def step(n: int) -> str:
    """Do one step."""
    return f"step {n} {'x' * 300}"


async def samples() -> list[Sequence[Record]]:
    """Return the records of runs of 20 turns."""
    found: list[Sequence[Record]] = []
    limits = Limits(max_input_tokens=10**7, max_tool_calls=200, max_repeated_success=0)
    for seed in range(KINDS):
        chance, journal = random.Random(seed), MemoryJournal()
        answers = [
            Response(
                None, (call("step", n=1_000 * turn + chance.randrange(99)),), usage=Usage(800 + 40 * turn, 60)
            )
            for turn in range(TURNS - 1)
        ]
        agent = Agent(
            ScriptedLLM([*answers, "done"]),
            name="support",
            tools=[step],
            limits=limits,
            journal=journal,
            observers=(),
        )
        await agent.run("go", run_id="r")
        found.append(await journal.load("r"))
    return found


async def fill(file: Path, count: int) -> None:
    """Write so many runs."""
    kinds = await samples()
    async with SqliteJournal(file) as journal:

        async def write(number: int) -> None:
            created, *rest = kinds[number % KINDS]
            lease = await journal.create(f"run-{number:06}", "benchmark", created.body)
            await write_records(journal, lease, *(Draft(one.kind, one.body) for one in rest))
            await journal.release(lease)

        for first in range(0, count, AT_ONCE):
            await asyncio.gather(*map(write, range(first, min(count, first + AT_ONCE))))


async def tested(file: Path) -> Report:
    """Backtest a smaller limit on all runs of a journal."""
    async with SqliteJournal(file) as journal:
        return await backtest(Runs(journal), Policy({"max_iterations": 15, "max_no_progress": 2}))


def main(count: int) -> None:
    """Fill a journal and measure a backtest of it."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "journal.db"
        asyncio.run(fill(file, count))
        before, processor = time.perf_counter(), time.process_time()
        report = asyncio.run(tested(file))
        print(
            json.dumps(
                {
                    "runs": report.runs,
                    "harm": report.harm,
                    "seconds": round(time.perf_counter() - before, 2),
                    "processor_seconds": round(time.process_time() - processor, 2),
                    "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                }
            )
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
