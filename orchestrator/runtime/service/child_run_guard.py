"""Child runs that are awaited by their parent: stopped with it, left with it."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, TypeVar

from orchestrator.errors import CancelRequested
from orchestrator.kernel.abandonment import grace_for_children
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.run import Run
from orchestrator.runtime.service.run_scope import RunScope

T = TypeVar("T")


class ChildRunGuard:
    """Stops the child run of `parent` (a run's id), even before the child run exists."""

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self._run: Run[Any, Any] | None = None
        self._signal: Signal | None = None

    def claim_child(self, run: Run[Any, Any]) -> None:
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
        by = "shutdown" if shutdown else f"run {self._parent}"
        self._signal = Signal(kind="cancel", id=secrets.token_hex(8), by=by, why=why)
        if self._run is not None:
            self._run.mailbox.post(self._signal)


async def joined(work: asyncio.Future[T], guard: ChildRunGuard, parent: RunScope) -> T:
    """Return the result of a child run. Waits for it whatever happens to the parent run.

    If the parent is stopped, or continues without this child run, the child run is cancelled. If the parent is left
    to be resumed, so is the child run.
    """
    late: asyncio.CancelledError | None = None
    with grace_for_children():
        while not work.done():
            try:
                await asyncio.wait((work,))
            except asyncio.CancelledError as cancelled:
                late = cancelled
                if parent.is_left:
                    work.cancel()
                else:
                    guard.stop(parent.run.interruption)
    if late is not None:
        if not work.cancelled():
            work.exception()
        raise late
    return work.result()
