"""Quality: grade a judge's score, and choose the correction for insufficient work. Pure.

The caller sets thresholds and category names; scores are on the caller's scale, higher is better. A score that is not
a number is the worst one: work that could not be judged never passes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple


class Grade(StrEnum):
    """The grade of a score."""

    APPROVE = "approve"
    SOFT = "soft"
    HARD = "hard"


class Fix(StrEnum):
    """The correction for work that was not approved."""

    REFINE = "refine_implementation"
    REPLAN = "replan"


class Analysis(NamedTuple):
    """The analysis of a score."""

    grade: Grade
    fix: Fix | None
    """None for approved work."""
    failing: tuple[str, ...] = ()
    """Categories that scored below the threshold, in alphabetical order."""


def grade(score: float, approve: float, hard: float) -> Grade:
    """Return the grade of a score: `approve` and `hard` are the minimum scores for approval and for refinement.

    Example:
        >>> [grade(score, 7.0, 5.0).value for score in (7.0, 6.9, 5.0, 4.9, float("nan"))]
        ['approve', 'soft', 'soft', 'hard', 'hard']
    """
    if score >= approve:
        return Grade.APPROVE
    return Grade.SOFT if score >= hard else Grade.HARD


def analysis(  # noqa: PLR0917 - the values of one rubric
    score: float,
    categories: Mapping[str, float],
    approve: float,
    hard: float,
    category: float,
    of_plan: Collection[str],
    of_implementation: Collection[str],
) -> Analysis:
    """Choose the correction for a score: the majority of the categories below `category` decides.

    A score below `hard` means a new plan, independent of the categories. Otherwise each failing category votes for
    its owner, plan or implementation; on a tie the plan is corrected. Without a failing category of an owner the
    score is soft, so the implementation is refined.

    Example:
        >>> analysis(6.0, {"a": 4.0, "b": 9.0}, 7.0, 5.0, 6.0, ("a",), ("b",)).fix.value
        'replan'
    """
    amounts = grade(score, approve, hard)
    failing = tuple(sorted(name for name, value in categories.items() if not value >= category))
    if amounts is Grade.APPROVE:
        return Analysis(amounts, None, failing)
    plan = sum(name in of_plan for name in failing)
    implementation = sum(name in of_implementation for name in failing)
    replan = amounts is Grade.HARD or (plan > 0 and plan >= implementation)
    return Analysis(amounts, Fix.REPLAN if replan else Fix.REFINE, failing)
