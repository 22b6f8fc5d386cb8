"""Tells apart the cancellations of a driven run: of the run, of its caller, and of neither."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from orchestrator.kernel.abandonment import AbandonableTask, AbandonPolicy, here, until_ended
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.record import WorkAbandoned
from orchestrator.kernel.run import Run


class CancelScope:
    """Lets `run.stop()` cancel the work of a run, and only that work. Create it in the task that drives the run.

    The work runs in its own task. Cancellation requests that hooks, tools and models make to their task stay there.
    On Python 3.11 and 3.12 an asyncio.TaskGroup that fails asks its task to cancel and does not withdraw the request.
    In the task of the caller, its error could not be distinguished from a cancelled caller, even if a hook handled
    it. The task of the caller runs only code of this package, so its count of requests is reliable. (asyncio.timeout
    on 3.11 compares the count with 0.) Host code of the work that ignores its cancellation for
    `run.control.cancel_seconds` is abandoned.
    """

    __slots__ = ("_before", "_clock", "_fired", "_handle", "_loop", "_run", "caller", "work")

    def __init__(self, run: Run[Any, Any], clock: Clock) -> None:
        caller = asyncio.current_task()
        if caller is None:
            raise RuntimeError("a run is driven inside a task")
        self._run = run
        self._clock = clock
        self.caller = caller
        self._loop = asyncio.get_running_loop()
        self._before = caller.cancelling()
        self._handle: asyncio.Handle | None = None
        self.work: AbandonableTask[None] | None = None
        """The task of the work, while it runs."""
        self._fired = False

    async def let(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for the work, or until `run.stop()` has ended it. Raises the errors of the work, and a cancellation."""
        self._run.control.interrupt = self._interrupt
        self._fired = False
        policy = AbandonPolicy(self._clock, self._run.control.cancel_seconds, self._abandoned)
        task = self.work = AbandonableTask(work, policy, name=self._run.run_id, requests=self.requests)
        late = None
        try:
            late = await until_ended((task,))
            task.result()
            if late is not None:
                raise late  # it came when the work had ended, or a hook swallowed it
        except asyncio.CancelledError:
            if late is not None:
                raise late  # noqa: B904 - the caller's own, also if a hook swallowed it or raised another one
            if not self._fired or self.cancelled():
                raise
        finally:
            self._run.control.interrupt = self.work = None
            if self._handle is not None:
                self._handle.cancel()
                self._handle = None

    def cancelled(self) -> bool:
        """Return whether the caller was cancelled since, even if a hook swallowed the CancelledError.

        Call it between hooks. If neither the run nor its caller is to stop, it withdraws the requests in the task of
        the work.
        """
        if self.caller.cancelling() > self._before:
            return True
        work = self.work
        while work is not None and not self._fired and work.task.cancelling():
            work.task.uncancel()
        return False

    async def let_others_run(self) -> None:
        """Give other tasks and time limits a turn between hooks that never wait."""
        await asyncio.sleep(0)

    def requests(self) -> int:
        """Return how often the caller or `run.stop()` asked the work to stop."""
        return self.caller.cancelling() + self._fired

    def _interrupt(self) -> None:
        # Not at once: a hook that stops its own run is interrupted at its next await, not at its end.
        if self._handle is None:
            self._handle = self._loop.call_soon(self._fire)

    def _fire(self) -> None:
        if self.work is not None:
            self._fired = True
            self.work.cancel()

    def _abandoned(self, kind: str, name: str) -> WorkAbandoned:
        run = self._run
        at, state = self._clock.time(), run.cursor.state
        fact = WorkAbandoned(run.graph.name, run.run_id, state, kind, name, at, run.agent)
        run.emit(fact)
        return fact


class CallerScope:
    """Takes the place of a CancelScope: the work stays in the task of its caller, and nothing else stops it."""

    __slots__ = ("_in_loop",)
    caller: ClassVar = None
    work: ClassVar = None

    def __init__(self, *, in_loop: bool) -> None:
        self._in_loop = in_loop
        """Whether other tasks exist."""

    def cancelled(self) -> bool:
        """Return False: a cancellation reaches the caller directly."""
        return False

    async def let_others_run(self) -> None:
        """Give other tasks a turn, if there are any."""
        if self._in_loop:
            await asyncio.sleep(0)


def cancel_requests() -> Callable[[], int]:
    """Return a function that counts how often the running task was asked to stop, also if its code swallowed that.

    In a task that works behind a scope, only requests of the caller and of `run.stop()` count.
    """
    owner = here()
    if owner is not None:
        return owner.requests
    task = asyncio.current_task()
    return int if task is None else task.cancelling
