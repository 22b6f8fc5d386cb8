"""States, events and context of approval. Plain data, so that a run can be stored and resumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final

GRAPH: Final = "approval"
"""Name of the graph."""


class ApprovalState(StrEnum):
    """The nine states."""

    IDLE = "Idle"
    EXTRACTING_INTENT = "ExtractingIntent"
    PLANNING = "Planning"
    AWAITING_APPROVAL = "AwaitingApproval"
    EXECUTING = "Executing"
    PAUSED = "Paused"
    FAILED = "Failed"
    COMPLETED = "Completed"
    CANCELLING = "Cancelling"


class ApprovalEvent(StrEnum):
    """The events of the graph."""

    SUBMIT = "submit"
    INTENT_VALIDATED = "intent_validated"
    INTENT_REJECTED = "intent_rejected"
    AI_ERROR = "ai_error"
    PLAN_VALIDATED = "plan_validated"
    PLAN_INVALID = "plan_invalid"
    CANCEL = "cancel"
    APPROVE = "approve"
    REJECT = "reject"
    REQUEST_CHANGES = "request_changes"
    STEPS_COMPLETED = "steps_completed"
    STEP_FAILED = "step_failed"
    PAUSE = "pause"
    RESUME = "resume"
    RESUME_FAILED = "resume_failed"
    ACKNOWLEDGE = "acknowledge"
    RETRY = "retry"
    ROLLBACK_FINISHED = "rollback_finished"
    ROLLBACK_FAILED = "rollback_failed"


class PlanStatus(StrEnum):
    """Status of a plan. Completed, cancelled and failed are results of an approved plan."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Consent:
    """A person's approval of exactly one plan."""

    plan_id: str
    version: int
    digest: str
    by: str
    at: float
    """Epoch seconds."""


@dataclass(slots=True)
class ApprovalContext:
    """The data of an approval run. Its completed steps are known from their own records."""

    conversation_id: ClassVar[str | None] = None
    """A run of approval belongs to no conversation."""

    number: int = 1
    """Number of the request in the project, from 1."""
    iteration: int = 0
    """Plans made so far, including versions."""
    request: str = ""
    """Text of the person."""
    intent: dict[str, Any] | None = None
    """The intent that the plan is for."""
    kept: dict[str, Any] | None = None
    """An intent that waits for the person's confirmation."""
    question: str = ""
    """Question to the person about that intent."""
    confirmed: bool = False
    """The person confirmed `intent`, so it is not asked about again."""
    queue: list[dict[str, Any]] = field(default_factory=list)
    """Further intents of a composite request, one plan each, in their order."""
    changes: str = ""
    """Changes that the person requested for the next version."""

    plan: dict[str, Any] | None = None
    """The current plan in its current version."""
    plan_status: str = ""
    versions: list[dict[str, Any]] = field(default_factory=list)
    """Every version of every plan of this run: id, version, digest, plan, and `at` (epoch seconds)."""
    completed: list[str] = field(default_factory=list)
    """Labels of the plans that were executed completely. No later rollback reverts them."""
    plan_number: int = 0
    """Plans with their own id so far."""
    expires_at: float = 0.0
    """Epoch seconds until which the plan may be approved, or started after its approval. 0 means never."""
    config: str = ""
    """Fingerprint of the limits that applied when the plan was made."""
    previewed: str = ""
    """Digest of the plan that was shown to the person."""
    consent: Consent | None = None
    fault: dict[str, Any] | None = None
    """The error that led to Failed: code, category, severity, message, …"""
    shown: bool = False
    """That error was shown to the person."""
    failure: str = field(default="", metadata={"fingerprint": None})
    """Code of the error since the last valid plan, also after the person acknowledged it."""
    why: str = ""
    """Reason of the person's last decision."""
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    """Files that the last rollback kept, because they were changed outside."""
    undone: list[str] = field(default_factory=list)
    """Files that the last rollback restored."""
    again: list[str] = field(default_factory=list)
    """Keys of commands that may have run and that a person allows to run again once: the next attempt has a new key."""
    recovery: dict[str, Any] | None = None
    """Findings and actions of the last recovery."""
