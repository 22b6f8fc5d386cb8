"""Limit the attempts at one piece of work. Same contract as `budget`.

A guard takes (attempts so far, limit) before the next attempt; ok iff `limit == 0 or attempts < limit`.
"""

from __future__ import annotations

from orchestrator_guards.verdict import Verdict


def structured_retries(attempts: int, limit: int) -> Verdict:
    """Decide whether the model may repair output that does not match the schema. `attempts`: repairs so far.

    Example:
        >>> [structured_retries(attempts, 2).ok for attempts in (0, 1, 2)]
        [True, True, False]
    """
    return Verdict(limit == 0 or attempts < limit, "structured_retries", attempts, limit)


def completion_retries(attempts: int, limit: int) -> Verdict:
    """Decide whether an unusable answer (empty, an error object) may be requested again.

    `attempts`: repeated requests of the run so far.
    """
    return Verdict(limit == 0 or attempts < limit, "completion_retries", attempts, limit)


def task_attempts(attempts: int, limit: int) -> Verdict:
    """Decide whether one task may be executed once more. `attempts`: executions of that task so far."""
    return Verdict(limit == 0 or attempts < limit, "task_attempts", attempts, limit)


def refinements(attempts: int, limit: int) -> Verdict:
    """Decide whether nearly good work may be refined once more. `attempts`: refinements of the run so far."""
    return Verdict(limit == 0 or attempts < limit, "refinements", attempts, limit)


def qa_cycles(attempts: int, limit: int) -> Verdict:
    """Decide whether one more question and answer cycle may start. `attempts`: cycles so far."""
    return Verdict(limit == 0 or attempts < limit, "qa_cycles", attempts, limit)


def planning_retries(attempts: int, limit: int) -> Verdict:
    """Decide whether an invalid plan may be written again. `attempts`: rewrites so far."""
    return Verdict(limit == 0 or attempts < limit, "planning_retries", attempts, limit)


def replans(attempts: int, limit: int) -> Verdict:
    """Decide whether the run may return to planning once more. `attempts`: returns so far."""
    return Verdict(limit == 0 or attempts < limit, "replans", attempts, limit)
