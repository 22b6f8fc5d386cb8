"""Where the time of a turn goes beside a model, and what it is of the time of real models.

    python -m tests.benchmarks.own_time            the parts of a turn beside a model of 5 ms
    python -m tests.benchmarks.own_time models     the whole of a turn beside real latencies, 1 run and 100 at once

The own time of a turn is its duration without the seconds that the model was to take. A part is measured where it
happens: the selector of the event loop, the callbacks of the garbage collector, the write of the log. The model comes
four times: it answers at once, it waits in the event loop, it spins in a loop of Python, and it sweeps memory, so that
the caches hold nothing of the program afterwards. Only the second lets the processor idle: what it costs more than
spinning is the price of waking up, and what sweeping costs more than spinning is that of cold caches.
"""

from __future__ import annotations

import asyncio
import gc
import io
import random
import selectors
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import cycle, islice, pairwise
from typing import Any, BinaryIO, Final, NamedTuple, cast

from orchestrator.llm.message import Request, Response
from tests.benchmarks.child import percentile
from tests.benchmarks.measure import Contestant, by_hand, machine, watched_by_hand
from tests.benchmarks.workload import PacedLLM

NAME: Final = "own time beside real models"
LATENCY: Final = 0.005
"""Seconds of the model whose turns are taken apart."""
TURNS: Final = 200
ROUNDS: Final = 5

# ---- the parts of a turn ----


class Parts(NamedTuple):
    """Counters since the start of a run, or of one turn. Times are seconds."""

    wall: float
    cpu: float
    """Of the thread, without that of the model: more than with a ready model if caches are cold."""
    late: float = 0.0
    """The model's answer came so much later than it was due."""
    polls: float = 0.0
    """Calls of the selector that were not to wait."""
    passes: float = 0.0
    """Passes of the event loop, each with one call of the selector."""
    collected: float = 0.0
    """Garbage collection."""
    log: float = 0.0
    """Writes of log lines."""

    def since(self, before: Parts) -> Parts:
        """Return the difference."""
        return Parts(*(now - then for now, then in zip(self, before, strict=True)))


