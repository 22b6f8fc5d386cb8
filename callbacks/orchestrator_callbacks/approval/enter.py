"""`enter_<state>`: the work of each state of approval. Each returns the event that leaves its state."""

from __future__ import annotations

from orchestrator.machines.approval.model import ApprovalEvent
from orchestrator_callbacks.approval import execution
from orchestrator_callbacks.approval import plan_request as request
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_callbacks.approval.error_mapping import known


async def enter_extracting_intent(run: ApprovalRun) -> ApprovalEvent:
    """Find out what the person wants."""
    return await known(request.understood(run))


async def enter_planning(run: ApprovalRun) -> ApprovalEvent:
    """Have a plan made for it."""
    return await known(request.planned(run))


async def enter_executing(run: ApprovalRun) -> ApprovalEvent:
    """Carry out what the person approved."""
    return await known(execution.carried_out(run))


async def enter_cancelling(run: ApprovalRun) -> ApprovalEvent:
    """Take back what was carried out."""
    return await known(execution.taken_back(run))


async def enter_completed(_run: ApprovalRun) -> ApprovalEvent:
    """Go on to Idle: nobody need say so."""
    return ApprovalEvent.ACKNOWLEDGE
