"""Gates: whichever are shut, a person is told of the most important one."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator_guards import GATES, BlockedGate, first_blocked

# Seed 001's knowledge base (systems.md 5.2), in its order.
ORDER = [
    *("state", "project_open", "not_cancelling", "plan", "drift", "ai", "token_budget", "limits"),
    *("preview_acknowledged", "logging_ready"),
]


def test_the_gates_are_those_of_the_seed_in_its_order() -> None:
    assert list(GATES) == ORDER


def test_of_any_two_shut_gates_the_one_before_is_told() -> None:
    for first, second in combinations(ORDER, 2):
        shut = [BlockedGate(second, "b"), BlockedGate(first, "a")]
        assert first_blocked(shut) == (first, "a", (), False, "")
        assert first_blocked(reversed(shut)) == BlockedGate(first, "a")


@given(st.lists(st.one_of(st.none(), st.sampled_from(GATES).map(lambda gate: BlockedGate(gate, gate)))))
def test_it_is_one_of_those_asked_and_none_where_all_are_open(found: list[BlockedGate | None]) -> None:
    told = first_blocked(found)
    shut = [one.gate for one in found if one is not None]
    assert (None if told is None else told.gate) == min(shut, key=GATES.index, default=None)


def test_of_two_that_are_the_same_gate_the_first_is_told() -> None:
    assert first_blocked([BlockedGate("drift", "one"), BlockedGate("drift", "two")]) == BlockedGate(
        "drift", "one"
    )
