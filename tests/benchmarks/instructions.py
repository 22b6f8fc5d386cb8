"""Machine instructions of a turn, counted by callgrind: a figure that a busy machine does not change.

The command runs one agent with one tool, all telemetry on, under valgrind. Counting starts with request 61 and stops
with request 261, so that imports, construction and caches do not count. `python -m tests.benchmarks.instructions`
prints the figures; `LIMITS` is the gate that `test_instructions.py` and CI hold.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.kernel.purity import CHECK_PURITY
from orchestrator.llm.message import Request, Response
from tests.benchmarks.measure import Contestant, by_hand, machine, watched_by_hand
from tests.benchmarks.workload import PacedLLM

FIRST, LAST = 60, 260
"""Turns between which instructions are counted."""

LIMITS = {"full": 800_000, "bare": 650_000}
"""The most instructions that a turn may take, by contestant. Lower them with each improvement. Raise them
only for work that each turn has in addition, with the figures in the commit."""

SPREAD = 1.005
"""A figure above its limit by less than this factor is no failure of the test.

The same interpreter and commit took 0.2 % more instructions on one machine than on another, in every layout of the
heap. The command still prints the figure beside the limit itself.
"""

PADDINGS = (0, 700, 1_300)
"""Bytes by which the environment of the process is longer, so that its heap has another layout.

The method cache of CPython is indexed by addresses: the length of a path, say that of the checkout, changes how often
it misses, and a figure by up to 1 %. Work that a turn has in addition raises the figure of every layout.
"""

IMPORT_LIMIT = 1_050_000_000
"""The most instructions that `from orchestrator import Agent` may take, likewise."""


@dataclass(slots=True)
class CountedLLM(PacedLLM):
    """A scripted model that switches callgrind on and off."""

    async def complete(self, request: Request) -> Response:
        """Answer, and count from turn FIRST to turn LAST."""
        if len(self.asked_at) == FIRST:
            gc.collect()  # so that each process counts the same collections: one more costs 15,000 a turn
            _switch("on")
        elif len(self.asked_at) == LAST:
            _switch("off")
        return await PacedLLM.complete(self, request)


def _switch(state: str) -> None:
    subprocess.run(["callgrind_control", "-i", state, str(os.getpid())], check=True, capture_output=True)


def run(contestant: str) -> None:
    """Run one contestant once: `hand`, `watched` (by hand, with telemetry), `bare` (no observers) or `full`."""
    with tempfile.TemporaryFile(buffering=0) as log:
        contestants: dict[str, Contestant] = {
            "hand": by_hand,
            "watched": watched_by_hand(log),
            "bare": machine(None),
            "full": machine(log),
        }
        asyncio.run(measured(contestants[contestant]))


async def measured(contestant: Contestant) -> None:
    """Run the workload once."""
    await contestant(CountedLLM(LAST + 10, 1, 0.0))


def count(contestant: str, dump: Path | None = None, padding: int = 0) -> int:
    """Return the instructions of one turn; `dump` gets callgrind's profile. Raises RuntimeError without a figure."""
    out = os.devnull if dump is None else str(dump)
    options = ["--instr-atstart=no", f"--callgrind-out-file={out}"]
    return _counted(options, ["-m", "tests.benchmarks.instructions", contestant], padding) // (LAST - FIRST)


def import_count() -> int:
    """Return the instructions of `from orchestrator import Agent`, without those of an empty interpreter.

    tenacity imports tornado where it is installed, as with the notebooks of the tests; that is left out.
    """
    alone = "import sys; sys.modules['tornado'] = None; "
    with_agent, empty = (
        _counted([f"--callgrind-out-file={os.devnull}"], ["-I", "-c", alone + statement])
        for statement in ("from orchestrator import Agent", "pass")
    )
    return with_agent - empty


def _counted(options: Sequence[str], program: Sequence[str], padding: int = 0) -> int:
    # With one seed of the hashes, sets and dicts are the same in every process.
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", *options, sys.executable, *program],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0", CHECK_PURITY: "0", "PADDING": "x" * padding},
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(f"valgrind counted nothing: {done.stderr[-500:]}")
    return int(found[1])


def main() -> None:
    """Print the figures of every contestant."""
    hand = count("hand")
    print(f"{'hand':8}{hand:>12,} instructions a turn")
    watched = count("watched")
    print(f"{'watched':8}{watched:>12,} instructions a turn, {watched / hand:.1f} x hand")
    for name, limit in LIMITS.items():
        figure = count(name)
        print(f"{name:8}{figure:>12,} instructions a turn, {figure / hand:.1f} x hand, limit {limit:,}")
    print(f"{'import':8}{import_count():>13,} instructions of an import, limit {IMPORT_LIMIT:,}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        main()
