"""What people and other processes tell a run: read in order at the begin of each state, durable then (R14)."""

from __future__ import annotations

import asyncio
import contextlib

from orchestrator.errors import CancelRequested, JournalError
from orchestrator.kernel.mailbox import Signal
from orchestrator_callbacks.ralph.deps import RalphRun


async def poll(run: RalphRun) -> None:
    """Read what was posted until now. Raises CancelRequested where that is a stop; what came after it is not read."""
    # Where it cannot be read now, whoever listens tries it again, and who writes tells of a store that is down.
    with contextlib.suppress(JournalError):
        await run.deps.look(run.run_id)
    stop: Signal | None = None
    read = False
    while stop is None and (signal := run.mailbox.message()) is not None:
        read = True
        await _take(run, signal)
        if signal.payload.get("says") == "stop":
            stop = signal
    if read:
        await run.keep()
    if stop is not None:
        raise CancelRequested("caller", stop.why)


async def _take(run: RalphRun, signal: Signal) -> None:
    says = str(signal.payload.get("says", ""))
    body = {"id": signal.id, "kind": says, "by": signal.by, "why": signal.why, "number": signal.number}
    ctx = run.ctx
    if says == "answer":
        body |= await _answered(run, signal)
    run.note("control", body | {"at": run.deps.clock.time()})
    match says:
        case "steer":
            ctx.requirements = (*ctx.requirements, signal.why)
        case "inform":
            ctx.notes = (*ctx.notes, signal.why)


async def _answered(run: RalphRun, signal: Signal) -> dict[str, str]:
    """Write answers down; return what a record is to say of those to questions that there are not, or not any more."""
    session = run.deps.session
    answers = {str(one): str(text) for one, text in dict(signal.payload.get("answers") or {}).items()}
    known = {one.id for one in await asyncio.to_thread(session.questions)}
    strange = sorted(answers.keys() - known)
    await asyncio.to_thread(session.answer, {one: answers[one] for one in answers.keys() & known})
    return {"refused": f"there is no question {', '.join(strange)}"} if strange else {}
