"""Outcome and reason of a request, from the status of its plan."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.machines.approval.model import ApprovalContext, PlanStatus

_ENDINGS: Mapping[str, Ending] = {
    PlanStatus.COMPLETED: Ending(Outcome.COMPLETED, "none"),
    PlanStatus.CANCELLED: Ending(Outcome.CANCELLED, "caller"),
    PlanStatus.REJECTED: Ending(Outcome.REJECTED, "operator"),
    PlanStatus.FAILED: Ending(Outcome.FAILED, "policy_stop"),
    PlanStatus.EXPIRED: Ending(Outcome.FAILED, "policy_stop"),
}


def ending(ctx: ApprovalContext) -> Ending:
    """Return outcome and reason of a finished request; a request without a plan counts as rejected."""
    return _ENDINGS.get(ctx.plan_status, Ending(Outcome.REJECTED, "operator"))
