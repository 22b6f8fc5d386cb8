"""What people and other processes tell a run: read in order at the begin of each state, durable then (R14)."""

from __future__ import annotations

import asyncio

from orchestrator.errors import CancelRequested
from orchestrator.kernel.run import Signal
from orchestrator_callbacks.ralph.deps import RalphRun


async def poll(run: RalphRun) -> None:
    """Read what was posted. Raises CancelRequested where that is a stop; what came after it is not read."""
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
    run.note("control", body | {"at": run.deps.clock.time()})
    ctx = run.ctx
    match says:
        case "steer":
            ctx.requirements = (*ctx.requirements, signal.why)
        case "inform":
            ctx.notes = (*ctx.notes, signal.why)
        case "answer":
            answers = {str(one): str(text) for one, text in dict(signal.payload.get("answers") or {}).items()}
            await asyncio.to_thread(run.deps.session.answer, answers)
