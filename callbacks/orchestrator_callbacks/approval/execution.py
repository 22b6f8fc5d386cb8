"""Execution of an approved plan step by step, and its rollback."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.model import ApprovalEvent, PlanStatus
from orchestrator.machines.approval.plan import ApprovalPlan, PlanStep
from orchestrator_callbacks.approval import control_request
from orchestrator_callbacks.approval.deps import ApprovalRun


async def execute_plan(run: ApprovalRun) -> ApprovalEvent:
    """Execute the remaining steps one by one.

    A pause takes effect between steps. A cancel takes effect at once, even while a step is in flight: the state
    changes, and Cancelling waits for the step. A step that waits for a rate limit is not in flight.
    """
    steps = await run.deps.actions.left(run)
    total = len(ApprovalPlan.read(run.ctx.plan or {}).steps)
    for number, step in enumerate(steps, total - len(steps) + 1):
        await _turn(run, step)
        match control_request.taken(run, "pause", "cancel"):
            case "pause":
                return ApprovalEvent.PAUSE
            case "cancel":
                return ApprovalEvent.CANCEL
        if not await _step(run, step, number, total):
            control_request.taken(run, "cancel")
            return ApprovalEvent.CANCEL
    return ApprovalEvent.CANCEL if control_request.taken(run, "cancel") else ApprovalEvent.STEPS_COMPLETED


async def _turn(run: ApprovalRun, step: PlanStep) -> None:
    """Wait until a step may start, or until a control request arrives."""
    turn = asyncio.create_task(run.deps.actions.turn(step))
    heard = asyncio.create_task(run.mailbox.until(lambda: control_request.is_there(run, "pause", "cancel")))
    try:
        await asyncio.wait((turn, heard), return_when=asyncio.FIRST_COMPLETED)
    finally:
        turn.cancel()
        heard.cancel()
        await asyncio.wait((turn, heard))
    if not turn.cancelled():
        turn.result()


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


async def settled(operation: asyncio.Task[Any]) -> None:
    """Wait until a step has ended, with any result. A cancellation meanwhile is raised afterwards."""
    late: asyncio.CancelledError | None = None
    while not operation.done():
        try:
            await asyncio.wait((operation,))
        except asyncio.CancelledError as cancelled:
            late = cancelled
    if late is not None:
        raise late


async def taken_back(run: ApprovalRun) -> ApprovalEvent:
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
    ctx.undone = [*ctx.undone, *(path for path in map(_path, undone.changes) if path not in ctx.undone)]
    ctx.conflicts = [{"path": _path(one), "why": str(one)} for one in undone.conflicts]
    if ctx.conflicts:
        names = ", ".join(repr(one["path"]) for one in ctx.conflicts)
        message = f"not everything could be undone: {names} changed from outside and was kept"
        raise ApprovalError([Fault("ST-007", message)])
    ctx.plan_status = PlanStatus.CANCELLED.value
    return ApprovalEvent.ROLLBACK_FINISHED


def _path(one: object) -> str:
    return str(getattr(one, "path", one))
