"""What telemetry adds to a transition: a bare synchronous trigger of `transitions`, and the same one told to observers.

The yardstick has no hook, no journal and no event loop, so the ratio is the worst that anybody can see. Told means:
the fact is made, JSON goes to a file without a buffer, every metric of the state and the edge is touched. Beside it the
trigger of our machine (`kernel.machine`), without telemetry and journal. Processor
time of the thread, the kernel's included, so that other processes do not show.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import transitions
from prometheus_client import CollectorRegistry

from orchestrator.kernel.cancellation import at_once
from orchestrator.kernel.clock import SystemClock
from orchestrator.kernel.fact import Observer, RunStarted, Transition
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.report import Reporter
from orchestrator.kernel.run import Run
from orchestrator.kernel.transition_executor import TransitionExecutor
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics

NAME = "sync trigger"
AIM = 2.8
TURN = ("await_llm", "evaluate_response", "process_tools", "update_budgets")
"""The states of a turn with a tool, in their order."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Microseconds a transition, medians of the rounds; ratios to the bare trigger of the same round."""

    name: str
    bare_us: float
    trigger_us: float
    """A trigger of our machine."""
    metrics_us: float
    log_us: float
    full_us: float
    ratio: float
    spread: tuple[float, float]
    best_ratio: float
    """Of the quickest round of each: what is left when nothing else runs on the machine."""


class Cursor:
    """What `transitions` moves."""

    state: str


def turn_of_the_loop() -> tuple[tuple[str, str, str], ...]:
    """Return the four transitions of a turn with a tool: (source, event, dest)."""
    rows = [(source.value, event.value, dest.value) for source, event, dest, _ in LLM_LOOP.rows]
    pairs = zip(TURN, (*TURN[1:], TURN[0]), strict=True)
    return tuple(next(row for row in rows if (row[0], row[2]) == pair) for pair in pairs)


def contestant(*observers: Observer) -> Callable[[int], float]:
    """Return what goes round so many turns and returns the seconds of one transition."""
    turn = turn_of_the_loop()
    cursor: Any = Cursor()
    table = transitions.Machine(
        cursor, states=[source for source, _, _ in turn], initial=turn[0][0], auto_transitions=False
    )
    for source, event, dest in turn:
        table.add_transition(event, source, dest)
    name, run_id = LLM_LOOP.name, "0123456789abcdef0123456789abcdef"
    steps = [(getattr(cursor, event), event, source, dest) for source, event, dest in turn]
    receivers = [observer.observe for observer in observers]
    for receive in receivers:
        receive(RunStarted(name, run_id, time.time(), state=turn[0][0]))

    def go(turns: int) -> float:
        began, entered = time.thread_time(), time.monotonic()
        seq = 0
        for iteration in range(turns):
            for trigger, event, source, dest in steps:
                trigger()
                if receivers:
                    seq += 1
                    now = time.monotonic()
                    at = time.time()
                    fact = Transition(
                        name, run_id, seq, event, source, dest, now - entered, at, iteration, "guard"
                    )
                    entered = now
                    for receive in receivers:
                        receive(fact)
        return (time.thread_time() - began) / (turns * len(steps))

    return go


def triggering() -> Callable[[int], float]:
    """Return the same for four triggers of our machine: without a journal, an observer or a hook."""
    edges = tuple(replace(edge, when=None) for edge in LLM_LOOP.edges)
    machine = Machine(replace(LLM_LOOP, edges=edges, strict=False), Hooks({}))
    run: Run[Any, Any] = Run(machine, "r", None, None)
    clock = SystemClock()
    run.control.executor = TransitionExecutor(Reporter((), clock), None, clock)
    run.cursor.state = TURN[0]
    events = [machine.events[event] for _, event, _ in turn_of_the_loop()]

    def go(turns: int) -> float:
        began = time.thread_time()
        for _ in range(turns):
            for event in events:
                at_once(event.trigger(run))  # type: ignore[arg-type]  # ours is a coroutine
        return (time.thread_time() - began) / (turns * len(events))

    return go


def measure(turns: int = 500, rounds: int = 31) -> Figures:
    """Measure, every contestant once in each round."""
    metrics = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())
    for one in metrics:
        one.declare(LLM_LOOP, tools=["look_up"], model="paced", backends=["memory"])
    with tempfile.TemporaryFile(buffering=0) as file:
        log = TransitionLog(file)
        goers = (
            contestant(),
            triggering(),
            contestant(metrics[0]),
            contestant(log),
            contestant(log, metrics[1]),
        )
        samples = [[go(turns) for go in goers] for _ in range(rounds + 1)][1:]  # the first round warms up
    return _figures(samples)


def _figures(samples: Sequence[Sequence[float]]) -> Figures:
    columns = list(zip(*samples, strict=True))
    bare, ours, metrics, log, full = (statistics.median(column) * 1e6 for column in columns)
    ratios = [sample[-1] / sample[0] for sample in samples]
    best = min(columns[-1]) / min(columns[0])
    return Figures(
        f"{NAME}, all telemetry",
        bare,
        ours,
        metrics,
        log,
        full,
        statistics.median(ratios),
        (min(ratios), max(ratios)),
        best,
    )


def rows(one: Figures) -> list[str]:
    """Return the lines of the report."""
    low, high = one.spread
    return [
        "processor µs a transition: a bare sync trigger of `transitions`, with all metrics, with the log, with both;",
        "and a trigger of our machine without telemetry and journal",
        f"{'case':28}{'bare':>6}{'ours':>7}{'metrics':>8}{'log':>6}{'full':>7}{'full/b':>7}{'spread':>12}{'best/b':>7}",
        (
            f"{one.name:28}{one.bare_us:6.1f}{one.trigger_us:7.1f}{one.metrics_us:8.1f}{one.log_us:6.1f}{one.full_us:7.1f}"
            f"{one.ratio:7.2f}{low:7.2f}-{high:<4.2f}{one.best_ratio:7.2f}   (aim: at most {AIM})"
        ),
    ]
