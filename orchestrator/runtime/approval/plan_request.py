"""Requests to a planner, repeated until the answer is valid or the retries of the error table are used up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from orchestrator.kernel.abandonment import host_call, host_function
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.llm.retry import RetryAttempt
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.intent import LONGEST_REQUEST, Extraction, Intent
from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator.machines.approval.ports import ApprovalPlanner, PlanRequest
from orchestrator.runtime.approval.retry_policy import RETRIES
from orchestrator.runtime.approval.workspace import Workspace

OnAttempt: TypeAlias = Callable[[RetryAttempt], None]


async def extracted(
    planner: ApprovalPlanner, text: str, *, on_attempt: OnAttempt | None = None, clock: Clock | None = None
) -> Extraction:
    """Return the intents of a person. Raises ApprovalError after the retries of its code."""
    if not text.strip():
        raise ApprovalError(Fault("VAL-001", "the request is empty; describe the change"))
    if len(text) > LONGEST_REQUEST:
        said = f"the request has {len(text)} characters, at most {LONGEST_REQUEST} are allowed"
        raise ApprovalError(Fault("VAL-001", said))
    extract = host_function(planner.extract, "stage", "planner")
    return await RETRIES.call(extract, text, on_attempt=on_attempt, clock=clock or SystemClock())


async def drafted(
    planner: ApprovalPlanner,
    workspace: Workspace,
    request: PlanRequest,
    *,
    plan_id: str,
    version: int,
    on_attempt: OnAttempt | None = None,
    clock: Clock | None = None,
) -> ApprovalPlan:
    """Return a valid plan. A planner that can make another plan receives the faults of the last one.

    Raises ApprovalError after the retries of its code.
    """
    asked = request

    async def attempt() -> ApprovalPlan:
        nonlocal asked
        draft = await host_call(planner.plan(asked), "stage", "planner")
        try:
            return await workspace.validated(draft, plan_id=plan_id, version=version, intent=request.intent)
        except ApprovalError as fault:
            asked = replace(asked, faults=fault.faults)
            fault.retryable = fault.retryable and planner.regenerates
            raise

    return await RETRIES.call(attempt, on_attempt=on_attempt, clock=clock or SystemClock())


def intent_text(intent: Intent) -> str:
    """Return an intent as text for a model: the summary, then the constraints."""
    lines = [f"{intent.kind.value}: {intent.summary}"]
    lines += [f"{one.strength.value}: {one.text}" for one in intent.constraints]
    return "\n".join(lines)
