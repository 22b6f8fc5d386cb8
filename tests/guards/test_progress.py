"""The no-progress guard: five kinds, three policies, and what follows from a stall."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator_guards import (
    CHANGE_PATIENCE,
    MAX_PERIOD,
    POLL_PATIENCE,
    WINDOW,
    Escalation,
    ObservedCall,
    Policy,
    Stall,
    StallKind,
    TurnFingerprint,
    call_keys,
    escalation,
    expected,
    fingerprint,
    progress,
    repeated_success,
    stall,
    window_size,
)

limits = st.integers(1, 6)


def turn(
    name: object, result: object = "ok", *, tool: str = "f", failed: bool = False, policy: Policy = "strict"
) -> TurnFingerprint:
    return fingerprint([ObservedCall(tool, f'{{"n": "{name}"}}', str(result), failed, policy)])


def said(text: str) -> TurnFingerprint:
    return fingerprint([], text)


A, B, C = turn("a"), turn("b"), turn("c")

KINDS: dict[str, tuple[StallKind, int, list[TurnFingerprint]]] = {
    "repeat_result": (StallKind.REPEAT_RESULT, 1, [A] * 80),
    "repeat": (StallKind.REPEAT, CHANGE_PATIENCE, [turn("a", i) for i in range(80)]),
    "error_cycle, same error": (StallKind.ERROR_CYCLE, 1, [turn(i, "no", failed=True) for i in range(80)]),
    "error_cycle, same error of other tools": (
        StallKind.ERROR_CYCLE,
        1,
        [turn(i, "no", tool=f"t{i}", failed=True) for i in range(80)],
    ),
    "error_cycle, other errors": (
        StallKind.ERROR_CYCLE,
        CHANGE_PATIENCE,
        [turn(i, i, failed=True) for i in range(80)],
    ),
    "error_cycle, same error of a poll": (
        StallKind.ERROR_CYCLE,
        POLL_PATIENCE,
        [turn(i, "no", failed=True, policy="poll") for i in range(80)],
    ),
    "error_cycle, other errors of a poll": (
        StallKind.ERROR_CYCLE,
        POLL_PATIENCE * CHANGE_PATIENCE,
        [turn(i, i, failed=True, policy="poll") for i in range(80)],
    ),
    "monologue": (StallKind.MONOLOGUE, 1, [said("hm")] * 80),
    "poll": (StallKind.REPEAT_RESULT, POLL_PATIENCE, [turn("a", policy="poll")] * 80),
    "poll, answers differ": (
        StallKind.REPEAT,
        POLL_PATIENCE * CHANGE_PATIENCE,
        [turn("a", i, policy="poll") for i in range(80)],
    ),
}


@pytest.mark.parametrize(("kind", "patience", "turns"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_stall_of_n_repeats_is_refused_at_exactly_n(
    kind: StallKind, patience: int, turns: list[TurnFingerprint], limit: int
) -> None:
    n = limit * patience
    before, at, after = (progress(turns[: repeats + 1], limit) for repeats in (n - 1, n, n + 1))

    assert (before.ok, at.ok, after.ok) == (True, False, False)
    assert (at.guard, at.observed, at.limit) == ("no_progress", n, n)
    found = stall(turns[: n + 1], limit)
    assert (found.kind, found.repeats, found.patience) == (kind, n, patience)


@pytest.mark.parametrize("period", range(2, MAX_PERIOD + 1))
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_cycle_is_refused_when_it_has_been_repeated_n_times_as_a_whole(period: int, limit: int) -> None:
    cycle = [turn(name) for name in range(period)] * (limit + 2)
    end = period * (limit + 1)

    before, at, after = (progress(cycle[:turns], limit) for turns in (end - 1, end, end + 1))

    assert (before.ok, at.ok, after.ok) == (True, False, False)
    assert (at.observed, at.limit) == (limit, limit)
    assert stall(cycle[:end], limit)[::4] == (StallKind.ALTERNATION, period)


def test_repeats_are_counted_from_the_first_repetition_up_to_the_limit() -> None:
    assert [stall([A] * n, 9).repeats for n in range(5)] == [0, 0, 1, 2, 3]
    assert [stall([A, B] * n, 9).repeats for n in range(5)] == [0, 0, 1, 2, 3]
    assert [stall([A, A, B] * n, 9).repeats for n in range(1, 4)] == [0, 1, 2]
    assert [stall([B, A, A] * n, 9).repeats for n in range(1, 4)] == [1, 1, 2], (
        "of the pair, then of the round"
    )
    assert [stall(turns * 9, 2).repeats for turns in ([A], [A, B], [A, A, B], [B, A, A])] == [2, 2, 2, 2]
    assert stall([B, A, turn("a", "other")] * 9, 2)[:2] == (StallKind.ALTERNATION, 2)


@pytest.mark.parametrize("window", [[], [A], [A, B], [A, B, C], [A, B, A], [B, A, A]])
def test_a_short_window_is_no_stall(window: list[TurnFingerprint]) -> None:
    assert progress(window, 2).ok


@pytest.mark.parametrize("window", [turns for _, _, turns in KINDS.values()])
def test_a_limit_of_zero_is_off(window: list[TurnFingerprint]) -> None:
    assert stall(window, 0).kind is None
    assert progress(window, 0).ok


@given(names=st.lists(st.integers(), unique=True, max_size=30), limit=limits)
def test_a_window_of_different_turns_never_trips(names: list[int], limit: int) -> None:
    window = [turn(name) for name in names]

    assert stall(window, limit).kind is None
    assert progress(window, limit).ok


@given(before=st.lists(st.sampled_from([A, B, C]), max_size=20), limit=limits, extra=st.integers(1, 5))
def test_a_window_that_ends_in_limit_plus_one_identical_turns_trips(
    before: list[TurnFingerprint], limit: int, extra: int
) -> None:
    assert not progress([*before, *[A] * (limit + extra)], limit)


@given(limit=limits, before=st.lists(st.integers(), max_size=10), extra=st.booleans())
def test_a_b_a_b_trips(limit: int, before: list[int], *, extra: bool) -> None:
    window = deque([turn(name) for name in before], maxlen=window_size(limit))
    window.extend([A, B] * (limit + 1))
    if extra:
        window.append(A)

    assert not progress(window, limit)


@given(
    turns=st.lists(st.sampled_from([A, B, C, said("x"), turn("a", "no", failed=True)]), max_size=40),
    limit=limits,
)
def test_the_guard_is_monotone_in_its_limit_and_pure(turns: list[TurnFingerprint], limit: int) -> None:
    before = list(turns)

    assert progress(turns, limit).ok <= progress(turns, limit + 1).ok
    assert progress(turns, limit) == progress(deque(turns), limit)
    assert turns == before


def test_d5_three_files_attached_in_one_batch_are_no_stall() -> None:
    batch = fingerprint([ObservedCall("attach", f'{{"file": "{name}"}}', "ok") for name in "abc"])

    assert stall([batch], 1).kind is None
    assert progress([A, batch], 1).ok


@pytest.mark.parametrize("policy", ["strict", "poll", "cumulative"])
def test_d5_three_files_attached_one_after_the_other_are_no_stall(policy: Policy) -> None:
    window = [turn(name, "ok", tool="attach", policy=policy) for name in "abc"]

    assert stall(window, 1).kind is None


def test_d5_the_same_batch_in_another_order_is_the_same_batch() -> None:
    calls = [ObservedCall("read", '{"p": 1}', "1"), ObservedCall("read", '{"p": 2}', "2")]
    window = [fingerprint(calls), fingerprint(calls[::-1])] * 2

    assert not progress(window, 3)


def test_d4_a_stall_of_successes_reaches_its_own_limit() -> None:
    """In the original the success budget tripped at 3 before the stall count could reach it."""
    window = [A] * 3

    assert stall(window, 3).repeats == 2
    assert escalation(2, 3) is Escalation.BLOCK
    assert not repeated_success(3, 3)


def test_d11_completion_retries_have_a_progress_guard() -> None:
    assert not progress([said("I cannot answer.")] * 4, 3)
    assert progress([said(f"draft {i}") for i in range(9)], 3).ok


@given(limit=limits, times=st.integers(1, 40))
def test_a_cumulative_call_that_succeeds_is_never_a_repeat(limit: int, times: int) -> None:
    assert progress([turn("next", policy="cumulative")] * times, limit).ok
    assert progress([A, turn("next", policy="cumulative")] * times, limit).ok


def test_a_cumulative_call_that_fails_is_a_repeat() -> None:
    end = turn("next", "no more pages", failed=True, policy="cumulative")
    page = turn("next", "page", policy="cumulative")

    assert not progress([end] * 4, 3)
    assert stall([page] * 9 + [end], 3).repeats == 0


def test_one_cumulative_success_makes_the_batch_progress() -> None:
    batch = fingerprint(
        [ObservedCall("read", "{}", "1"), ObservedCall("append", "{}", "ok", policy="cumulative")]
    )

    assert progress([batch] * 9, 3).ok


def test_a_cycle_with_a_poll_in_it_is_a_wait() -> None:
    sleep, pending = turn("sleep"), turn("job", "pending", policy="poll")
    window = [sleep, pending] * (3 * POLL_PATIENCE + 1)

    assert progress(window[:-1], 3).ok
    assert not progress(window, 3)
    assert len(window) <= window_size(3)


def test_a_poll_in_a_batch_makes_the_turn_a_wait() -> None:
    batch = fingerprint(
        [ObservedCall("sleep", "{}", ""), ObservedCall("job", "{}", "pending", policy="poll")]
    )

    assert progress([batch] * 30, 3).ok
    assert not progress([batch] * 31, 3)


def test_a_success_ends_an_error_cycle() -> None:
    errors = [turn(i, "no", failed=True) for i in range(3)]

    assert progress([*errors, A, *errors], 3).ok
    assert stall([*errors, turn(2)], 3)[:2] == (StallKind.REPEAT, 1), "of the last call, which then succeeded"


@pytest.mark.parametrize(
    ("window", "detail"),
    [
        ([A] * 4, "repeat_result: f: same arguments, same result, 4 times in a row"),
        (
            [turn("a", i) for i in range(7)],
            "repeat: f: same arguments, 7 times in a row, results differ; allowed 2 times the limit",
        ),
        (
            [A, turn("b", tool="g")] * 4,
            "alternation: the same 2 turns (f; g) with the same results, 4 times over",
        ),
        (
            [turn(i, "no", failed=True) for i in range(4)],
            "error_cycle: f: 4 turns in a row failed with the same error",
        ),
        (
            [turn(i, i, failed=True) for i in range(7)],
            "error_cycle: f: 7 turns in a row failed, errors differ; allowed 2 times the limit",
        ),
        ([said("x")] * 4, "monologue: the same text without a call, 4 times in a row"),
        (
            [A, said("x")] * 4,
            "alternation: the same 2 turns (f; an answer without a call) with the same results, 4 times over",
        ),
        ([A, B, C], ""),
    ],
)
def test_the_verdict_explains_itself(window: list[TurnFingerprint], detail: str) -> None:
    assert progress(window, 3).detail == detail


@pytest.mark.parametrize(
    ("limit", "steps"),
    [
        (0, "none none none none"),
        (1, "block stop stop stop"),
        (2, "none block stop stop"),
        (3, "none warn block stop"),
        (4, "none none warn block"),
    ],
)
def test_escalation_warns_then_blocks_then_stops(limit: int, steps: str) -> None:
    assert [escalation(repeats, limit) for repeats in range(4)] == [
        Escalation(step) for step in steps.split()
    ]


@given(limit=st.integers(1, 60))
def test_every_step_of_the_escalation_is_reached_in_order(limit: int) -> None:
    steps = [escalation(repeats, limit) for repeats in range(limit + 2)]

    assert [list(Escalation).index(step) for step in steps] == sorted(
        list(Escalation).index(step) for step in steps
    )
    assert steps[limit] is Escalation.STOP
    assert Escalation.STOP not in steps[:limit]


def judge(window: Sequence[TurnFingerprint], limit: int) -> Escalation:
    verdict = progress(window, limit)
    return escalation(verdict.observed, verdict.limit)


@pytest.mark.parametrize(("kind", "patience", "turns"), KINDS.values(), ids=KINDS)
def test_a_blocked_call_counts_as_the_repeat_it_was(
    kind: StallKind, patience: int, turns: list[TurnFingerprint]
) -> None:
    window = turns[: 3 * patience]
    assert judge(window, 3) is Escalation.BLOCK

    blocked = expected(window, stall(window, 3))
    assert blocked is not None
    window.append(blocked)

    assert judge(window, 3) is Escalation.STOP
    assert kind is stall(window, 3).kind


def test_the_turn_to_block_in_an_alternation_is_the_next_of_the_cycle() -> None:
    window = [A, B] * 3

    blocked = expected(window, stall(window, 3))

    assert blocked == A
    assert blocked is not None
    assert blocked.calls == call_keys([("F", '{"n":"a"}')])


def test_an_empty_window_expects_nothing() -> None:
    assert expected([], Stall(None)) is None
    assert expected([A], stall([A], 1)) == A


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_an_identical_success_is_counted_before_it_is_made_again(limit: int) -> None:
    assert [repeated_success(n, limit).ok for n in (limit - 1, limit, limit + 1)] == [True, False, False]
    polls = [
        repeated_success(n, limit, "poll").ok for n in (limit * POLL_PATIENCE - 1, limit * POLL_PATIENCE)
    ]
    assert polls == [True, False]
    assert repeated_success(10**6, limit, "cumulative").ok


@given(successes=st.integers(0, 1000), limit=st.integers(1, 100))
def test_a_patient_policy_never_refuses_what_strict_allows(successes: int, limit: int) -> None:
    assert repeated_success(successes, limit).ok <= repeated_success(successes, limit, "poll").ok


@pytest.mark.parametrize("policy", ["strict", "poll", "cumulative"])
def test_the_verdict_on_a_repeated_success_has_its_numbers(policy: Policy) -> None:
    verdict = repeated_success(7, 2, policy)
    allowed = {"strict": 2, "poll": 2 * POLL_PATIENCE, "cumulative": 0}[policy]
    assert verdict == (policy != "strict", "repeated_success", 7, allowed, "")


def test_a_cycle_is_looked_for_in_so_many_turns_and_no_more() -> None:
    """A stored window has these lengths, and README.md names the numbers."""
    assert (WINDOW, MAX_PERIOD, POLL_PATIENCE, CHANGE_PATIENCE) == (16, 8, 10, 2)
    assert [window_size(limit) for limit in (0, 1, 3)] == [16, 22, 62]
    others = [turn(name) for name in range(MAX_PERIOD - 2)]
    longer = [A, B, *others, A] * 4
    assert stall(longer, 3).kind is None


def test_a_window_is_large_enough_for_every_kind() -> None:
    assert window_size(0) == WINDOW
    assert all(window_size(limit) >= MAX_PERIOD * (limit + 1) for limit in range(1, 100))
    assert all(window_size(limit) > limit * POLL_PATIENCE * CHANGE_PATIENCE for limit in range(1, 100))
