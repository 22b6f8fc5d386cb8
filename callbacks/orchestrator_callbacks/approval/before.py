"""`before_<event>`: conditions of an event, and context changes that are durable together with the transition."""

from __future__ import annotations

from orchestrator.machines.approval.fault import GateRefused, fault_of
from orchestrator.machines.approval.model import PlanStatus
from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_guards import BlockedGate

EXPIRED = "the plan has expired"
SET_BACK = 60.0
"""Seconds that a clock may be set back; normal adjustments are smaller."""

# ---- decisions of a person ----


async def before_approve(run: ApprovalRun) -> None:
    """Check again that the plan has not expired and that the project is as it was when the plan was made."""
    _refuse(run, expired(run) or await run.deps.actions.ready(run, provider=False))
    run.ctx.plan_status = PlanStatus.APPROVED.value


async def before_resume(run: ApprovalRun) -> None:
    """Check that only the plan's own steps have changed its files, and that the planner is reachable."""
    _refuse(run, await run.deps.actions.ready(run, provider=True))
    run.ctx.conflicts = []


async def before_cancel(run: ApprovalRun) -> None:
    """Mark the plan as cancelled and drop requested changes."""
    ctx = run.ctx
    if ctx.plan is not None:
        ctx.plan_status = PlanStatus.CANCELLED.value
    ctx.changes = ""


async def before_reject(run: ApprovalRun) -> None:
    """Discard the plan; its versions are kept."""
    ctx = run.ctx
    if ctx.plan_status in (PlanStatus.PENDING.value, PlanStatus.APPROVED.value):
        ctx.plan_status = PlanStatus.EXPIRED.value if expired(run) else PlanStatus.REJECTED.value
    ctx.consent = None


async def before_request_changes(run: ApprovalRun) -> None:
    """Drop the consent to the previous version. Another version must fit into the planner's budget."""
    _refuse(run, run.deps.actions.affordable())
    run.ctx.consent = None


async def before_retry(run: ApprovalRun) -> None:
    """Start a new plan for the same intent, within the planner's budget, and drop everything about the old one."""
    _refuse(run, run.deps.actions.affordable())
    ctx = run.ctx
    ctx.plan, ctx.plan_status, ctx.consent, ctx.changes = None, "", None, ""
    _forget(run)


async def before_acknowledge(run: ApprovalRun) -> None:
    """Close the request; the next part of a composite request waits for the person's confirmation."""
    ctx = run.ctx
    if run.step is not None and run.step.source.value == "Completed" and ctx.queue:
        following, *ctx.queue = ctx.queue
        ctx.kept = following
        ctx.question = f"Continue with the next part: {following.get('summary', '')}"
    _forget(run)


async def before_submit(run: ApprovalRun) -> None:
    """Start a new request and drop what an earlier one left open."""
    ctx = run.ctx
    ctx.kept, ctx.question = None, ""


async def before_steps_completed(run: ApprovalRun) -> None:
    """Record that all steps are done."""
    ctx = run.ctx
    ctx.plan_status = PlanStatus.COMPLETED.value
    ctx.completed = [*ctx.completed, ApprovalPlan.read(ctx.plan or {}).label]


# ---- errors ----


async def before_ai_error(run: ApprovalRun) -> None:
    """Keep the error, to show it to the person."""
    _keep(run)


async def before_plan_invalid(run: ApprovalRun) -> None:
    """Keep the error, to show it to the person."""
    _keep(run)


async def before_step_failed(run: ApprovalRun) -> None:
    """Keep the error. Completed steps stay until a person rolls them back."""
    _keep(run)
    run.ctx.plan_status = PlanStatus.FAILED.value


async def before_resume_failed(run: ApprovalRun) -> None:
    """Keep the error, to show it to the person."""
    _keep(run)
    run.ctx.plan_status = PlanStatus.FAILED.value


async def before_rollback_failed(run: ApprovalRun) -> None:
    """Keep the error: not all files could be restored."""
    _keep(run)
    run.ctx.plan_status = PlanStatus.FAILED.value


def expired(run: ApprovalRun) -> BlockedGate | None:
    """Return the gate for an expired plan or an unknown waiting time, else None."""
    ctx, now = run.ctx, run.deps.clock.time()
    if not ctx.expires_at:
        return None
    # When the newest version of the plan was made, in epoch seconds.
    if now < (float(ctx.versions[-1].get("at", 0.0)) if ctx.versions else 0.0) - SET_BACK:
        reason = "the clock was set back since the plan was made, so its waiting time is unknown"
        return BlockedGate("plan", reason, ("submit",), code="ST-004")
    return BlockedGate("plan", EXPIRED, ("submit",), code="ST-004") if now >= ctx.expires_at else None


def _refuse(run: ApprovalRun, blocked: BlockedGate | None) -> None:
    if blocked is not None:
        error = GateRefused(blocked)
        run.deps.refusal = error
        raise error


def _forget(run: ApprovalRun) -> None:
    """Clear the error, so that the next error counts as the first one."""
    run.ctx.fault, run.ctx.shown = None, False
    run.clear_error()


def _keep(run: ApprovalRun) -> None:
    ctx, error = run.ctx, run.error
    if ctx.fault is None or error is not None:
        ctx.fault = fault_of(error).plain()
    ctx.failure, ctx.shown = ctx.fault["code"], False
