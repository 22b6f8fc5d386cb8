"""The graph of approval: nine states and twenty-two edges, its context, and the endings.

- A run is the life of one request: from Idle through its plan, a person's approval and the steps, back to Idle.
- Idle is a rest state: the graph has no terminal state. AwaitingApproval, Paused and Failed wait for a person;
  Completed continues unattended.
- `cancel` in AwaitingApproval has no edge of its own: it uses the edge of `reject`.
- No guard applies where no person is asked: an error in a working state always leads to Failed.
- Recovery after a crash is not an edge. `runtime/approval/session.py` does it and writes its own record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import eq
from typing import Any, ClassVar

from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator_guards import Verdict, present

# ---- states, events and context ----


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


# ---- the graph ----


E = ApprovalEvent
S = ApprovalState


def has_request(ctx: ApprovalContext) -> Verdict:
    """Return whether there is a request to extract an intent from. A confirmed intent is enough."""
    return _explained(present(len(ctx.request.strip())), "there is no request")


def is_approved(ctx: ApprovalContext) -> Verdict:
    """Return whether a person approved exactly this plan. A plan that differs by one byte is another plan.

    Counts the equal ones of id, version and digest; all three are needed.
    """
    consent, equal = ctx.consent, 0
    if consent is not None and ctx.plan is not None:
        plan = ApprovalPlan.read(ctx.plan)
        approved = (consent.plan_id, consent.version, consent.digest)
        equal = sum(map(eq, approved, (plan.id, plan.version, plan.digest)))
    return _explained(present(equal, 3), "nobody approved this plan")


def has_intent(ctx: ApprovalContext) -> Verdict:
    """Return whether there is an intent to plan for again.

    A failure before the first intent can only be acknowledged.
    """
    return _explained(present(int(ctx.intent is not None)), "there is no intent")


def is_shown(ctx: ApprovalContext) -> Verdict:
    """Return whether the error was shown to the person. Checked before it is acknowledged."""
    return _explained(present(int(ctx.shown)), "the error was not shown yet")


def _explained(verdict: Verdict, why: str) -> Verdict:
    return verdict if verdict.ok else verdict._replace(detail=why)


APPROVAL = Graph(
    name="approval",
    states=ApprovalState,
    events=ApprovalEvent,
    initial=S.IDLE,
    rest=frozenset((S.IDLE,)),
    waiting=frozenset((S.AWAITING_APPROVAL, S.PAUSED, S.FAILED, S.COMPLETED)),
    failure={
        S.EXTRACTING_INTENT: E.AI_ERROR,
        S.PLANNING: E.PLAN_INVALID,
        S.EXECUTING: E.STEP_FAILED,
        S.CANCELLING: E.ROLLBACK_FAILED,
    },
    context=ApprovalContext,
    dwell={
        S.EXTRACTING_INTENT: (900.0, E.AI_ERROR),
        S.PLANNING: (3600.0, E.PLAN_INVALID),
        S.EXECUTING: (7200.0, E.STEP_FAILED),
        S.CANCELLING: (3600.0, E.ROLLBACK_FAILED),
        S.AWAITING_APPROVAL: None,  # the plan expires by the wall clock, even while no process lives
        S.PAUSED: None,
        S.FAILED: None,
        S.COMPLETED: None,
    },
    edges=(
        #    event               from                     to                    only when
        Edge(E.SUBMIT,           (S.IDLE,),               S.EXTRACTING_INTENT,  has_request),
        Edge(E.INTENT_VALIDATED, (S.EXTRACTING_INTENT,),  S.PLANNING),
        Edge(E.INTENT_REJECTED,  (S.EXTRACTING_INTENT,),  S.IDLE),
        Edge(E.AI_ERROR,         (S.EXTRACTING_INTENT,),  S.FAILED),
        Edge(E.PLAN_VALIDATED,   (S.PLANNING,),           S.AWAITING_APPROVAL),
        Edge(E.PLAN_INVALID,     (S.PLANNING,),           S.FAILED),
        Edge(E.CANCEL,           (S.PLANNING,),           S.IDLE),
        Edge(E.APPROVE,          (S.AWAITING_APPROVAL,),  S.EXECUTING,          is_approved),
        Edge(E.REJECT,           (S.AWAITING_APPROVAL,),  S.IDLE),
        Edge(E.REQUEST_CHANGES,  (S.AWAITING_APPROVAL,),  S.PLANNING),
        Edge(E.STEPS_COMPLETED,  (S.EXECUTING,),          S.COMPLETED),
        Edge(E.STEP_FAILED,      (S.EXECUTING,),          S.FAILED),
        Edge(E.PAUSE,            (S.EXECUTING,),          S.PAUSED),
        Edge(E.CANCEL,           (S.EXECUTING,),          S.CANCELLING),
        Edge(E.RESUME,           (S.PAUSED,),             S.EXECUTING,          is_approved),
        Edge(E.CANCEL,           (S.PAUSED,),             S.CANCELLING),
        Edge(E.RESUME_FAILED,    (S.PAUSED,),             S.FAILED),
        Edge(E.ACKNOWLEDGE,      (S.FAILED,),             S.IDLE,               is_shown),
        Edge(E.RETRY,            (S.FAILED,),             S.PLANNING,           has_intent),
        Edge(E.ACKNOWLEDGE,      (S.COMPLETED,),          S.IDLE),
        Edge(E.ROLLBACK_FINISHED, (S.CANCELLING,),        S.IDLE),
        Edge(E.ROLLBACK_FAILED,  (S.CANCELLING,),         S.FAILED),
    ),
)  # fmt: skip


# ---- endings ----


_ENDINGS: Mapping[str, Ending] = {
    PlanStatus.COMPLETED: Ending(Outcome.COMPLETED, "none"),
    PlanStatus.CANCELLED: Ending(Outcome.CANCELLED, "caller"),
    PlanStatus.REJECTED: Ending(Outcome.REJECTED, "operator"),
    PlanStatus.FAILED: Ending(Outcome.FAILED, "policy_stop"),
    PlanStatus.EXPIRED: Ending(Outcome.FAILED, "policy_stop"),
}


def ending(ctx: ApprovalContext) -> Ending:
    """Return outcome and reason of a finished request; one without a plan and without an error counts as rejected."""
    if ctx.plan_status in _ENDINGS or not ctx.failure:
        return _ENDINGS.get(ctx.plan_status, Ending(Outcome.REJECTED, "operator"))
    if ctx.failure == _UNUSABLE:
        return Ending(Outcome.FAILED, "completion_invalid")
    return Ending(Outcome.FAILED, "llm_error" if ctx.failure.startswith("AI-") else "policy_stop")


_UNUSABLE = "AI-005"
"""Code of an answer of a model that cannot be used."""
