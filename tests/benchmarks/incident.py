"""The commands of a runbook on a journal of 5,000 runs: `python -m tests.benchmarks.incident [RUNS]`.

The runs are those of an agent, with two tool calls each. Printed is the median wall time of whole commands, from the
start of the interpreter to its end, with the shortest and the longest of several.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from orchestrator import Agent, SqliteJournal, tool
from orchestrator.llm.message import Request
from orchestrator.providers.scripted import Answer, FunctionLLM, call
from tests.benchmarks.stores import DISK

RUNS: Final = 5_000
_TURNS: Final = 2
_BATCH: Final = 200

AIMS: Final[dict[tuple[str, ...], float]] = {
    ("--help",): 0.1,
    ("runs", "list"): 0.5,
    ("runs", "show", "run1"): 0.5,
    ("runs", "events", "run1"): 0.5,
    ("runs", "list", "--limit", "0", "--json"): 2.0,
    ("doctor",): 3.0,
}
"""Command -> most seconds it may take."""


@tool(effect="pure")
async def look(query: str) -> str:
    """Look something up."""
    return query * 100


async def _model(request: Request) -> Answer:
    turn = sum(message.role == "assistant" for message in request.messages)
    return call("look", query=f"q{turn}") if turn < _TURNS else "done"


async def fill(path: Path, count: int) -> None:
    """Write the journal of an agent with so many ended runs."""
    async with SqliteJournal(path) as journal:
        agent = Agent(
            FunctionLLM(_model, model="m"), tools=[look], name="support", journal=journal, observers=()
        )
        for first in range(0, count, _BATCH):
            some = range(first, min(count, first + _BATCH))
            await asyncio.gather(*(agent.run(f"question {one}", run_id=f"run{one}") for one in some))


def measure(path: Path, calls: int = 5) -> dict[tuple[str, ...], float]:
    """Print the time of each command; return the medians in seconds.

    Each command is called once before, so that its modules are compiled, as they are after an installation.
    """
    medians = {}
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(path.parent)}
    for words, aim in AIMS.items():
        spans = []
        for _ in range(1 + calls):
            started = time.perf_counter()
            at = () if words == ("--help",) else ("--journal", str(path))
            typed = [sys.executable, "-m", "orchestrator", *words, *at]
            done = subprocess.run(typed, stdout=subprocess.PIPE, env=environment, check=False)
            spans.append(time.perf_counter() - started)
            assert done.stdout, words
        del spans[0]
        medians[words] = statistics.median(spans)
        print(
            f"{medians[words]:6.3f} s ({min(spans):.3f} to {max(spans):.3f}), aim {aim:g} s: "
            f"orchestrator {' '.join(words)}"
        )
    return medians


def main(count: int) -> None:
    """Fill a journal on a disk and measure the commands."""
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        path = Path(folder) / "journal.db"
        asyncio.run(fill(path, count))
        measure(path)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else RUNS)
