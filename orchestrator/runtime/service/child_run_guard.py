"""Child runs that are awaited by their parent: stopped with it, left with it."""

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
    """Stops the child run of `above` (a run's id), even before the child run exists."""

    def __init__(self, above: str) -> None:
        self._above = above
        self._run: Run[Any, Any] | None = None
        self._signal: Signal | None = None

    def hold(self, run: Run[Any, Any]) -> None:
        """Set the child run; it gets at once a signal that came before."""
        self._run = run
        if self._signal is not None:
            run.mailbox.post(self._signal)

    def stop(self, cause: Exception | None) -> None:
        """Cancel the child run, now or as soon as it exists, because its parent was stopped."""
        if self._signal is not None:
            return
        shutdown = isinstance(cause, CancelRequested) and cause.reason == "shutdown"
        why = "the call was abandoned" if cause is None else f"its parent run was stopped: {cause}"
        by = "shutdown" if shutdown else f"run {self._above}"
        self._signal = Signal(kind="cancel", id=secrets.token_hex(8), by=by, why=why)
        if self._run is not None:
            self._run.mailbox.post(self._signal)


async def joined(work: asyncio.Future[T], leash: ChildRunGuard, above: RunScope) -> T:
    """Return the result of a child run. Waits for it whatever happens to the parent run.

    If the parent is stopped, or continues without this child run, the child run is cancelled. If the parent is left
    to be resumed, so is the child run.
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
