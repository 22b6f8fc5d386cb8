"""Child runs: the current run of some code, its paused clock, and children that stop with their parent."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self, TypeVar

from orchestrator.errors import CancelRequested, DeadlineExceeded
from orchestrator.kernel.cancellation import grace_for_children
from orchestrator.kernel.clock import running_loop
from orchestrator.kernel.fact import Fact, RunParked, RunStarted
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.run import Run


class RunScope:
    """A run while it is driven, as its agent tools find it. Entered in the task that drives the run."""

    __slots__ = (
        "_cancels",
        "_left",
        "_outer",
        "_parked",
        "_since",
        "_task",
        "_token",
        "agent",
        "children",
        "leaves",
        "on_change",
        "queued",
        "run",
        "unattended",
        "waiting_children",
    )

    def __init__(self, agent: Any, run: Run[Any, Any]) -> None:
        self.agent = agent
        """Its driver: an Agent, or the facade of another graph."""
        self.run = run
        self.children = 0
        """Number of its active direct child runs."""
        self.waiting_children = 0
        """Number of those that wait for a person, or have only waiting child runs."""
        self.unattended = False
        """Whether its caller waits for the result and gets no question."""
        self.queued = 0
        """Number of branches that will become child runs when others have ended."""
        self.on_change: Callable[[], object] | None = None
        """Called when a child run starts or stops to wait for a person."""
        self.leaves = False
        """Whether the run is left in the journal when all of its active child runs wait."""
        self._left = False
        self._outer: RunScope | None = None
        self._parked = False
        self._since: float | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancels = 0

    def __enter__(self) -> Self:
        outer = current_scope()
        self._task = asyncio.current_task(running_loop())
        self._cancels = self._task.cancelling() if self._task else 0
        self._token: Token[RunScope] = _HERE.set(self)
        if outer is not None and outer.run.run_id == self.run.parent_run_id:
            self._outer = outer
            outer.count_children(children=1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """End the scope, and a cancellation that is only that of `_leave`."""
        _HERE.reset(self._token)
        if self._outer is not None:
            self._outer.count_children(children=-1, waiting=-1 if self._stands else 0)
        own = self._left and self._task is not None and self._task.uncancel() <= self._cancels
        return own and kind is asyncio.CancelledError

    @property
    def outermost(self) -> RunScope:
        """The scope of the root run of its tree."""
        return self if self._outer is None else self._outer.outermost

    @property
    def is_left(self) -> bool:
        """Whether the driver abandons this run, which will be resumed from its last record."""
        cancels = self._task.cancelling() if self._task else 0
        return self.run.interruption is None and cancels > self._cancels

    def _leave(self) -> None:
        """Leave the run if its child runs still wait; calls beside them end first."""
        if self._since is None or self._left or self._task is None:
            return
        running = sum(result is None for result in getattr(self.run.ctx, "results", ())) > self.children
        if running or self.queued:
            self._task.get_loop().call_later(_AGAIN, self._leave)
        else:
            self._left = True
            self._task.cancel()

    async def on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the event loop that drives this run, from any loop."""
        loop = self._loop
        if loop is None or loop is asyncio.get_running_loop():
            await work
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def on_loop_soon(self, work: Callable[..., object], *arguments: object) -> None:
        """Call a function in that loop, at once if it is the current one."""
        loop = self._loop
        if loop is None or loop is asyncio.get_running_loop():
            work(*arguments)
        else:
            loop.call_soon_threadsafe(work, *arguments)

    @property
    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return self._task.get_loop() if self._task else None

    def set_parked(self, *, parked: bool) -> None:
        """Record that this run started or stopped to wait for a person."""
        stood, self._parked = self._stands, parked
        self._notify(stood)

    def count_children(self, *, children: int = 0, waiting: int = 0) -> None:
        """Change the numbers of child runs and of those that wait.

        While all of them wait, no time of this run passes.
        """
        stood = self._stands
        self.children += children
        self.waiting_children += waiting
        waits = self.children > 0 and self.children == self.waiting_children
        if waits and self._since is None:
            self._since = self.run.deps.clock.monotonic()
            if self.run.control.alarm is not None:
                self.run.control.alarm.set(None)
            if self.leaves:
                self.on_loop_soon(self._leave)
        elif not waits and self._since is not None:
            if self.run.control.services is not None:
                self.run.control.services.exclude_time(
                    self.run, self.run.deps.clock.monotonic() - self._since
                )
            self._since = None
        if self.on_change is not None and waiting:
            self.on_change()
        self._notify(stood)

    @property
    def _stands(self) -> bool:
        return self._parked or self._since is not None

    def _notify(self, stood: bool) -> None:  # noqa: FBT001 - called only in this class
        if self._outer is not None and stood != self._stands:
            self._outer.count_children(waiting=1 if self._stands else -1)


_AGAIN = 0.05
"""Seconds until a run that will be left looks again whether its other calls have ended."""
_HERE: ContextVar[RunScope] = ContextVar("orchestrator_run_under_way")


def current_scope() -> RunScope | None:
    """Return the current run of this code, or None."""
    return _HERE.get(None)


class ChildWaitObserver:
    """An observer of child runs that stops the clock of their parents while they wait for a person."""

    def observe(self, fact: Fact, /) -> None:
        """Handle a fact in the task that drives the run."""
        kind = type(fact)
        if kind is RunParked or kind is RunStarted:
            run = current_scope()
            if run is not None and run.run.run_id == fact.run_id:
                run.set_parked(parked=kind is RunParked)


T = TypeVar("T")


class ChildRunGuard:
    """Stops the child run of `parent` (a run's id), even before the child run exists."""

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self._run: Run[Any, Any] | None = None
        self._stop: Callable[[Run[Any, Any]], object] | None = None

    def claim_child(self, run: Run[Any, Any]) -> None:
        """Set the child run; it is stopped at once if it should have been before."""
        self._run = run
        if self._stop is not None:
            self._stop(run)

    def stop(self, cause: Exception | None, why: str = "the call was abandoned") -> None:
        """Stop the child run, now or as soon as it exists, because its parent was stopped; else `why`.

        It ends as its parent does: by the deadline, or cancelled.
        """
        if self._stop is not None:
            return
        if isinstance(cause, DeadlineExceeded):
            late = DeadlineExceeded(cause.seconds)
            late.args = (f"a run above it lasted longer than its limit of {cause.seconds:g} s",)
            self._stop = lambda run: run.stop(late)
        else:
            shutdown = isinstance(cause, CancelRequested) and cause.reason == "shutdown"
            why = why if cause is None else f"its parent run was stopped: {cause}"
            by = "shutdown" if shutdown else f"run {self._parent}"
            signal = Signal(kind="cancel", id=secrets.token_hex(8), by=by, why=why)
            self._stop = lambda run: run.mailbox.post(signal)
        if self._run is not None:
            self._stop(self._run)


async def child_result(work: asyncio.Future[T], guard: ChildRunGuard, parent: RunScope) -> T:
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