class Trace(selectors.DefaultSelector):
    """The selector of an event loop, which counts what a run takes."""

    def __init__(self) -> None:
        super().__init__()
        self.late = self.polls = self.passes = self.collected = self.log = self.spun = 0.0
        self._began = 0.0

    def now(self) -> Parts:
        """Return the counters of this moment."""
        return Parts(
            time.perf_counter(),
            time.thread_time() - self.spun,
            self.late,
            self.polls,
            self.passes,
            self.collected,
            self.log,
        )

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events."""
        began = time.perf_counter()
        found = super().select(timeout)
        self.passes += 1
        if timeout == 0:
            self.polls += time.perf_counter() - began
        return found

    def note_collection(self, phase: str, about: Mapping[str, int]) -> None:
        """Take the time of a collection of garbage."""
        del about
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.collected += time.perf_counter() - self._began

    @contextmanager
    def collections(self) -> Iterator[None]:
        """Note the collections inside the block."""
        gc.callbacks.append(self.note_collection)
        try:
            yield
        finally:
            gc.callbacks.remove(self.note_collection)


class TimedLog(io.FileIO):
    """A log file whose writes are timed."""

    trace: Trace | None = None

    def write(self, line: Any) -> int:
        """Write a line."""
        began = time.perf_counter()
        written = super().write(line)
        if self.trace is not None:
            self.trace.log += time.perf_counter() - began
        return written


@dataclass(slots=True)
class TracedLLM(PacedLLM):
    """A model that waits in the event loop, or keeps the processor busy by calls of `work`."""

    work: Callable[[], object] | None = None
    trace: Trace = field(default_factory=Trace)
    parts: list[Parts] = field(default_factory=list)

    async def complete(self, request: Request) -> Response:
        """Note the counters and answer."""
        self.parts.append(self.trace.now())
        due, latency = time.perf_counter() + self.latency, self.latency
        if latency and self.work is not None:
            began = time.thread_time()
            while time.perf_counter() < due:
                self.work()
            self.trace.spun += time.thread_time() - began
        elif latency:
            await asyncio.sleep(latency)
        if latency:
            self.trace.late += time.perf_counter() - due
        self.latency = 0.0
        try:
            return await PacedLLM.complete(self, request)
        finally:
            self.latency = latency

    def by_turn(self) -> list[Parts]:
        """Return the parts of each turn, own time in place of its duration."""
        took = (after.since(before) for before, after in pairwise(self.parts))
        return [one._replace(wall=one.wall - self.latency) for one in took]


def contestants(log: BinaryIO) -> dict[str, Contestant]:
    """Return the loops that are compared."""
    return {
        "hand": by_hand,
        "h+t": watched_by_hand(log),
        "bare": machine(None),
        "full": machine(log),
    }


_SWEPT: Final = memoryview(bytearray(32 << 20))
"""More than the caches of a core hold."""


def sweep() -> None:
    """Replace what the caches hold."""
    half = len(_SWEPT) // 2
    _SWEPT[:half] = _SWEPT[half:]


WAITS: Final[Mapping[str, tuple[float, Callable[[], object] | None]]] = {
    "answers at once": (0.0, None),
    "waits": (LATENCY, None),
    "spins": (LATENCY, time.perf_counter),
    "sweeps": (LATENCY, sweep),
}
"""Name -> seconds of the model, and what it does meanwhile."""


def traced(turns: int = TURNS, rounds: int = ROUNDS) -> dict[tuple[str, str], list[Parts]]:
    """Return contestant and model -> the parts of each turn, from rounds in which all do the same in turn."""
    found: dict[tuple[str, str], list[Parts]] = {}
    with tempfile.TemporaryDirectory() as folder, TimedLog(f"{folder}/log", "wb") as log:
        every = contestants(cast("BinaryIO", log))
        for number in range(rounds + 1):
            for wait, (latency, work) in WAITS.items():
                for name, contestant in every.items():
                    log.trace = trace = Trace()
                    llm = TracedLLM(turns, 1, latency, work=work, trace=trace)
                    with trace.collections(), asyncio.Runner(loop_factory=_loop(trace)) as runner:
                        runner.run(cast("Any", contestant(llm)))
                    if number:  # the first round warms up
                        found.setdefault((name, wait), []).extend(llm.by_turn()[1:])
    return found


def _loop(trace: Trace) -> Callable[[], asyncio.AbstractEventLoop]:
    return lambda: asyncio.SelectorEventLoop(trace)


def lines(found: Mapping[tuple[str, str], Sequence[Parts]]) -> Iterator[str]:
    """Yield the table: the median turn, and the mean of the slowest twentieth."""
    yield f"µs of a turn beside a model of {LATENCY * 1e3:g} ms: the median of each part, then its mean in the"
    yield "twentieth of the turns that have the most own time"
    heads = "".join(f"{name:>10}" for name in ("own", "cpu", "late", "log", "gc", "polls", "passes"))
    yield f"{'':26}{heads}"
    for (name, wait), turns in found.items():
        bound = percentile([one.wall for one in turns], 95)
        slow = [one for one in turns if one.wall >= bound]
        for title, parts in (
            (f"{name}, {wait}", [statistics.median(column) for column in zip(*turns, strict=True)]),
            ("  slowest 5 %", [statistics.fmean(column) for column in zip(*slow, strict=True)]),
        ):
            one = Parts(*parts)
            times = (one.wall, one.cpu, one.late, one.log, one.collected, one.polls)
            yield f"{title:26}{''.join(f'{seconds * 1e6:10.0f}' for seconds in times)}{one.passes:10.1f}"


# ---- beside real models ----

LATENCIES: Final = (
    1033, 563, 723, 614, 708, 939, 1777, 768, 969, 823, 549, 604, 2025, 1302, 538, 755, 397, 681, 579, 667, 609,
    533, 576, 724, 822, 619, 585, 660, 888, 460, 815, 561, 642, 1080, 837, 616, 937, 653, 875, 1759, 1609, 1134,
    1489, 963, 1641, 1119, 1040, 1614, 2147, 2355, 1644, 6045, 1553, 1699, 1059, 890, 1048, 2081, 2553, 4533, 2423,
    1902, 1906, 2003, 1466, 1225, 1149, 1504, 2465, 2689, 1887, 5127, 1895, 1847, 11886, 1523, 4259, 1240, 1083,
    804, 1394, 1635, 1609, 2047, 1173, 744, 2356, 1030, 812, 1406, 775, 782, 887, 2393, 1317, 1615, 1361, 812, 627,
    559, 553, 1177, 808, 957, 1532,
)  # fmt: skip
"""Milliseconds of 105 answers of gpt-4.1-mini in conversations with tools, published as
yoheinakajima/activegraph-tau2-bench (Apache-2.0). The median is 1,059, nine tenths are between 553 and 2,689."""
PARTS_OF_A_SECOND: Final = {1: 40, 100: 8}
"""Runs at once -> by how much the latencies are divided, so that a round takes seconds. Own time is not divided: its
share of a turn is so many times the share beside the real model."""
MOST: Final = 1.02
"""Most that a turn beside real latencies may take at the 95th percentile by that of the hand-written loop."""


@dataclass(slots=True)
class RecordedLLM(PacedLLM):
    """A model that takes another recorded time for each answer."""

    latencies: Iterator[float] = field(default_factory=lambda: iter(()))
    taken: list[float] = field(default_factory=list)

    async def complete(self, request: Request) -> Response:
        """Answer after the next latency."""
        self.latency = next(self.latencies)
        self.taken.append(self.latency)
        return await PacedLLM.complete(self, request)


_MODEL: ContextVar[RecordedLLM] = ContextVar("model of a run")


class OwnModel:
    """The model of runs at once: each has a RecordedLLM of its own, in its context."""

    model = "paced"

    async def complete(self, request: Request) -> Response:
        """Let the run's model answer."""
        return await _MODEL.get().complete(request)


