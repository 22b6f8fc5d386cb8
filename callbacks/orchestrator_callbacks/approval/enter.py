"""`enter_<state>`: the work of each state of approval. Each hook returns the event that leaves its state."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable

from orchestrator.errors import JournalError
from orchestrator.machines.approval.fault import ApprovalError, Fault, fault_of
from orchestrator.machines.approval.model import ApprovalContext, ApprovalEvent, PlanStatus
from orchestrator.machines.approval.plan import ApprovalPlan, PlanStep, decide_confidence
from orchestrator_callbacks.approval import control_request
from orchestrator_callbacks.approval.deps import ApprovalRun, settled


def _known(
    work: Callable[[ApprovalRun], Awaitable[ApprovalEvent]],
) -> Callable[[ApprovalRun], Awaitable[ApprovalEvent]]:
    """Convert every exception of a state's work to ApprovalError or JournalError.

    The record of a failure contains the error's text, and the text of an unknown exception may contain a key or a
    prompt.
    """

    @functools.wraps(work)
    async def hook(run: ApprovalRun) -> ApprovalEvent:
        try:
            return await work(run)
        except (ApprovalError, JournalError):
            raise
        except Exception as error:
            raise ApprovalError(fault_of(error)) from error

    return hook


# ---- intents and plans ----


@_known
async def enter_extracting_intent(run: ApprovalRun) -> ApprovalEvent:
    """Extract the person's intent and its confidence.

    A cancel that arrives meanwhile takes effect when the planner has answered; the answer is dropped.
    """
    ctx, limits = run.ctx, run.deps.limits
    if ctx.confirmed and ctx.intent is not None:
        return ApprovalEvent.INTENT_VALIDATED
    extraction = await run.deps.actions.extract(run)
    if control_request.taken(run, "cancel"):
        return ApprovalEvent.INTENT_REJECTED
    first, *others = extraction.intents
    sure = decide_confidence(first, proceed=limits.proceed, confirm=limits.confirm)
    if sure == "proceed":
        ctx.intent, ctx.queue = first.plain(), [one.plain() for one in others]
        return ApprovalEvent.INTENT_VALIDATED
    ctx.intent = None
    ctx.question = first.question or f"Is this what you want: {first.summary}"
    if sure == "confirm":
        ctx.kept, ctx.queue = first.plain(), [one.plain() for one in others]
    return ApprovalEvent.INTENT_REJECTED


@_known
async def enter_planning(run: ApprovalRun) -> ApprovalEvent:
    """Request a plan for the intent: another version if the person requested changes, else a new plan.

    A cancel that arrives meanwhile drops it.
    """
    ctx = run.ctx
    plan_id, version = next_id(ctx), 1
    if ctx.changes and ctx.plan is not None:
        before = ApprovalPlan.read(ctx.plan)
        plan_id, version = before.id, before.version + 1
    plan = await run.deps.actions.draft(run, plan_id, version)
    if control_request.taken(run, "cancel"):
        return ApprovalEvent.CANCEL
    ctx.iteration += 1
    present(ctx, plan, run.deps.clock.time(), run.deps.limits.expiry_seconds)
    return ApprovalEvent.PLAN_VALIDATED


def next_id(ctx: ApprovalContext) -> str:
    """Return an id that is unique in the project."""
    return f"plan-{ctx.number}" + (f"-{ctx.plan_number + 1}" if ctx.plan_number else "")


def present(ctx: ApprovalContext, plan: ApprovalPlan, now: float, seconds: float) -> None:
    """Make a plan the one that waits for approval; `now` is epoch seconds."""
    version = {"id": plan.id, "version": plan.version, "digest": plan.digest, "plan": plan.plain(), "at": now}
    if plan.version == 1:
        ctx.plan_number += 1
    ctx.plan, ctx.plan_status, ctx.failure = plan.plain(), PlanStatus.PENDING.value, ""
    ctx.versions = [*ctx.versions, version]
    ctx.expires_at = now + seconds if seconds else 0.0
    ctx.config = plan.caps_digest
    ctx.previewed, ctx.consent, ctx.changes = "", None, ""
    ctx.fault, ctx.conflicts, ctx.undone, ctx.again = None, [], [], []


# ---- execution and rollback ----


@_known
async def enter_executing(run: ApprovalRun) -> ApprovalEvent:
    """Execute the remaining steps one by one.

    A pause takes effect between steps. A cancel takes effect at once, even while a step is in flight: the state
    changes, and Cancelling waits for the step. A step that waits for a rate limit is not in flight.
    """
    steps = await run.deps.actions.left(run)
    total = len(ApprovalPlan.read(run.ctx.plan or {}).steps)
    for number, step in enumerate(steps, total - len(steps) + 1):
        # Wait until a step may start, or until a control request arrives.
        turn = asyncio.create_task(run.deps.actions.turn(step))
        heard = asyncio.create_task(
            run.mailbox.until(lambda: control_request.is_there(run, "pause", "cancel"))
        )
        try:
            await asyncio.wait((turn, heard), return_when=asyncio.FIRST_COMPLETED)
        finally:
            turn.cancel()
            heard.cancel()
            await asyncio.wait((turn, heard))
        if not turn.cancelled():
            turn.result()
        match control_request.taken(run, "pause", "cancel"):
            case "pause":
                return ApprovalEvent.PAUSE
            case "cancel":
                return ApprovalEvent.CANCEL
        if not await _step(run, step, number, total):
            control_request.taken(run, "cancel")
            return ApprovalEvent.CANCEL
    return ApprovalEvent.CANCEL if control_request.taken(run, "cancel") else ApprovalEvent.STEPS_COMPLETED


async def _step(run: ApprovalRun, step: PlanStep, number: int, total: int) -> bool:
    """Execute one step. Returns False if a cancel arrived meanwhile; the step is still in flight then."""
    deps = run.deps
    began = deps.clock.monotonic()
    label = ApprovalPlan.read(run.ctx.plan or {}).step_label(step)
    run.note("step", {"step": label, "status": "running", "at": deps.clock.time()})
    await run.settle()
    await _report_step(run, step, number, total, "begins", 0.0, "running", "")
    operation = deps.operation = asyncio.create_task(deps.actions.perform(run, step))
    heard = asyncio.create_task(run.mailbox.until(lambda: control_request.is_there(run, "cancel")))
    try:
        await asyncio.wait((operation, heard), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await settled(operation)  # an interruption never leaves a step half done
        raise
    finally:
        heard.cancel()
        await asyncio.wait((heard,))
    if not operation.done():
        return False
    deps.operation = None
    seconds = deps.clock.monotonic() - began
    try:
        output = operation.result().output
    except ApprovalError as fault:
        run.note("step", {"step": label, "status": "failed", "at": deps.clock.time()})
        await run.settle()
        await _report_step(run, step, number, total, "ends", seconds, "failed", fault.output)
        raise
    await _report_step(run, step, number, total, "ends", seconds, "done", output)
    return True


async def _report_step(  # noqa: PLR0917 - the parts of one fact
    run: ApprovalRun,
    step: PlanStep,
    number: int,
    total: int,
    phase: str,
    seconds: float,
    status: str,
    output: str,
) -> None:
    on_step = run.deps.on_step
    said = None if on_step is None else on_step(step, number, total, phase, seconds, status, output)
    if inspect.isawaitable(said):
        await said


@_known
async def enter_cancelling(run: ApprovalRun) -> ApprovalEvent:
    """Wait for the step in flight, then revert the plan's changes.

    A file that was changed outside is kept and reported.
    """
    ctx, deps = run.ctx, run.deps
    if deps.operation is not None:
        await settled(deps.operation)
        if not deps.operation.cancelled():
            deps.operation.exception()  # a failed step has reverted itself; now the other steps follow
        deps.operation = None
    undone = await deps.actions.undo(run)
    restored = [str(getattr(change, "path", change)) for change in undone.changes]
    ctx.undone = [*ctx.undone, *(path for path in restored if path not in ctx.undone)]
    ctx.conflicts = [{"path": str(getattr(one, "path", one)), "why": str(one)} for one in undone.conflicts]
    if ctx.conflicts:
        names = ", ".join(repr(one["path"]) for one in ctx.conflicts)
        message = f"not everything could be undone: {names} changed from outside and was kept"
        raise ApprovalError([Fault("ST-007", message)])
    ctx.plan_status = PlanStatus.CANCELLED.value
    return ApprovalEvent.ROLLBACK_FINISHED


async def enter_completed(_run: ApprovalRun) -> ApprovalEvent:
    """Return to Idle without waiting for a person."""
    return ApprovalEvent.ACKNOWLEDGE
