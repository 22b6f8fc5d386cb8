"""Recovery of a project after a crash of the process that worked on it. Outside the graph, with its own record.

No plan is resumed automatically: an executing plan becomes Paused, and a person resumes or cancels it.

    Executing          Paused; the open step undone, the completed ones kept, a running command ended
    Paused             Paused
    Cancelling         continues
    Completed          continues to Idle
    ExtractingIntent   Idle
    Planning           Idle; the intent is kept and can be confirmed
    AwaitingApproval   unchanged if the plan's targets are unchanged and it has not expired, else Idle
    Failed, Idle       unchanged
    any damage         Failed: a projection differs from the journal, or a person's command is missing

A crash may interrupt a recovery too: the next one repeats it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.model import ApprovalEvent, ApprovalState, PlanStatus
from orchestrator.runtime.approval.control_request import CommandLost
from orchestrator.runtime.approval.session import ApprovalSession
from orchestrator.runtime.approval.status import RecoveryNote
from orchestrator_callbacks.approval import before
from orchestrator_callbacks.approval.deps import ApprovalRun

DISCARD = "acknowledge --discard"
"""The action that sets aside an unreadable store."""

CRASHED = "the process that worked on it ended before its work did"
MANUAL = (
    "look at the project and at .orchestrator/",
    "acknowledge, and continue with the files as they are",
    "retry, which makes a new plan for the same intent",
    "rollback, where steps of the plan had been carried out",
)
"""Actions of a person if the state cannot be trusted."""


async def recover(session: ApprovalSession) -> RecoveryNote | None:
    """Recover a project, and return the findings and actions; None if no recovery was needed."""
    run = session.run
    if run is None:
        return None
    if session.damage is not None:
        return await _corrupt(session, run)
    if not session.up_to_date and run.lease is not None:
        await session.journal.refresh(run.lease.seq)
    await session.refuse_posted(run)
    way = _WAYS.get(ApprovalState(run.cursor.state))
    return None if way is None else await way(session, run)


async def _corrupt(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote:
    """Set the run to Failed: no step is undone or resumed before a person has checked."""
    why = str(session.damage)
    code = "IPC-007" if isinstance(session.damage, CommandLost) else "ST-002"
    run.ctx.fault, run.ctx.shown = Fault(code, why).plain(), False
    found = RecoveryNote("corrupt", ApprovalState.FAILED.value, why, session.clock.time(), options=MANUAL)
    session.journal.projection.forget()
    await _jumped(session, run, ApprovalState.FAILED, found, corrupt=True)
    session.damage = None
    return found


async def _executing(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote:
    """Undo the open step and wait for a person."""
    undone = await session.executor.undo_open(run)
    work, why = await session.executor.work(run), await _crashed(session, run)
    unknown = [f"resume --again, if the command of step {one} may run again" for one in work.unknown]
    found = RecoveryNote(
        run.cursor.state,
        ApprovalState.PAUSED.value,
        why,
        session.clock.time(),
        kept=await session.executor.done(run),
        undone=tuple(change.path for change in undone.changes),
        conflicts=tuple({"path": one.path, "why": str(one)} for one in undone.conflicts),
        options=(*unknown, *(() if unknown else ("resume",)), "cancel"),
    )
    run.ctx.conflicts = [dict(one) for one in found.conflicts]
    await _jumped(session, run, ApprovalState.PAUSED, found)
    return found


async def _crashed(session: ApprovalSession, run: ApprovalRun) -> str:
    """Return the cause of the recovery, with the commands that were still running."""
    ended = (await session.executor.work(run)).ended
    return f"{CRASHED}; the command of step {', '.join(ended)} still ran and was ended" if ended else CRASHED


async def _going_on(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote:
    """Continue in a state that needs no person."""
    state = run.cursor.state
    await session.drive(run)
    failed = run.cursor.state == ApprovalState.FAILED
    found = RecoveryNote(
        state,
        run.cursor.state,
        await _crashed(session, run),
        session.clock.time(),
        undone=tuple(run.ctx.undone),
        conflicts=tuple(run.ctx.conflicts),
        options=MANUAL if failed else ("submit",),
    )
    run.ctx.recovery = found.plain()
    await session.remember(run)
    return found


async def _extracting(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote:
    """Drop the request to the planner: it is unknown whether it was sent."""
    found = RecoveryNote(
        run.cursor.state, ApprovalState.IDLE.value, CRASHED, session.clock.time(), options=("submit",)
    )
    await _jumped(session, run, ApprovalState.IDLE, found)
    return found


async def _planning(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote:
    """Keep the intent: when the person confirms it, it is planned for again."""
    ctx = run.ctx
    ctx.kept, ctx.intent = ctx.intent, None
    ctx.question = f"Plan again for: {(ctx.kept or {}).get('summary', ctx.request)}"
    found = RecoveryNote(
        run.cursor.state,
        ApprovalState.IDLE.value,
        CRASHED,
        session.clock.time(),
        options=("confirm", "submit"),
    )
    await _jumped(session, run, ApprovalState.IDLE, found)
    return found


async def _awaiting(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote | None:
    """Expire a plan that cannot be executed as shown any more."""
    why = await _stale(session, run)
    if not why:
        return None
    run.ctx.plan_status = PlanStatus.EXPIRED.value
    found = RecoveryNote(
        run.cursor.state,
        ApprovalState.IDLE.value,
        f"the plan expired: {why}",
        session.clock.time(),
        options=("submit",),
    )
    run.ctx.recovery = found.plain()
    await session.drive(run, ApprovalEvent.REJECT)
    return found


async def _stale(session: ApprovalSession, run: ApprovalRun) -> str:
    shut = before.expired(run)
    if shut is not None:
        return "it waited for too long" if shut.reason == before.EXPIRED else shut.reason
    try:
        blocked = await session.executor.outdated(run)
    except ApprovalError as error:
        return str(error)
    return "" if blocked is None else blocked.reason


async def _jumped(
    session: ApprovalSession,
    run: ApprovalRun,
    to: ApprovalState,
    found: RecoveryNote,
    *,
    corrupt: bool = False,
) -> None:
    run.ctx.recovery = found.plain()
    await session.jump(run, to, found.why, corrupt=corrupt)


_WAYS: Mapping[ApprovalState, Callable[[ApprovalSession, ApprovalRun], Awaitable[RecoveryNote | None]]] = {
    ApprovalState.EXECUTING: _executing,
    ApprovalState.CANCELLING: _going_on,
    ApprovalState.COMPLETED: _going_on,
    ApprovalState.EXTRACTING_INTENT: _extracting,
    ApprovalState.PLANNING: _planning,
    ApprovalState.AWAITING_APPROVAL: _awaiting,
}


def damaged(why: str, now: float) -> tuple[dict[str, Any], RecoveryNote]:
    """Return error and recovery note of a project whose journal cannot be read."""
    options = ("look at .orchestrator/", f"{DISCARD}, which sets it aside and starts anew")
    error = {**Fault("ST-002", why).plain(), "shown": False}
    return error, RecoveryNote("corrupt", ApprovalState.FAILED.value, why, now, options=options)
