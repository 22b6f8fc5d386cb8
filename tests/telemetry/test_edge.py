"""What transitions count waits in a list until somebody reads it: nothing is lost, nothing is counted twice."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.kernel.fact import BudgetChecked, Fact, LLMCall, ToolExecution, Transition
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.telemetry.metrics import Metrics
from orchestrator_guards import Verdict
from tests.telemetry.sampling import sampled

WAIT = ("llm_response", "await_llm", "evaluate_response")
TOOLS = ("response_with_tools", "evaluate_response", "process_tools")


def board(graph: Any = LLM_LOOP) -> tuple[CollectorRegistry, Metrics]:
    registry, metrics = undeclared()
    metrics.declare(graph, ["search"], "m", guards=["iterations"])
    return registry, metrics


def undeclared() -> tuple[CollectorRegistry, Metrics]:
    registry = CollectorRegistry()
    return registry, Metrics(registry)


def step(names: tuple[str, str, str], at: float = 1.0, dwell: float = 0.25, seq: int = 1) -> Transition:
    return Transition("llm_loop", "r1", seq, *names, dwell, at, 1, overhead=0.5)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return sampled(registry, name, machine="llm_loop", **labels)


def test_every_series_of_a_transition_is_there_when_it_is_read() -> None:
    registry, metrics = board()
    for _ in range(3):
        metrics.observe(step(WAIT))
    event, source, dest = WAIT
    edge = {"event": event, "from_state": source, "to_state": dest}
    assert value(registry, "transitions_total", **edge) == 3
    assert value(registry, "state_entries_total", state=dest) == 3
    assert value(registry, "state_duration_seconds_count", state=source) == 3
    assert value(registry, "state_duration_seconds_sum", state=source) == 0.75
    assert value(registry, "transition_overhead_seconds_sum") == 1.5
    assert value(registry, "transitions_total", **edge) == 3, "reading adds nothing"


def test_the_list_stays_short_though_nobody_reads() -> None:
    registry, metrics = board()
    longest = 0
    for _ in range(5_000):
        metrics.observe(step(WAIT))
        longest = max(longest, *(len(meters.noted) for meters in metrics._use.meters.edges.values()))
    assert longest <= 500
    assert value(registry, "state_entries_total", state=WAIT[2]) == 5_000


def call() -> tuple[Fact, ...]:
    """What a turn counts beside its transitions."""
    return (
        LLMCall("llm_loop", "r1", "await_llm", 1, "m", "ok", 0.5, 9, 6),
        ToolExecution("llm_loop", "r1", 1, 0, "search", "ok", 0.5),
        BudgetChecked("llm_loop", "r1", "update_budgets", 1, [Verdict(True, "iterations", 1, 3)]),
    )


def test_what_calls_and_guards_count_is_there_when_it_is_read() -> None:
    registry, metrics = board()
    for fact in call() * 3:
        metrics.observe(fact)
    model = {"provider": "_unknown", "model": "m"}
    assert value(registry, "attempts_total", operation="llm") == 3
    assert value(registry, "state_tokens_total", state="await_llm", direction="input") == 27
    assert value(registry, "llm_tokens_total", direction="output", **model) == 18
    assert value(registry, "guard_evaluations_total", guard="iterations", result="allow") == 3
    assert sampled(registry, "llm_requests_total", **model, outcome="ok") == 3
    assert sampled(registry, "tool_calls_total", tool="search", outcome="ok") == 3


@pytest.mark.parametrize("before", [0, 40])
def test_one_duration_that_is_no_number_leaves_the_buckets_of_the_others_alone(before: int) -> None:
    registry, metrics = board()
    for dwell in [math.nan, *([0.25] * before), 4.0]:
        metrics.observe(step(WAIT, dwell=dwell))
    held = {
        le: value(registry, "state_duration_seconds_bucket", state=WAIT[1], le=le) or 0.0
        for le in ("0.1", "1.0", "5.0")
    }
    assert held["1.0"] - held["0.1"] == before
    assert held["5.0"] - held["1.0"] == 1


@pytest.mark.parametrize("declared", [True, False])
def test_what_calls_note_stays_short_though_nobody_reads(declared: bool) -> None:
    registry, metrics = board() if declared else undeclared()
    longest = 0
    for _ in range(2_000):
        for fact in (*call(), step(WAIT)):
            metrics.observe(fact)
        longest = max(longest, *(len(child.noted) for child in metrics._use.counters.values()))
        longest = max(longest, *(len(child.noted) for child in metrics._use.histograms.values()))
    assert longest <= 1_000
    operations = [
        s.value for f in registry.collect() for s in f.samples if s.labels.get("operation") == "llm"
    ]
    assert 2_000 in operations


def test_the_time_of_the_last_transition_never_goes_back() -> None:
    registry, metrics = board()
    metrics.observe(step(TOOLS, at=10.0))
    metrics.observe(step(WAIT, at=20.0))
    assert value(registry, "last_transition_timestamp_seconds") == 20.0
    metrics.observe(step(WAIT, at=30.0))
    metrics.observe(step(TOOLS, at=40.0))
    assert value(registry, "last_transition_timestamp_seconds") == 40.0


def test_declaring_again_loses_nothing_that_is_noted() -> None:
    registry, metrics = board()
    metrics.observe(step(WAIT))
    metrics.declare(LLM_LOOP)
    metrics.observe(step(WAIT))
    assert value(registry, "state_entries_total", state=WAIT[2]) == 2


def test_threads_that_note_and_threads_that_read_lose_nothing() -> None:
    registry, metrics = board()
    done = threading.Event()

    def note() -> None:
        for _ in range(5_000):
            metrics.observe(step(WAIT))
            metrics.observe(call()[0])

    def read() -> None:
        while not done.is_set():
            value(registry, "transition_overhead_seconds_count")

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=note) for _ in range(3)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert value(registry, "state_entries_total", state=WAIT[2]) == 15_000
    assert value(registry, "attempts_total", operation="llm") == 15_000
    assert value(registry, "state_duration_seconds_count", state=WAIT[1]) == 15_000
    assert value(registry, "state_duration_seconds_sum", state=WAIT[1]) == 3_750
    assert value(registry, "transition_overhead_seconds_count") == 15_000
