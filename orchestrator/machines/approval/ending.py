"""Outcome and reason of a request, from the status of its plan, or from the error because of which it has none."""

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
    """Return outcome and reason of a finished request; one without a plan and without an error counts as rejected."""
    if ctx.plan_status in _ENDINGS or not ctx.failure:
        return _ENDINGS.get(ctx.plan_status, Ending(Outcome.REJECTED, "operator"))
    if ctx.failure == _UNUSABLE:
        return Ending(Outcome.FAILED, "completion_invalid")
    return Ending(Outcome.FAILED, "llm_error" if ctx.failure.startswith("AI-") else "policy_stop")


_UNUSABLE = "AI-005"
"""Code of an answer of a model that cannot be used."""
