"""Tells two cancellations of one task apart: the one that stops a run, and the one that stops its caller."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from orchestrator.kernel.run import Run


class Gate:
    """While it is entered, `run.stop()` cancels the task inside it, and only up to here. Made in that task.

    What asyncio.timeout does, without a time. Not built on it, because 3.11's gives up in a task that had
    been asked to cancel before (a clean-up that goes on with a run): it compares the count of requests with
    0.
    """

    __slots__ = ("_before", "_fired", "_handle", "_loop", "_run", "_task")

    def __init__(self, run: Run[Any, Any]) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a run is driven inside a task")
        self._run = run
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._before = task.cancelling()
        self._handle: asyncio.Handle | None = None
        self._fired = False

    async def __aenter__(self) -> Self:
        self._run.interrupt = self._interrupt
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._run.interrupt = None
        fired, self._fired = self._fired, False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if fired:
            self._task.uncancel()
        return fired and kind is asyncio.CancelledError and not self.cancelled()

    def cancelled(self) -> bool:
        """Tell whether somebody else has cancelled the task, even if a hook swallowed the CancelledError."""
        return self._task.cancelling() - self._fired > self._before

    def _interrupt(self) -> None:
        # Not at once: a task that cancels itself and then awaits nothing would carry that out of here.
        if self._handle is None:
            self._handle = self._loop.call_soon(self._fire)

    def _fire(self) -> None:
        self._fired = True
        self._task.cancel()
