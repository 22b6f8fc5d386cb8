"""Runs below a run, as long as somebody up there waits for them: stopped with it, left with it."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, TypeVar

from orchestrator.errors import CancelRequested
from orchestrator.kernel.abandonment import grace_below
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.run import Run
from orchestrator.runtime.service.run_scope import RunScope

T = TypeVar("T")


class ChildRunGuard:
    """Holds a run below `above` (a run's id), also one that is not there yet."""

    def __init__(self, above: str) -> None:
        self._above = above
        self._run: Run[Any, Any] | None = None
        self._signal: Signal | None = None

    def hold(self, run: Run[Any, Any]) -> None:
        """Hold a run; it hears at once what was asked of it before it was there."""
        self._run = run
        if self._signal is not None:
            run.mailbox.post(self._signal)

    def stop(self, cause: Exception | None) -> None:
        """Cancel the run, also one that is not there yet, for what stops the run above it."""
        if self._signal is not None:
            return
        shutdown = isinstance(cause, CancelRequested) and cause.reason == "shutdown"
        why = "the call was given up" if cause is None else f"the run above it was stopped: {cause}"
        by = "shutdown" if shutdown else f"run {self._above}"
        self._signal = Signal(kind="cancel", id=secrets.token_hex(8), by=by, why=why)
        if self._run is not None:
            self._run.mailbox.post(self._signal)


async def joined(work: asyncio.Future[T], leash: ChildRunGuard, above: RunScope) -> T:
    """Return what a run below gives. It is waited for, whatever happens to the run above.

    Where that is stopped, or goes on without this one, the run below is cancelled; where it is left to be resumed,
    so is the run below.
    """
    late: asyncio.CancelledError | None = None
    with grace_below():
        while not work.done():
            try:
                await asyncio.wait((work,))
            except asyncio.CancelledError as cancelled:
                late = cancelled
                if above.is_left:
                    work.cancel()
                else:
                    leash.stop(above.run.interruption)
    if late is not None:
        if not work.cancelled():
            work.exception()
        raise late
    return work.result()
