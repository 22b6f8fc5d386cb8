"""Messages of people and other processes to a run: read in order at the start of each state, and durable then."""

from __future__ import annotations

import asyncio
import contextlib

from orchestrator.errors import CancelRequested, JournalError
from orchestrator.kernel.mailbox import Signal
from orchestrator_callbacks.ralph.deps import RalphRun


async def poll(run: RalphRun) -> None:
    """Read all messages posted so far. Raises CancelRequested at a stop; later messages are not read."""
    # If the store is down, the listener retries, and the next write reports the error.
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
    """Write answers to the file; return a note for the record about answers to unknown questions."""
    session = run.deps.session
    answers = {str(one): str(text) for one, text in dict(signal.payload.get("answers") or {}).items()}
    known = {one.id for one in await asyncio.to_thread(session.questions)}
    strange = sorted(answers.keys() - known)
    await asyncio.to_thread(session.answer, {one: answers[one] for one in answers.keys() & known})
    return {"refused": f"there is no question {', '.join(strange)}"} if strange else {}
