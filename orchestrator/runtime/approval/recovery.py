"""What a process does about a project that the one before it did not leave in order. Outside the graph, and audited.

Nothing is resumed by itself: what was being executed is Paused, and a person resumes or cancels (seed 001, B9, B10).

    Executing          Paused, the open step undone, the completed ones kept, a command that still runs ended
    Paused             Paused
    Cancelling         goes on
    Completed          goes on to Idle
    ExtractingIntent   Idle
    Planning           Idle; the intent is kept, and can be confirmed
    AwaitingApproval   stays while the plan's targets are as they were and it has not expired, else Idle
    Failed, Idle       stay
    anything else      Failed: a projection that is not what the journal says, or a command of a person that is missing

Every recovery may itself be cut short: the next one does the same again.
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
"""What sets aside a store that cannot be read."""

CRASHED = "the process that worked on it ended before its work did"
MANUAL = (
    "look at the project and at .orchestrator/",
    "acknowledge, and go on with the files as they are",
    "retry, which makes a new plan for the same intent",
    "rollback, where steps of the plan had been carried out",
)
"""What a person can do where the state cannot be trusted."""


async def recover(session: ApprovalSession) -> RecoveryNote | None:
    """Bring a project in order, and return what was found and done; None where all was in order."""
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
    """Trust nothing: no step is undone or gone on with before a person has looked."""
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
    undone = await session.hands.undo_open(run)
    work, why = await session.hands.work(run), await _crashed(session, run)
    unknown = [f"resume --again, if the command of step {one} may run again" for one in work.unknown]
    found = RecoveryNote(
        run.cursor.state,
        ApprovalState.PAUSED.value,
        why,
        session.clock.time(),
        kept=await session.hands.done(run),
        undone=tuple(change.path for change in undone.changes),
        conflicts=tuple({"path": one.path, "why": str(one)} for one in undone.conflicts),
        options=(*unknown, *(() if unknown else ("resume",)), "cancel"),
    )
    run.ctx.conflicts = [dict(one) for one in found.conflicts]
    await _jumped(session, run, ApprovalState.PAUSED, found)
    return found


async def _crashed(session: ApprovalSession, run: ApprovalRun) -> str:
    """Say what happened, and which commands went on after it."""
    ended = (await session.hands.work(run)).ended
    return f"{CRASHED}; the command of step {', '.join(ended)} still ran and was ended" if ended else CRASHED


async def _going_on(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote:
    """Go on with what needs nobody's word."""
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
    """Drop the question to the planner: nobody knows whether it was asked."""
    found = RecoveryNote(
        run.cursor.state, ApprovalState.IDLE.value, CRASHED, session.clock.time(), options=("submit",)
    )
    await _jumped(session, run, ApprovalState.IDLE, found)
    return found


async def _planning(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote:
    """Keep the intent: with the person's word it is planned for again."""
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
    """Let a plan expire that can no longer be carried out as it was shown."""
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
        blocked = await session.hands.standing(run)
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
    """Return error and recovery of a project whose journal itself cannot be read."""
    options = ("look at .orchestrator/", f"{DISCARD}, which sets it aside and begins anew")
    error = {**Fault("ST-002", why).plain(), "shown": False}
    return error, RecoveryNote("corrupt", ApprovalState.FAILED.value, why, now, options=options)
