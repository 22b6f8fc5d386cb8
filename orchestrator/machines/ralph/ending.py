"""How a run of the loop ended: one table from terminal state and error to outcome and reason.

A planner that is blocked and a task that failed too often lead to Failed by edges of their own, with the blockers kept
(R4, R13); every other failure comes with an error.
"""

from __future__ import annotations

from typing import Any

from orchestrator.errors import (
    CancelRequested,
    DeadlineExceeded,
    JournalError,
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

LIMITS = ("iterations", "qa_cycles", "replans", "task_attempts")
"""Guards whose refusal ends a run as failed, reason max_iterations."""

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
"""Reason of the first failed event -> reason of `failed`, where the error's type says nothing."""


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
    return Ending(Outcome.FAILED, _reason(run, error))


def limit_of(error: Exception | None) -> Verdict | None:
    """Return the refusal of one of our guards that an error tells of."""
    verdict = error.verdict if isinstance(error, Refused) else None
    return verdict if isinstance(verdict, Verdict) and verdict.guard in LIMITS else None


def _reason(run: Run[RalphContext, Any], error: Exception | None) -> str:
    if error is None:  # by an edge of its own: too many attempts, or a planner that cannot go on
        return "max_iterations" if run.ctx.verdict is not None else "policy_stop"
    if limit_of(error) is not None:
        return "max_iterations"
    for kind, reason in _FAILURES:
        if isinstance(error, kind):
            return reason
    if run.ctx.fault is not None:
        return run.ctx.fault
    if run.failure is None:
        return "internal"
    return _EVENT_REASONS.get(run.failure.reason, "internal")
