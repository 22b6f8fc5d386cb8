"""Asking a planner until what it says may be shown to a person, as often as the table of errors allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

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
    """Return what a person wants. Raises Faulted, after the tries that its code allows."""
    if not text.strip():
        raise ApprovalError(Fault("VAL-001", "there is nothing to do: the request is empty"))
    if len(text) > LONGEST_REQUEST:
        said = f"the request has {len(text)} characters, at most {LONGEST_REQUEST} are allowed"
        raise ApprovalError(Fault("VAL-001", said))
    return await RETRIES.call(planner.extract, text, on_attempt=on_attempt, clock=clock or SystemClock())


async def drafted(
    planner: ApprovalPlanner,
    ground: Workspace,
    request: PlanRequest,
    *,
    plan_id: str,
    version: int,
    on_attempt: OnAttempt | None = None,
    clock: Clock | None = None,
) -> ApprovalPlan:
    """Return a plan that keeps all rules. A planner that can make another one is told what was wrong with the last.

    Raises Faulted, after the tries that its code allows.
    """
    asked = request

    async def attempt() -> ApprovalPlan:
        nonlocal asked
        draft = await planner.plan(asked)
        try:
            return await ground.validated(draft, plan_id=plan_id, version=version, intent=request.intent)
        except ApprovalError as fault:
            asked = replace(asked, faults=fault.faults)
            fault.retryable = fault.retryable and planner.regenerates
            raise

    return await RETRIES.call(attempt, on_attempt=on_attempt, clock=clock or SystemClock())


def intent_text(intent: Intent) -> str:
    """Return an intent as text for a model: what is wanted, then what binds."""
    lines = [f"{intent.kind.value}: {intent.summary}"]
    lines += [f"{one.strength.value}: {one.text}" for one in intent.constraints]
    return "\n".join(lines)
