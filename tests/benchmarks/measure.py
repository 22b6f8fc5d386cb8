"""Interleaved runs of the hand loop and of the machine on the same script; medians, spread, ratios."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from prometheus_client import CollectorRegistry

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Request, Response
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from tests.benchmarks.hand_loop import hand_loop
from tests.benchmarks.hand_telemetry import HandTelemetry, watched_hand_loop
from tests.benchmarks.workload import PacedLLM, look_up

Contestant = Callable[[PacedLLM], Awaitable[object]]

DIFFERENT = Limits(max_iterations=1_000_000)
"""Every guard on at its default; only the cap is out of the way of long runs."""


@dataclass(frozen=True, slots=True)
class Case:
    """One workload. With no tools it is `turns` runs of a single request each."""

    name: str
    turns: int
    tools: int
    latency: float
    rounds: int
    journalled: bool = False
    """The machine with all telemetry keeps its run in SQLite, on the working directory's disk."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One contestant in one round: mean seconds a turn, and the seconds of each iteration."""

    per_turn: float
    iterations: Sequence[float]


async def sample(case: Case, contestant: Contestant) -> Sample:
    """Run a case once."""
    if case.tools:
        llm = PacedLLM(case.turns, case.tools, case.latency)
        started = time.perf_counter()
        await contestant(llm)
        return Sample((time.perf_counter() - started) / (case.turns + 1), llm.iterations())
    spans = []
    for _ in range(case.turns):
        started = time.perf_counter()
        await contestant(PacedLLM(1, 0, case.latency))
        spans.append(time.perf_counter() - started)
    return Sample(statistics.fmean(spans), spans)


async def by_hand(llm: PacedLLM) -> object:
    """The yardstick."""
    return await hand_loop(llm, {"look_up": look_up.call}, (look_up,), "go", 1_000_000)


def watched_by_hand(log: BinaryIO) -> Contestant:
    """Return the hand-written loop with the same telemetry as ours."""
    telemetry = HandTelemetry(log, CollectorRegistry())

    async def run(llm: PacedLLM) -> object:
        return await watched_hand_loop(llm, {"look_up": look_up.call}, (look_up,), "go", 1_000_000, telemetry)

    return run


class Relay:
    """The model of an agent that is built once and measured with many models."""

    model = "paced"

    def __init__(self) -> None:
        self.to = PacedLLM(0, 0, 0.0)

    async def complete(self, request: Request) -> Response:
        """Let the present model answer."""
        return await self.to.complete(request)


def machine(log: BinaryIO | None) -> Contestant:
    """The state machine with its in-memory journal; with a log file: JSON lines to it, and every metric."""
    observers = () if log is None else (TransitionLog(log), Metrics(CollectorRegistry()))

    relay = Relay()
    agent = Agent(relay, tools=[look_up], limits=DIFFERENT, observers=observers)

    async def run(llm: PacedLLM) -> object:
        relay.to = llm
        result = await agent.run("go")
        if result.outcome != "completed":
            raise RuntimeError(f"the workload ended as {result.outcome}: {result.error or result.verdict}")
        return result

    return run


def durable(log: BinaryIO, folder: Path) -> Contestant:
    """The machine with JSON log and every metric, its runs in a SQLite journal that syncs each append."""
    observers = (TransitionLog(log), Metrics(CollectorRegistry()))

    async def run(llm: PacedLLM) -> object:
        async with SqliteJournal(folder / "journal.db") as journal:
            agent = Agent(llm, tools=[look_up], limits=DIFFERENT, observers=observers, journal=journal)
            return (await agent.run("go")).raise_for_outcome()

    return run


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over the rounds of one case. Times in microseconds, ratios to the hand loop of the same round."""

    case: Case
    hand_us: float
    watched_us: float
    """The hand-written loop with the same telemetry."""
    bare_us: float
    full_us: float
    watched_ratio: float
    bare_ratio: float
    full_ratio: float
    spread: tuple[float, float]
    """Least and greatest full ratio."""
    hand_p50_ms: float
    full_p50_ms: float
    hand_p95_ms: float
    full_p95_ms: float
    p95_ratio: float
    watched_p95_ratio: float
    """Full by the hand-written loop with the same telemetry."""


def run_case(case: Case) -> Figures:
    """Measure one case: in each round every contestant once, in turn."""
    Path(".orchestrator").mkdir(exist_ok=True)
    with (
        tempfile.TemporaryFile(buffering=0) as log,
        tempfile.TemporaryDirectory(dir=Path(".orchestrator").absolute()) as disk,
    ):
        contestants: dict[str, Contestant] = {
            "hand": by_hand,
            "watched": watched_by_hand(log),
            "bare": machine(None),
            "full": durable(log, Path(disk)) if case.journalled else machine(log),
        }
        samples: dict[str, list[Sample]] = {name: [] for name in contestants}
        for number in range(case.rounds + 1):
            for name, contestant in contestants.items():
                taken = asyncio.run(sample(case, contestant))
                if number:  # the first round warms up
                    samples[name].append(taken)
    return _figures(case, samples)


def _figures(case: Case, samples: dict[str, list[Sample]]) -> Figures:
    per_turn = {
        name: statistics.median(one.per_turn for one in taken) * 1e6 for name, taken in samples.items()
    }
    ratios = {
        name: [one.per_turn / hand.per_turn for one, hand in zip(samples[name], samples["hand"], strict=True)]
        for name in ("watched", "bare", "full")
    }
    p50, p95 = ({name: _quantile(samples[name], q) * 1e3 for name in ("hand", "full")} for q in (50, 95))
    return Figures(
        case=case,
        **{f"{name}_us": value for name, value in per_turn.items()},
        **{f"{name}_ratio": statistics.median(values) for name, values in ratios.items()},
        spread=(min(ratios["full"]), max(ratios["full"])),
        hand_p50_ms=p50["hand"],
        full_p50_ms=p50["full"],
        hand_p95_ms=p95["hand"],
        full_p95_ms=p95["full"],
        p95_ratio=_p95_ratio(samples["full"], samples["hand"]),
        watched_p95_ratio=_p95_ratio(samples["full"], samples["watched"]),
    )


def _p95_ratio(ours: Sequence[Sample], theirs: Sequence[Sample]) -> float:
    """Return the median of the ratios of the rounds."""
    return statistics.median(
        _percentile(one.iterations, 95) / _percentile(other.iterations, 95)
        for one, other in zip(ours, theirs, strict=True)
    )


def _quantile(samples: Sequence[Sample], percent: int) -> float:
    return statistics.median(_percentile(one.iterations, percent) for one in samples)


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
