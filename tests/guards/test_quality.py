"""What scores amount to, and what is done about them: at every threshold, and as properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator_guards import Analysis, Fix, Grade, analysis, grade

PLAN, IMPLEMENTATION = ("a", "b"), ("x", "y", "z")
scores = st.floats(0, 10)
categories = st.dictionaries(st.sampled_from((*PLAN, *IMPLEMENTATION, "else")), scores)


def analysed(score: float, **categories: float) -> Analysis:
    return analysis(score, categories, 7.0, 5.0, 6.0, PLAN, IMPLEMENTATION)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (10.0, Grade.APPROVE),
        (7.0, Grade.APPROVE),
        (6.999, Grade.SOFT),
        (5.0, Grade.SOFT),
        (4.999, Grade.HARD),
        (0.0, Grade.HARD),
        (math.nan, Grade.HARD),
        (-math.inf, Grade.HARD),
    ],
)
def test_a_threshold_belongs_to_what_it_lets_pass(score: float, expected: Grade) -> None:
    assert grade(score, 7.0, 5.0) is expected


@pytest.mark.parametrize(
    ("failing", "fix"),
    [
        ("", Fix.REFINE),
        ("x", Fix.REFINE),
        ("a", Fix.REPLAN),
        ("ax", Fix.REPLAN),
        ("axy", Fix.REFINE),
        ("abxy", Fix.REPLAN),
        ("abxyz", Fix.REFINE),
        ("abx", Fix.REPLAN),
    ],
)
def test_the_majority_of_what_fails_decides_and_a_tie_is_the_plans_fault(failing: str, fix: Fix) -> None:
    found = analysed(6.0, **{name: 5.9 if name in failing else 6.0 for name in "abxyz"})

    assert found == Analysis(Grade.SOFT, fix, tuple(failing))


def test_a_category_that_belongs_nowhere_has_no_say() -> None:
    assert analysed(6.0, other=0.0) == Analysis(Grade.SOFT, Fix.REFINE, ("other",))


def test_a_category_without_a_number_is_failing() -> None:
    assert analysed(6.0, a=math.nan).fix is Fix.REPLAN


@given(score=scores, said=categories)
def test_what_is_approved_needs_no_fix_and_a_hard_failure_always_a_new_plan(
    score: float, said: dict[str, float]
) -> None:
    found = analysed(score, **said)

    assert (found.fix is None) == (score >= 7.0)
    assert score >= 5.0 or found.fix is Fix.REPLAN
    assert set(found.failing) == {name for name, value in said.items() if value < 6.0}


@given(low=scores, high=scores, said=categories)
def test_a_better_score_is_never_treated_worse(low: float, high: float, said: dict[str, float]) -> None:
    order = [Fix.REPLAN, Fix.REFINE, None]
    worse, better = (analysed(score, **said).fix for score in sorted((low, high)))

    assert order.index(worse) <= order.index(better)
