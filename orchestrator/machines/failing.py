"""Why a run failed: one table from its first error to a reason, the same for every graph."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import JournalError, LLMError, StateTimeout
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run

_ERRORS: tuple[tuple[type[Exception], str], ...] = (
    (StateTimeout, "state_timeout"),
    (JournalError, "journal_error"),
    (LLMError, "llm_error"),
)

_EVENTS = {
    "guard_error": "guard_error",
    "undeclared_edge": "invalid_transition",
    "unknown_event": "invalid_transition",
    "refused": "policy_stop",
    "callback_error": "callback_error",
}
"""Reason of the first failed event -> reason of `failed`, where the error's type says nothing."""


def reason_of(run: Run[Any, Any], error: Exception | None) -> str:
    """Return the reason; `run.ctx.fault` is that of a place which knows better than the error's type."""
    for kind, reason in _ERRORS:
        if isinstance(error, kind):
            return reason
    if run.ctx.fault is not None:
        return str(run.ctx.fault)
    if run.failure is None:
        return "internal"
    return _EVENTS.get(run.failure.reason, "internal")


def completed(output: object, reason: str) -> Ending:
    """Return the end of a run that completed: with `reason`, but `empty_answer` where its final answer is blank."""
    blank = isinstance(output, str) and not output.strip()
    return Ending(Outcome.COMPLETED, "empty_answer" if blank else reason)
