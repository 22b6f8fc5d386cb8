"""Outcome and reason of a run of the loop, from terminal state and error.

A blocked planner and a task that failed too often lead to Failed by their own edges, with the blockers kept. Every
other failure comes with an error.
"""

from __future__ import annotations

from typing import Any

from orchestrator.errors import (
    CancelRequested,
    DeadlineExceeded,
    JournalError,
    LimitReached,
    LLMError,
    Refused,
    RejectRequested,
    StateTimeout,
)
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.ralph.fault import AgentFailed, AgentOutputInvalid
from orchestrator.machines.ralph.model import RalphContext, RalphState
from orchestrator_guards import Verdict

LIMITS = {
    "iterations": "max_iterations",
    "replans": "max_iterations",
    "task_attempts": "max_task_attempts",
    "qa_cycles": "max_qa_cycles",
}
"""Guards whose refusal ends a run as failed -> its reason."""

BUDGETS = ("tokens", "cost", "cost_unknown")
"""Guards whose refusal ends a run as budget_exceeded, with the name of the guard as its reason."""

_FAILURES: tuple[tuple[type[Exception], str], ...] = (
    (StateTimeout, "state_timeout"),
    (JournalError, "journal_error"),
    (LLMError, "llm_error"),
    (AgentOutputInvalid, "completion_invalid"),
    (AgentFailed, "stage_error"),
)

_EVENT_REASONS = {
    "guard_error": "guard_error",
    "undeclared_edge": "invalid_transition",
    "unknown_event": "invalid_transition",
    "refused": "policy_stop",
    "callback_error": "callback_error",
}
"""Reason of the first failed event -> reason of `failed`, if the type of the error gives none."""


def ending(run: Run[RalphContext, Any]) -> Ending:
    """Return outcome and reason of a run in a terminal state."""
    error = run.error
    if run.state == RalphState.DONE:
        return Ending(Outcome.COMPLETED, "none")
    if isinstance(error, RejectRequested):
        return Ending(Outcome.REJECTED, "operator")
    if isinstance(error, CancelRequested):
        return Ending(Outcome.CANCELLED, error.reason)
    if isinstance(error, DeadlineExceeded):
        return Ending(Outcome.BUDGET_EXCEEDED, "time")
    verdict = limit_of(error)
    if verdict is not None and verdict.guard in BUDGETS:
        return Ending(Outcome.BUDGET_EXCEEDED, verdict.guard)
    return Ending(Outcome.FAILED, _reason(run, error))


def limit_of(error: Exception | None) -> Verdict | None:
    """Return the refusal of one of the loop's guards in an error, or None."""
    verdict = error.verdict if isinstance(error, Refused | LimitReached) else None
    return verdict if isinstance(verdict, Verdict) and verdict.guard in {*LIMITS, *BUDGETS} else None


def _reason(run: Run[RalphContext, Any], error: Exception | None) -> str:
    if error is None:  # by its own edge: too many attempts, or a blocked planner
        return "planner_blocked" if run.ctx.verdict is None else LIMITS[run.ctx.verdict.guard]
    verdict = limit_of(error)
    if verdict is not None:
        return LIMITS[verdict.guard]
    for kind, reason in _FAILURES:
        if isinstance(error, kind):
            return reason
    if run.ctx.fault is not None:
        return run.ctx.fault
    if run.failure is None:
        return "internal"
    return _EVENT_REASONS.get(run.failure.reason, "internal")
