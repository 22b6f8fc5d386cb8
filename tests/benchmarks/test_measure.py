from __future__ import annotations

import pytest

from tests.benchmarks import trigger, typed
from tests.benchmarks.measure import Case, run_case


@pytest.mark.parametrize("tools", [0, 1, 5])
def test_every_contestant_does_the_whole_workload_and_is_measured(tools: int) -> None:
    figures = run_case(Case("small", turns=3, tools=tools, latency=0.001, rounds=2))

    assert min(figures.hand_us, figures.bare_us, figures.full_us) > 1_000 / 2
    assert figures.spread[0] <= figures.full_ratio <= figures.spread[1]
    assert figures.hand_p50_ms >= 1
    assert figures.full_p95_ms >= figures.full_p50_ms


def test_a_journalled_contestant_keeps_its_runs_in_a_store_of_its_own() -> None:
    figures = run_case(Case("small", turns=3, tools=1, latency=0.02, rounds=1, journalled=True))

    assert figures.full_p95_ms >= figures.hand_p50_ms >= 20


def test_telemetry_is_measured_on_a_trigger_that_does_the_turns_of_the_loop() -> None:
    assert [row[0] for row in trigger.turn_of_the_loop()] == list(trigger.TURN)

    figures = trigger.measure(turns=20, rounds=3)

    assert figures.trigger_us > 0
    assert 0 < figures.bare_us < figures.full_us
    assert figures.spread[0] <= figures.ratio <= figures.spread[1]


def test_the_typed_machine_and_the_kernels_own_make_the_same_transitions() -> None:
    assert {go(7) for go in (typed.kernel(), typed.sync_run(), typed.async_run())} == {14}


@pytest.mark.campaign
@pytest.mark.bench
def test_a_transition_of_the_typed_machine_costs_at_most_a_third_more_than_the_kernels_own() -> None:
    ratio = min(typed.measure(turns=1_000, rounds=7).best_ratio for _ in range(3))
    assert ratio <= typed.AIM
