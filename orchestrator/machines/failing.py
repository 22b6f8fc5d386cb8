"""The reason of a failed run from its first error: one table for every graph."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import JournalError, LLMError, StateTimeout, ToolRaised
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run

_ERRORS: tuple[tuple[type[Exception], str], ...] = (
    (StateTimeout, "state_timeout"),
    (JournalError, "journal_error"),
    (LLMError, "llm_error"),
    (ToolRaised, "tool_error"),
)

_EVENTS = {
    "guard_error": "guard_error",
    "undeclared_edge": "invalid_transition",
    "unknown_event": "invalid_transition",
    "refused": "policy_stop",
    "callback_error": "callback_error",
}
"""Reason of the first failed event -> reason of `failed`, if the type of the error gives none."""


def reason_of(run: Run[Any, Any], error: Exception | None) -> str:
    """Return the reason of a failure.

    `run.ctx.fault`, set at the place of the error, is more specific than its type.
    """
    for kind, reason in _ERRORS:
        if isinstance(error, kind):
            return reason
    fault = getattr(run.ctx, "fault", None)  # the context of a host's machine may have none
    if fault is not None:
        return str(fault)
    if run.failure is None:
        return "internal"
    return _EVENTS.get(run.failure.reason, "internal")


def completed(output: object, reason: str) -> Ending:
    """Return the ending of a completed run: with `reason`, or `empty_answer` if its final answer is blank."""
    blank = isinstance(output, str) and not output.strip()
    return Ending(Outcome.COMPLETED, "empty_answer" if blank else reason)
