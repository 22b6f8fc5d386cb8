"""`enter_<state>`: the work of each state of approval. Each hook returns the event that leaves its state."""

from __future__ import annotations

from orchestrator.machines.approval.model import ApprovalEvent
from orchestrator_callbacks.approval import execution
from orchestrator_callbacks.approval import plan_request as request
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_callbacks.approval.error_mapping import known


async def enter_extracting_intent(run: ApprovalRun) -> ApprovalEvent:
    """Extract the person's intent."""
    return await known(request.understood(run))


async def enter_planning(run: ApprovalRun) -> ApprovalEvent:
    """Request a plan for the intent."""
    return await known(request.planned(run))


async def enter_executing(run: ApprovalRun) -> ApprovalEvent:
    """Execute the approved plan."""
    return await known(execution.execute_plan(run))


async def enter_cancelling(run: ApprovalRun) -> ApprovalEvent:
    """Revert the executed steps."""
    return await known(execution.taken_back(run))


async def enter_completed(_run: ApprovalRun) -> ApprovalEvent:
    """Return to Idle without waiting for a person."""
    return ApprovalEvent.ACKNOWLEDGE
