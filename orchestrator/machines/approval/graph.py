"""The graph of approval: nine states and twenty-two edges, and the endings.

- A run is the life of one request: from Idle through its plan, a person's approval and the steps, back to Idle.
- Idle is a rest state: the graph has no terminal state. AwaitingApproval, Paused and Failed wait for a person;
  Completed continues unattended.
- `cancel` in AwaitingApproval has no edge of its own: it uses the edge of `reject`.
- No guard applies where no person is asked: an error in a working state always leads to Failed.
- Recovery after a crash is not an edge. `runtime/approval/session.py` does it and writes its own record.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import eq

from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.machines.approval.model import (
    GRAPH,
    ApprovalContext,
    ApprovalEvent,
    ApprovalState,
    PlanStatus,
)
from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator_guards import Verdict, present

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
    name=GRAPH,
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