@dataclass(frozen=True, slots=True)
class Beside:
    """A contestant beside real latencies. Milliseconds; ratios to the hand-written loop, of each round."""

    runs: int
    name: str
    own: tuple[float, float]
    """Own time of a turn: median, 95th percentile."""
    cpu: float
    """Processor time of a turn."""
    ratios: Sequence[float]
    """Turns at the 95th percentile by those of the hand-written loop with the same latencies."""

    @property
    def real(self) -> float:
        """The median ratio beside the latencies as they were recorded."""
        return 1 + (statistics.median(self.ratios) - 1) / PARTS_OF_A_SECOND[self.runs]


def beside_models(runs: int, turns: int = 20, rounds: int = 5) -> list[Beside]:
    """Measure every contestant with the same latencies, in turn."""
    taken: dict[str, list[tuple[list[float], list[float], float]]] = {}
    with tempfile.TemporaryFile(buffering=0) as log:
        every = contestants(cast("BinaryIO", log))
        for number in range(rounds + 1):
            for name, contestant in every.items():
                one = asyncio.run(_round(contestant, runs, turns, number))
                if number:
                    taken.setdefault(name, []).append(one)
    hand = [percentile(spans, 95) for spans, _, _ in taken["hand"]]
    return [
        Beside(
            runs,
            name,
            (
                statistics.median(percentile(own, 50) for _, own, _ in each) * 1e3,
                statistics.median(percentile(own, 95) for _, own, _ in each) * 1e3,
            ),
            statistics.median(cpu for _, _, cpu in each) * 1e3,
            [percentile(spans, 95) / unit for (spans, _, _), unit in zip(each, hand, strict=True)],
        )
        for name, each in taken.items()
    ]


async def _round(
    contestant: Contestant, runs: int, turns: int, seed: int
) -> tuple[list[float], list[float], float]:
    """Return the seconds of all turns, those without the model's, and the processor time of a turn."""
    draw, parts = random.Random(seed), PARTS_OF_A_SECOND[runs]
    models = []
    for _ in range(runs):
        first = draw.randrange(len(LATENCIES))
        each = islice(cycle(LATENCIES), first, None)
        models.append(RecordedLLM(turns, 1, 0.0, latencies=(one / 1e3 / parts for one in each)))
    began = time.process_time()
    await asyncio.gather(*(_run(contestant, llm) for llm in models))
    cpu = (time.process_time() - began) / runs / turns
    spans = [span for llm in models for span in llm.iterations()]
    waits = [wait for llm in models for wait in llm.taken[:turns]]
    return spans, [span - wait for span, wait in zip(spans, waits, strict=True)], cpu


async def _run(contestant: Contestant, llm: RecordedLLM) -> None:
    _MODEL.set(llm)
    await contestant(cast("PacedLLM", OwnModel()))


def about(runs: int) -> str:
    """Return the line above a table."""
    median = statistics.median(LATENCIES)
    return f"recorded latencies, median {median:,.0f} ms, divided by {PARTS_OF_A_SECOND[runs]}; runs at once: {runs}"


def model_lines(found: Sequence[Beside]) -> Iterator[str]:
    """Yield the table beside real latencies."""
    heads = ("own p50 ms", "own p95 ms", "cpu ms", "p95 by hand", "spread", "undivided")
    yield f"{'':16}{''.join(f'{head:>14}' for head in heads)}"
    for one in found:
        low, high = min(one.ratios), max(one.ratios)
        cells = (
            *(f"{ms:.3f}" for ms in (*one.own, one.cpu)),
            f"{statistics.median(one.ratios):.4f}",
            f"{low:.3f}-{high:.3f}",
            f"{one.real:.5f}",
        )
        yield f"{f'{one.name}, {one.runs} runs':16}{''.join(f'{cell:>14}' for cell in cells)}"


def beyond(figures: Sequence[Mapping[str, Any]]) -> str:
    """Return which figures of `make bench --json` are beyond MOST; empty if none is."""
    found = [Beside(**one) for one in figures if {"own", "ratios"} <= one.keys()]
    over = [one for one in found if one.name == "full" and one.real > MOST]
    return "; ".join(
        f"runs at once: {one.runs}: p95 of a turn is {one.real:.4f} times the hand-written loop's (at most {MOST})"
        for one in over
    )


def main() -> None:
    """Print the parts of a turn, or the whole beside real models."""
    match sys.argv[1:]:
        case []:
            print(*lines(traced()), sep="\n")
        case ["models", *several]:
            for runs in [int(one) for one in several] or PARTS_OF_A_SECOND:
                print(about(runs), *model_lines(beside_models(runs)), sep="\n", flush=True)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
