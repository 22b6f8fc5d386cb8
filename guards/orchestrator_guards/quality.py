"""Quality: what a judge's score means, and what to do about work that was not good enough. Pure.

Thresholds and the names of categories are data of the caller; scores are on the caller's scale, higher is better.
A score that is no number is the worst there is: nothing passes because it could not be judged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple


class Grade(StrEnum):
    """What a score amounts to."""

    APPROVE = "approve"
    SOFT = "soft"
    HARD = "hard"


class Fix(StrEnum):
    """What to do about work that was not approved."""

    REFINE = "refine_implementation"
    REPLAN = "replan"


class Analysis(NamedTuple):
    """A score, looked at."""

    grade: Grade
    fix: Fix | None
    """None where it is approved."""
    failing: tuple[str, ...] = ()
    """Categories that scored below the threshold, in alphabetical order."""


def grade(score: float, approve: float, hard: float) -> Grade:
    """Return what a score amounts to: `approve` and `hard` are the least scores that pass, and that can be refined.

    Example:
        >>> [grade(score, 7.0, 5.0).value for score in (7.0, 6.9, 5.0, 4.9, float("nan"))]
        ['approve', 'soft', 'soft', 'hard', 'hard']
    """
    if score >= approve:
        return Grade.APPROVE
    return Grade.SOFT if score >= hard else Grade.HARD


def analysis(  # noqa: PLR0917 - thresholds and sets of one rubric
    score: float,
    categories: Mapping[str, float],
    approve: float,
    hard: float,
    category: float,
    of_plan: Collection[str],
    of_implementation: Collection[str],
) -> Analysis:
    """Find out what to do about a score: the majority of the categories below `category` decides.

    A score below `hard` means a new plan, whatever failed. Otherwise each failing category votes for where it belongs;
    with a tie the plan is at fault. Where nothing failed that belongs anywhere, the score speaks alone: it is soft, so
    the implementation is refined. Source: seed 000's failure analysis.

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
