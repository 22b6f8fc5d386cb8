"""`before_<event>`: what must hold, and what is known from then on. Durable together with the transition."""

from __future__ import annotations

from orchestrator.machines.approval.model import ApprovalContext, PlanStatus
from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator.machines.approval.refusal import GateRefused
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_callbacks.approval.error_mapping import fault_of
from orchestrator_guards import BlockedGate

EXPIRED = "the plan has expired"
SET_BACK = 60.0
"""Seconds that a clock may go back: it is put right by less than that all the time."""

# ---- a person's decisions ----


async def before_approve(run: ApprovalRun) -> None:
    """Look once more: the plan has not expired, and the project is as it was when the plan was made."""
    _refuse(run, expired(run) or await run.deps.hands.ready(run, provider=False))
    run.ctx.plan_status = PlanStatus.APPROVED.value


async def before_resume(run: ApprovalRun) -> None:
    """Validate the resume: nothing but our own steps has changed the files of the plan, and the planner is there."""
    _refuse(run, await run.deps.hands.ready(run, provider=True))
    run.ctx.conflicts = []


async def before_cancel(run: ApprovalRun) -> None:
    """A plan that is being made anew is dropped; one that was approved is over."""
    ctx = run.ctx
    if ctx.plan is not None:
        ctx.plan_status = PlanStatus.CANCELLED.value
    ctx.changes = ""


async def before_reject(run: ApprovalRun) -> None:
    """The plan is discarded; its versions are kept."""
    ctx = run.ctx
    if ctx.plan_status in (PlanStatus.PENDING.value, PlanStatus.APPROVED.value):
        ctx.plan_status = PlanStatus.EXPIRED.value if expired(run) else PlanStatus.REJECTED.value
    ctx.consent = None


async def before_request_changes(run: ApprovalRun) -> None:
    """The person's answer was about the version before. Another one must be within the planner's budget."""
    _refuse(run, run.deps.hands.affordable())
    run.ctx.consent = None


async def before_retry(run: ApprovalRun) -> None:
    """Same intent, new plan, within the planner's budget: what was said and done about the old one is void."""
    _refuse(run, run.deps.hands.affordable())
    ctx = run.ctx
    ctx.plan, ctx.plan_status, ctx.consent, ctx.changes = None, "", None, ""
    _forget(run)


async def before_acknowledge(run: ApprovalRun) -> None:
    """The request is over; the next part of a composite one waits for the person's word."""
    ctx = run.ctx
    if run.step is not None and run.step.source.value == "Completed" and ctx.queue:
        following, *ctx.queue = ctx.queue
        ctx.kept = following
        ctx.question = f"Go on with the next part: {following.get('summary', '')}"
    _forget(run)


async def before_submit(run: ApprovalRun) -> None:
    """A new request: what an earlier one left open is void."""
    ctx = run.ctx
    ctx.kept, ctx.question = None, ""


async def before_steps_completed(run: ApprovalRun) -> None:
    """All steps are done."""
    ctx = run.ctx
    ctx.plan_status = PlanStatus.COMPLETED.value
    ctx.completed = [*ctx.completed, ApprovalPlan.read(ctx.plan or {}).label]


# ---- errors ----


async def before_ai_error(run: ApprovalRun) -> None:
    """Keep the error for the person to see."""
    _keep(run)


async def before_plan_invalid(run: ApprovalRun) -> None:
    """Keep the error for the person to see."""
    _keep(run)


async def before_step_failed(run: ApprovalRun) -> None:
    """Keep the error; the steps that are done stay, until somebody rolls them back (B12)."""
    _keep(run)
    run.ctx.plan_status = PlanStatus.FAILED.value


async def before_resume_failed(run: ApprovalRun) -> None:
    """Keep the error for the person to see."""
    _keep(run)
    run.ctx.plan_status = PlanStatus.FAILED.value


async def before_rollback_failed(run: ApprovalRun) -> None:
    """Keep the error: not everything is as it was."""
    _keep(run)
    run.ctx.plan_status = PlanStatus.FAILED.value


def expired(run: ApprovalRun) -> BlockedGate | None:
    """Say that the plan has waited for too long, or that nobody can know, or None."""
    ctx, now = run.ctx, run.deps.clock.time()
    if not ctx.expires_at:
        return None
    if now < _made_at(ctx) - SET_BACK:
        reason = "the clock was set back since the plan was made: nobody knows how long it has waited"
        return BlockedGate("plan", reason, ("submit",), code="ST-004")
    return BlockedGate("plan", EXPIRED, ("submit",), code="ST-004") if now >= ctx.expires_at else None


def _made_at(ctx: ApprovalContext) -> float:
    """Return when the newest version of the plan was made, epoch seconds."""
    return float(ctx.versions[-1].get("at", 0.0)) if ctx.versions else 0.0


def _refuse(run: ApprovalRun, blocked: BlockedGate | None) -> None:
    if blocked is not None:
        error = GateRefused(blocked)
        run.deps.refusal = error
        raise error


def _forget(run: ApprovalRun) -> None:
    """The run goes on after its error: the next one is the first again."""
    run.ctx.fault, run.ctx.shown = None, False
    run.clear_error()


def _keep(run: ApprovalRun) -> None:
    ctx, error = run.ctx, run.error
    if ctx.fault is None or error is not None:
        ctx.fault = fault_of(error).plain()
    ctx.shown = False
