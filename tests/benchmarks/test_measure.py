from __future__ import annotations

import io
import json
import sys

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.log import TransitionLog
from tests.benchmarks import layers, trigger, typed
from tests.benchmarks.hand_telemetry import HandTelemetry, watched_hand_loop
from tests.benchmarks.measure import Case, run_case
from tests.benchmarks.workload import PacedLLM, look_up


@pytest.mark.parametrize("tools", [0, 1, 5])
def test_every_contestant_does_the_whole_workload_and_is_measured(tools: int) -> None:
    figures = run_case(Case("small", turns=3, tools=tools, latency=0.001, rounds=2))

    assert min(figures.hand_us, figures.watched_us, figures.bare_us, figures.full_us) > 1_000 / 2
    assert figures.spread[0] <= figures.full_ratio <= figures.spread[1]
    assert figures.hand_p50_ms >= 1
    assert figures.full_p95_ms >= figures.full_p50_ms


def test_a_journalled_contestant_keeps_its_runs_in_a_store_of_its_own() -> None:
    figures = run_case(Case("small", turns=3, tools=1, latency=0.02, rounds=1, journalled=True))

    assert min(figures.full_p95_ms, figures.hand_p50_ms) >= 20, "what the model takes"


def test_telemetry_is_measured_on_a_trigger_that_does_the_turns_of_the_loop() -> None:
    assert [row[0] for row in trigger.turn_of_the_loop()] == list(trigger.TURN)

    figures = trigger.measure(turns=20, rounds=3)

    assert figures.trigger_us > 0
    assert min(figures.bare_us, figures.full_us) > 0
    assert figures.spread[0] <= figures.ratio <= figures.spread[1]


def test_the_typed_machine_and_the_kernels_own_make_the_same_transitions() -> None:
    assert {go(7) for go in (typed.kernel(), typed.sync_run(), typed.async_run())} == {14}


@pytest.mark.campaign
@pytest.mark.bench
def test_a_transition_of_the_typed_machine_costs_at_most_a_third_more_than_the_kernels_own() -> None:
    ratio = min(typed.measure(turns=1_000, rounds=7).best_ratio for _ in range(3))
    assert ratio <= typed.AIM


async def test_the_hand_written_loop_with_telemetry_writes_our_lines_and_counts_each_turn() -> None:
    registry, log = CollectorRegistry(), io.BytesIO()
    agent = Agent(PacedLLM(3, 1, 0.0), tools=[look_up], observers=[TransitionLog(ours := io.BytesIO())])
    await agent.run("go")
    await watched_hand_loop(
        PacedLLM(3, 1, 0.0), {"look_up": look_up.call}, (look_up,), "go", 9, HandTelemetry(log, registry)
    )

    theirs = list(map(json.loads, log.getvalue().splitlines()))
    lines = map(json.loads, ours.getvalue().splitlines())
    turns = [one for one in lines if one["msg"] == "fsm.transition" and one["from_state"] != "init"]
    assert [list(one) for one in theirs[:12]] == [list(one) for one in turns[:12]]
    assert [one["fsm_event"] for one in theirs[:12]] == [one["fsm_event"] for one in turns[:12]]
    assert registry.get_sample_value("iteration_duration_seconds_count", {"machine": "by_hand"}) == 3
    assert registry.get_sample_value("llm_tokens_total", {"model": "paced", "direction": "input"}) == 4 * 900


async def test_a_tracer_goes_on_after_a_count_of_bytecodes() -> None:
    before = sys.gettrace()

    def tracer(*_: object) -> None:
        """Trace no frame."""

    sys.settrace(tracer)
    try:
        await layers.measured(turns=1)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


async def test_the_bytecodes_of_a_turn_are_counted_by_module() -> None:
    counts = await layers.measured(turns=20)

    assert counts["orchestrator/kernel/transition_executor.py"] > 100
    assert counts["orchestrator/telemetry/metrics.py"] > 100
    assert abs((await layers.measured(turns=20)).total() - counts.total()) < counts.total() / 100
    table = layers.lines(counts)
    assert len(table) == layers.SHOWN + 2
    assert f"{counts.total():,}" in table[-1]
