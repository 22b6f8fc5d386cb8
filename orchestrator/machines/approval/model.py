"""States, events and context of approval. Plain data: it can be stored, and a run can go on from it.

A run is the life of one request: from Idle through its plan, a person's approval and the steps, back to Idle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar


class ApprovalState(StrEnum):
    """Seed 001's nine states."""

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
    """The triggers of seed 001's table."""

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
    """What became of a plan. The first four are seed 001's; the others say how an approved one went on."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Consent:
    """What a person has approved: exactly this plan, and nothing that looks like it."""

    plan_id: str
    version: int
    digest: str
    by: str
    at: float
    """Epoch seconds."""


@dataclass(slots=True)
class ApprovalContext:
    """Everything a run of approval knows. Which steps are done follows from their own records."""

    conversation_id: ClassVar[str | None] = None
    """A run of approval is part of no conversation."""

    number: int = 1
    """Which request of the project this is, from 1."""
    iteration: int = 0
    """Plans that were made so far, versions included."""
    request: str = ""
    """What the person wrote."""
    intent: dict[str, Any] | None = None
    """The intent that is being planned for."""
    kept: dict[str, Any] | None = None
    """An intent that waits for the person to confirm it."""
    question: str = ""
    """What the person is asked about it."""
    confirmed: bool = False
    """The person confirmed `intent`: nobody is asked again."""
    queue: list[dict[str, Any]] = field(default_factory=list)
    """Further intents of a composite request: one plan each, in their order."""
    changes: str = ""
    """What the person wants to be otherwise in the next version."""

    plan: dict[str, Any] | None = None
    """The present plan in its present version."""
    plan_status: str = ""
    versions: list[dict[str, Any]] = field(default_factory=list)
    """Every version of every plan of this run, as it was: id, version, digest, plan, and `at` (epoch seconds)."""
    completed: list[str] = field(default_factory=list)
    """Labels of the plans that were carried out to their end: no later rollback takes them back."""
    plan_number: int = 0
    """Plans with an id of their own so far."""
    expires_at: float = 0.0
    """Until when (epoch seconds) the plan may be approved, or begun once it is; 0: never."""
    config: str = ""
    """Fingerprint of the limits that the plan was made under."""
    previewed: str = ""
    """Digest of the plan that the person has been shown."""
    consent: Consent | None = None
    fault: dict[str, Any] | None = None
    """The error that led to Failed: code, category, severity, message, …"""
    shown: bool = False
    """The person has seen that error."""
    why: str = ""
    """Why the person decided as they did last, in their words."""
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    """Files that the last rollback kept, because somebody else has changed them."""
    undone: list[str] = field(default_factory=list)
    """Files that the last rollback put back."""
    again: list[str] = field(default_factory=list)
    """Keys of commands that may have run, and that a person lets run again: once, for the next try has another key."""
    recovery: dict[str, Any] | None = None
    """What the last recovery found and did."""
