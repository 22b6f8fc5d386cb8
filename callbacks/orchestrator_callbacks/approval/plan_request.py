"""From a person's request to a valid plan. All answers of the planner are untrusted."""

from __future__ import annotations

from typing import Any

from orchestrator.machines.approval.intent import Extraction, Intent, decide_confidence
from orchestrator.machines.approval.model import ApprovalContext, ApprovalEvent, PlanStatus
from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator_callbacks.approval import control_request
from orchestrator_callbacks.approval.deps import ApprovalRun


async def understood(run: ApprovalRun) -> ApprovalEvent:
    """Extract the person's intent and its confidence.

    A cancel that arrives meanwhile takes effect when the planner has answered; the answer is dropped.
    """
    ctx = run.ctx
    if ctx.confirmed and ctx.intent is not None:
        return ApprovalEvent.INTENT_VALIDATED
    extraction = await run.deps.actions.extract(run)
    if control_request.taken(run, "cancel"):
        return ApprovalEvent.INTENT_REJECTED
    return _decided(ctx, extraction, run.deps.limits.proceed, run.deps.limits.confirm)


def _decided(ctx: ApprovalContext, extraction: Extraction, proceed: float, confirm: float) -> ApprovalEvent:
    first, *others = extraction.intents
    sure = decide_confidence(first, proceed=proceed, confirm=confirm)
    if sure == "proceed":
        ctx.intent, ctx.queue = first.plain(), [one.plain() for one in others]
        return ApprovalEvent.INTENT_VALIDATED
    ctx.intent = None
    ctx.question = first.question or f"Is this what you want: {first.summary}"
    if sure == "confirm":
        ctx.kept, ctx.queue = first.plain(), [one.plain() for one in others]
    return ApprovalEvent.INTENT_REJECTED


async def planned(run: ApprovalRun) -> ApprovalEvent:
    """Request a plan. A cancel that arrives meanwhile drops it."""
    ctx = run.ctx
    plan_id, version = _name(ctx)
    plan = await run.deps.actions.draft(run, plan_id, version)
    if control_request.taken(run, "cancel"):
        return ApprovalEvent.CANCEL
    ctx.iteration += 1
    present(ctx, plan, run.deps.clock.time(), run.deps.limits.expiry_seconds)
    return ApprovalEvent.PLAN_VALIDATED


def _name(ctx: ApprovalContext) -> tuple[str, int]:
    """Return id and version of the next plan: another version if the person requested changes, else a new plan."""
    if ctx.changes and ctx.plan is not None:
        before = ApprovalPlan.read(ctx.plan)
        return before.id, before.version + 1
    return next_id(ctx), 1


def next_id(ctx: ApprovalContext) -> str:
    """Return an id that is unique in the project."""
    return f"plan-{ctx.number}" + (f"-{ctx.plan_number + 1}" if ctx.plan_number else "")


def present(ctx: ApprovalContext, plan: ApprovalPlan, now: float, seconds: float) -> None:
    """Make a plan the one that waits for approval; `now` is epoch seconds."""
    if plan.version == 1:
        ctx.plan_number += 1
    ctx.plan, ctx.plan_status, ctx.failure = plan.plain(), PlanStatus.PENDING.value, ""
    ctx.versions = [*ctx.versions, {**_version(plan), "at": now}]
    ctx.expires_at = now + seconds if seconds else 0.0
    ctx.config = plan.caps_digest
    ctx.previewed, ctx.consent, ctx.changes = "", None, ""
    ctx.fault, ctx.conflicts, ctx.undone, ctx.again = None, [], [], []


def _version(plan: ApprovalPlan) -> dict[str, Any]:
    return {"id": plan.id, "version": plan.version, "digest": plan.digest, "plan": plan.plain()}


def intent_of(ctx: ApprovalContext) -> Intent:
    """Return the intent of the current plan."""
    return Intent.read(ctx.intent or {})
