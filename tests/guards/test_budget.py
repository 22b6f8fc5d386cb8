"""Every guard that compares a count with a limit, at n-1, n and n+1, and as properties."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orchestrator_guards as guards
from orchestrator_guards import Verdict

COUNTING: dict[str, Callable[[int, int], Verdict]] = {
    "iterations": guards.iterations,
    "input_tokens": guards.input_tokens,
    "output_tokens": guards.output_tokens,
    "tokens": guards.tokens,
    "host_budget": guards.host_budget,
    "cost_unknown": guards.cost_unknown,
    "cost": lambda observed, limit: guards.cost(observed * 1_000_000, limit * 1_000_000),  # micro-units
    "elapsed": guards.elapsed,
    "tool_calls": guards.tool_calls,
    "sub_calls": guards.sub_calls,
    "tool_cap": lambda observed, limit: guards.tool_cap("search", observed, limit),
    "tool_errors": lambda observed, limit: guards.tool_errors("search", observed, limit),
    "retries": guards.retries,
    "restarts": guards.restarts,
    "repeated_success": guards.repeated_success,
    "structured_retries": guards.structured_retries,
    "completion_retries": guards.completion_retries,
    "task_attempts": guards.task_attempts,
    "qa_cycles": guards.qa_cycles,
    "planning_retries": guards.planning_retries,
    "replans": guards.replans,
    "refinements": guards.refinements,
}
counting = pytest.mark.parametrize(("name", "guard"), COUNTING.items(), ids=COUNTING)
counts = st.integers(0, 10**9)


@counting
@pytest.mark.parametrize("limit", [1, 2, 3, 10, 1000])
def test_a_limit_of_n_allows_exactly_n(name: str, guard: Callable[[int, int], Verdict], limit: int) -> None:
    before, at, after = (guard(observed, limit) for observed in (limit - 1, limit, limit + 1))

    assert (before.ok, at.ok, after.ok) == (True, False, False)
    assert (at.guard, at.observed, at.limit) == (name, limit, limit)
    assert [guard(taken, limit).ok for taken in range(limit)] == [True] * limit


@counting
@given(observed=counts)
def test_a_limit_of_zero_is_unlimited(name: str, guard: Callable[[int, int], Verdict], observed: int) -> None:
    assert guard(observed, 0).ok, name


@counting
@given(observed=counts, more=counts, limit=counts)
def test_what_is_refused_once_stays_refused(
    name: str, guard: Callable[[int, int], Verdict], observed: int, more: int, limit: int
) -> None:
    assert guard(observed, limit).ok or not guard(observed + more, limit).ok, name


@counting
def test_a_negative_limit_refuses_everything(name: str, guard: Callable[[int, int], Verdict]) -> None:
    assert not guard(0, -1).ok, name


@pytest.mark.parametrize("guard", [guards.elapsed])
@pytest.mark.parametrize(
    ("observed", "ok"), [(1.4999, True), (1.5, False), (1.5001, False), (math.nan, False)]
)
def test_measures_may_be_fractions(
    guard: Callable[[float, float], Verdict], observed: float, *, ok: bool
) -> None:
    assert guard(observed, 1.5).ok is ok


def test_d16_a_cap_is_decided_before_any_call_of_a_batch_runs() -> None:
    batch = ["search"] * 4

    allowed = [guards.tool_cap(tool, so_far, 2).ok for so_far, tool in enumerate(batch)]

    assert allowed == [True, True, False, False]


def test_d17_tool_names_are_case_folded_everywhere() -> None:
    assert guards.tool_key("Straße_Search") == guards.tool_key("STRASSE_SEARCH")
    assert guards.call_key("Search", "{}") == guards.call_key("sEARCH", "{}")
    turns = [guards.fingerprint([guards.ObservedCall(name, "{}", "ok")]) for name in ("Search", "SEARCH")]
    assert turns[0] == turns[1]
    pairs = [guards.fingerprint([guards.ObservedCall(name, "{}", "ok")] * 2) for name in ("Search", "SEARCH")]
    assert pairs[0] == pairs[1]
    assert pairs[0].tools == {"search"}


def streak_after(outcomes: str, *, leaky: bool = False) -> int:
    streak = 0
    for outcome in outcomes:
        streak = guards.next_streak(streak, failed=outcome == "x", leaky=leaky)
    return streak


@pytest.mark.parametrize(
    ("outcomes", "streak", "leaked"),
    [
        ("", 0, 0),
        ("x", 1, 1),
        ("xxx", 3, 3),
        ("xx.", 0, 1),
        ("xx.x", 1, 2),
        (".", 0, 0),
        ("x.x.x", 1, 1),
        ("x..xx", 2, 2),
    ],
)
def test_d13_an_error_streak_is_consecutive_and_leaks_only_on_request(
    outcomes: str, streak: int, leaked: int
) -> None:
    assert streak_after(outcomes) == streak
    assert streak_after(outcomes, leaky=True) == leaked


@given(outcomes=st.text(alphabet="x.", max_size=40))
def test_a_reset_streak_is_never_longer_than_a_leaky_one(outcomes: str) -> None:
    assert streak_after(outcomes) <= streak_after(outcomes, leaky=True)


@pytest.mark.parametrize(
    ("remaining", "estimate", "ok"),
    [
        (6599, 5500, False),
        (6600, 5500, True),
        (6601, 5500, True),
        (0, 0, True),
        (0, 1, False),
        (3.6, 3, True),
    ],
)
def test_a_stage_is_affordable_at_its_estimate_with_the_margin(
    remaining: float, estimate: float, *, ok: bool
) -> None:
    verdict = guards.affordable(remaining, estimate)

    assert verdict.ok is ok
    assert (verdict.guard, verdict.limit) == ("affordable", remaining)


def test_the_margin_of_a_stage_can_be_chosen() -> None:
    assert guards.affordable(100, 100, factor=1).ok
    assert not guards.affordable(100, 100, factor=1.01).ok
    assert [guards.affordable(0, need, factor=1).ok for need in (1e-9, 2e-9)] == [True, False]


@given(remaining=counts, estimate=counts, more=counts)
def test_a_dearer_stage_is_never_more_affordable(remaining: int, estimate: int, more: int) -> None:
    assert guards.affordable(remaining, estimate).ok or not guards.affordable(remaining, estimate + more).ok


@pytest.mark.parametrize(
    ("limit", "share", "soft"),
    [
        (20, 0.1, 18),
        (5, 0.1, 4),
        (2, 0.1, 1),
        (1, 0.1, 1),
        (1, 0.9, 1),
        (10, 0.8, 2),
        (10, 0.7, 3),
        (10, 0, 10),
        (0, 0.5, 0),
    ],
)
def test_a_reserve_of_a_count_rounds_down_and_leaves_one(limit: int, share: float, soft: int) -> None:
    reserved = guards.reserve(limit, share)

    assert reserved == soft
    assert isinstance(reserved, int)


def test_a_reserve_of_a_measure_is_exact() -> None:
    assert guards.reserve(2.0, 0.25) == 1.5
    assert guards.reserve(0.0, 0.25) == 0


@given(limit=st.integers(2, 10**9), share=st.floats(1e-6, 0.999))
def test_any_share_keeps_at_least_one_back_and_never_unlimits(limit: int, share: float) -> None:
    assert 1 <= guards.reserve(limit, share) <= limit - 1


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, math.nan])
def test_a_share_outside_zero_to_one_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share must be at least 0 and below 1"):
        guards.reserve(10, share)
