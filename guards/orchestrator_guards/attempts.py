"""Attempts: how often one piece of work may be tried. Same contract as `budget`.

(attempts made so far, limit) in, ok iff `limit == 0 or attempts < limit`, asked before the next one.
"""

from __future__ import annotations

from orchestrator_guards.verdict import Verdict


def structured_retries(attempts: int, limit: int) -> Verdict:
    """May the model be asked again for output that fits the schema? `attempts`: repairs asked so far.

    Example:
        >>> [structured_retries(attempts, 2).ok for attempts in (0, 1, 2)]
        [True, True, False]
    """
    return Verdict(limit == 0 or attempts < limit, "structured_retries", attempts, limit)


def completion_retries(attempts: int, limit: int) -> Verdict:
    """May an unusable answer (empty, an error object) be asked again? `attempts`: so far in this run."""
    return Verdict(limit == 0 or attempts < limit, "completion_retries", attempts, limit)


def task_attempts(attempts: int, limit: int) -> Verdict:
    """May one task be executed once more? `attempts`: executions of that task so far."""
    return Verdict(limit == 0 or attempts < limit, "task_attempts", attempts, limit)


def refinements(attempts: int, limit: int) -> Verdict:
    """May work that was judged nearly good enough be refined once more? `attempts`: refinements of the run so far."""
    return Verdict(limit == 0 or attempts < limit, "refinements", attempts, limit)


def qa_cycles(attempts: int, limit: int) -> Verdict:
    """May one more question and answer cycle start? `attempts`: cycles so far."""
    return Verdict(limit == 0 or attempts < limit, "qa_cycles", attempts, limit)


def planning_retries(attempts: int, limit: int) -> Verdict:
    """May a plan that did not validate be written again? `attempts`: rewrites so far."""
    return Verdict(limit == 0 or attempts < limit, "planning_retries", attempts, limit)


def replans(attempts: int, limit: int) -> Verdict:
    """May the run go back to planning once more? `attempts`: returns to planning so far."""
    return Verdict(limit == 0 or attempts < limit, "replans", attempts, limit)
