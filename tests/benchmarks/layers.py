"""Where a turn goes: bytecodes of each module, a figure that noise hardly moves: `python -m tests.benchmarks.layers`.

The workload is that of `instructions`: one agent with one tool and all telemetry. One bytecode takes some 30 to 80
machine instructions on CPython 3.11, its calls into C included.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.llm.message import Request, Response
from tests.benchmarks.instructions import FIRST, LAST
from tests.benchmarks.measure import machine
from tests.benchmarks.workload import PacedLLM

ROOT = Path(__file__).resolve().parents[2]
SHOWN = 24
"""Modules that are printed."""


@dataclass(slots=True)
class TracedLLM(PacedLLM):
    """A scripted model that counts bytecodes from turn FIRST to turn `last`."""

    last: int = LAST
    counts: Counter[str] = field(default_factory=Counter)
    tracer: Any = None
    """That of before, such as coverage's, which would measure no later test."""

    async def complete(self, request: Request) -> Response:
        """Answer, and switch the count on and off."""
        turn = len(self.asked_at)
        if turn == FIRST:
            self.tracer = sys.gettrace()
            trace_opcodes(self._trace)
        elif turn == self.last:
            sys.settrace(self.tracer)
        return await PacedLLM.complete(self, request)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.counts[frame.f_code.co_filename] += 1
        return self._trace


def trace_opcodes(trace: Callable[[FrameType, str, Any], Any]) -> None:
    """Call `trace` for each bytecode from now on, also of the frames that were entered before."""
    # Python 3.12 looks only in `settrace` whether a frame traces opcodes.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    frame: FrameType | None = sys._getframe().f_back
    while frame is not None:
        trace(frame, "call", None)
        frame.f_trace = trace
        frame = frame.f_back


async def measured(turns: int = LAST - FIRST) -> Counter[str]:
    """Return module -> bytecodes of one turn, on average over so many."""
    last = FIRST + turns
    llm = TracedLLM(last + 10, 1, 0.0, last=last)
    with tempfile.TemporaryFile(buffering=0) as log:
        await machine(log)(llm)
    return Counter({_module(name): round(count / turns) for name, count in llm.counts.items()})


def _module(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else f"({path.parent.name}/{path.name})"


def lines(counts: Counter[str]) -> list[str]:
    """Return the table: the largest modules, the rest, the sum."""
    shown = counts.most_common(SHOWN)
    rest = counts.total() - sum(count for _, count in shown)
    rows = [*shown, ("(others)", rest), ("sum", counts.total())]
    return [f"{count:>8,} {count / counts.total():6.1%}  {name}" for name, count in rows]


if __name__ == "__main__":
    print("bytecodes a turn, by module", *lines(asyncio.run(measured())), sep="\n")
