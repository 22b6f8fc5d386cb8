"""Mapping of exceptions to error codes. The text of an unknown exception is never stored."""

from __future__ import annotations

from collections.abc import Awaitable

from orchestrator.errors import Corrupt, JournalError, LLMError, OrchestratorError
from orchestrator.machines.approval.fault import RULES, ApprovalError, Fault
from orchestrator.machines.approval.model import ApprovalEvent

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (Corrupt, "ST-002"),
    (JournalError, "FS-010"),
    (TimeoutError, "AI-002"),
)
"""Type of an exception other than ApprovalError -> its code."""

_OF_PROVIDERS = {row.kind: row.code for row in RULES.values() if row.code.startswith("AI-")} | {
    "connection": "AI-002",
    "server_error": "AI-002",
}
"""Kind of a provider's error -> its code."""


async def known(work: Awaitable[ApprovalEvent]) -> ApprovalEvent:
    """Return the event of a state's work. Converts every exception to ApprovalError or JournalError.

    The record of a failure contains the error's text, and the text of an unknown exception may contain a key or a
    prompt.
    """
    try:
        return await work
    except (ApprovalError, JournalError):
        raise
    except Exception as error:
        raise ApprovalError(fault_of(error)) from error


def fault_of(error: Exception | None) -> Fault:
    """Return the fault of an exception."""
    if isinstance(error, ApprovalError):
        return error.fault
    if isinstance(error, LLMError):
        return Fault(_OF_PROVIDERS.get(error.kind, "AI-002"), str(error))
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "ST-008")
    if isinstance(error, OrchestratorError):
        return Fault(code, str(error))
    return Fault(code, f"an unexpected {type(error).__name__}", technical_detail=type(error).__name__)
