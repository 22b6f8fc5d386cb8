"""Drive runs through a machine: one event in flight, hooks in looplab's order, one failure path.

The order of hooks is that of `MachineTransition.execute`. The `enter_` hook does the work of its state and returns the
event that leaves it. The driver fires it from its own loop, so a run of any length needs the same small stack.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from orchestrator.errors import (
    DeadlineExceeded,
    EventError,
    Fenced,
    InTransition,
    InvalidEvent,
    NoTransition,
    RunError,
    RunExists,
    StateTimeout,
)
from orchestrator.kernel.cancel_scope import CallerScope, CancelScope
from orchestrator.kernel.clock import Alarm, Clock, SystemClock
from orchestrator.kernel.codec import Codec
from orchestrator.kernel.finalizer import RunFinalizer
from orchestrator.kernel.journal import JournalWriter
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending
from orchestrator.kernel.record import Fact, Observer
from orchestrator.kernel.report import Reporter
from orchestrator.kernel.run import Run
from orchestrator.kernel.suspension import ConcurrencyLimiter, HookServices, Park
from orchestrator.kernel.transition_executor import TransitionExecutor
from orchestrator.kernel.writer import Writer

_TURNS = 64
"""Hooks that never wait would keep other tasks and time limits out: after so many turns these are let in."""


class Driver:
    """Drives any number of runs of one machine. Holds no run itself.

    `ending` names outcome and reason of a run in its terminal state; `summary` gives its totals for
    RunCompleted; `codec` turns its context into records, so that it can be resumed. `owner` names this
    driver in the journal's leases. `strict` makes `fire` raise NoTransition after an internal edge, as
    looplab does.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        observers: Iterable[Observer] = (),
        journal: JournalWriter | None = None,
        owner: str | None = None,
        clock: Clock | None = None,
        ending: Callable[[Any], Ending] | None = None,
        summary: Callable[[Any], Any] | None = None,
        codec: Codec | None = None,
        strict: bool = False,
    ) -> None:
        self.machine = machine
        self.observers = tuple(observers)
        """Who is told of every run, in this order."""
        self._clock = clock or SystemClock()
        self._report = Reporter(self.observers, self._clock)
        self.observer_errors = self._report.errors
        """How often each kind of observer raised; such an error never fails a run."""
        self.owner = owner or _this_process()
        """Who holds the runs of this driver, as the journal knows it."""
        self._writer = (
            None if journal is None else Writer(journal, self.owner, self._report, self._clock, codec)
        )
        self._executor = TransitionExecutor(self._report, self._writer, self._clock)
        self._finalizer = RunFinalizer(
            self._report, self._writer, self._clock, ending=ending, summary=summary, codec=codec
        )
        self._services = HookServices(
            self._report, self._writer, self._executor, self._finalizer, self._clock
        )
        self._strict = strict

    async def start(self, run: Run[Any, Any]) -> StrEnum | None:
        """Create the run: journal it, run the initial state's enter hooks, return the event they chose.

        Raises RunExists when it is there already, and whatever a hook raises.
        """
        if run.cursor.started_at is not None:
            raise RunExists(run.run_id)
        return await self._single(run, None)

    async def fire(self, run: Run[Any, Any], event: StrEnum) -> StrEnum | None:
        """Carry out one event from outside and return the event that the new state's hook asks for next.

        Raises InTransition, InvalidEvent, UnknownEvent or Refused, the state unchanged; whatever a hook
        raises, without firing the failure event; and the cause of a `run.stop()`. A run led to a terminal
        state ends.
        """
        return await self._single(run, event)

    async def drive(self, run: Run[Any, Any], event: StrEnum | None = None, *, park: bool = True) -> None:
        """Carry the run on until it ends or, in a waiting or rest state, until its mailbox is empty.

        `event` is fired first, in place of what the present state's hooks chose. With `park=False` it waits
        in place for the mailbox instead of returning, also where the run is paused or a hook awaits a decision.
        A cancelled caller leaves the run where it is, reported as parked, and gets its CancelledError; a later
        `drive` goes on from there, with the interrupted hook.
        """
        self._claim(run, event)
        run.control.waits_in_place, run.control.folds = not park, True
        run.control.alarm = Alarm(self._clock, lambda: self._ring(run))
        try:
            if not run.cursor.ended and await self._take_up(run, event, park=park):
                await self._carry_on(run, park=park)
        except (asyncio.CancelledError, Exception):
            run.control.alarm.cancel()
            await self._finalizer.abandon(run)
            raise
        finally:
            run.control.alarm.cancel()
            run.control.alarm = None
            run.control.mailbox.listen(None)
            run.control.driving = False

    async def deposit(self, run: Run[Any, Any], place: Mapping[str, Any]) -> None:
        """Make a run durable that has not begun, and leave it to the process that `place` leads to.

        Its observers hear of it then. Raises RunExists, RunError where there is no journal, and what the store raises.
        """
        if run.cursor.started_at is not None:
            raise RunExists(run.run_id)
        if self._writer is None:
            raise RunError(f"run {run.run_id!r} cannot be left to another process: there is no journal")
        late = await self._writer.create(run, self._clock.time(), deposited=place)
        await self.release(run)
        if late is not None:
            raise late

    def tell(self, fact: Fact) -> None:
        """Hand observers a fact that no driven run tells."""
        self._report.tell(fact)

    async def announce(self, run: Run[Any, Any], kind: str, body: Mapping[str, Any]) -> None:
        """Append a record about a run that is not being driven. Raises what the journal raises."""
        run.writes.publish = self._report.publisher(run)
        run.note(kind, body)
        await self._finalizer.settle(run)

    async def release(self, run: Run[Any, Any]) -> None:
        """Give a run that is not being driven back to the journal, for any process to take up."""
        await self._finalizer.release(run)

    def seat(self, seats: ConcurrencyLimiter | None) -> None:
        """Let `seats` limit how many runs that wait in place go on at once. Raises RunError when somebody does."""
        if seats is not None and self._services.seats is not None:
            raise RunError(f"the runs of driver {self.owner} have seats already")
        self._services.seats = seats

    # ---- taking a run up ----

    def _claim(self, run: Run[Any, Any], event: StrEnum | None) -> None:
        name = run.graph.name
        if run.control.driving:
            raise InTransition(graph=name, state=run.cursor.state, event=str(event or "drive"))
        if run.cursor.ended and event is not None:
            raise InvalidEvent(graph=name, state=run.cursor.state, event=str(event), allowed=())
        run.control.driving = True
        run.writes.publish = self._report.publisher(run)
        run.control.executor, run.control.services = self._executor, self._services

    async def _create(self, run: Run[Any, Any]) -> None:
        at = self._clock.time()
        late = None if self._writer is None else await self._writer.create(run, at)
        run.cursor.started_at = run.cursor.entered_at = self._clock.monotonic()
        run.cursor.is_new = True
        self._report.started(run, at)
        if late is not None:
            raise late

    # ---- one event at a time ----

    async def _single(self, run: Run[Any, Any], event: StrEnum | None) -> StrEnum | None:
        self._claim(run, event)
        run.control.folds = False
        try:
            await self._carry_out(run, event)
            await self._finalizer.settle(run)
        except Exception as error:
            self._report.failed(run, event, error)
            await self._finalizer.leave(run)
            raise
        except asyncio.CancelledError:
            await self._finalizer.leave(run)
            raise
        finally:
            run.control.driving = False
        if self._strict and event is not None and run.cursor.step is not None and run.cursor.step.internal:
            raise NoTransition(graph=run.graph.name, state=run.cursor.state, event=event)
        return run.cursor.pending_event

    async def _carry_out(self, run: Run[Any, Any], event: StrEnum | None) -> None:
        if run.cursor.started_at is None:
            await self._create(run)
            await self._executor.enter(run)
        _raise_cause(run)
        if event is not None:
            await self._executor.trigger(run, event)
            _raise_cause(run)
        if run.state in run.graph.terminal and run.cursor.pending_event is None:
            await self._finalizer.end(run)

    # ---- a whole run ----

    async def _take_up(self, run: Run[Any, Any], event: StrEnum | None, *, park: bool) -> bool:
        """Begin, or go on with, a run. Returns False when it is parked and there is still nothing to do."""
        if run.cursor.started_at is None:
            run.cursor.pending_event = event
            await self._create(run)
        elif event is not None:
            run.cursor.entry_pending, run.cursor.pending_event = False, event
        run.control.mailbox.listen(lambda signal: self._services.asked(run, signal))
        if run.cursor.parked:
            if park and self._waits(run) and not len(run.control.mailbox) and not self._due(run):
                return False
            self._report.started(run, self._clock.time())
        return True

    async def _carry_on(self, run: Run[Any, Any], *, park: bool) -> None:
        scope = CancelScope(run, self._clock)
        while True:
            self._executor.arm(run)
            await scope.let(self._advance(run, scope, park=park))
            if run.cursor.ended or not run.control.halted:
                return
            self._stopped(run)

    async def _advance(self, run: Run[Any, Any], scope: CancelScope | CallerScope, *, park: bool) -> None:
        """Fire event after event until the run ends, parks or is stopped; errors become the failure event."""
        turns = 0
        while not (run.cursor.ended or run.control.halted):
            event = None if run.cursor.entry_pending else run.cursor.pending_event
            try:
                if event is not None and (run.control.pause_request is None or run.loses):
                    await self._executor.trigger(run, event)
                elif not await self._next(run, event, park=park):
                    return
            except Park as wish:
                await self._finalizer.park(run, wish.reason, wish.detail)
                return
            except Exception as error:  # noqa: BLE001 - hooks are free to raise anything
                self._raised(run, scope, event, error)
            if scope.cancelled() and not run.cursor.ended:
                raise asyncio.CancelledError  # a hook swallowed it
            turns += 1
            if not turns % _TURNS:
                await scope.let_others_run()

    async def _next(self, run: Run[Any, Any], event: StrEnum | None, *, park: bool) -> bool:
        """Carry out what comes next. Returns False when the run parked for lack of anything."""
        if run.control.pause_request is not None:
            await self._services.hold(run)
        if run.cursor.entry_pending:
            await self._executor.go_on(run)
        elif event is not None:
            await self._executor.trigger(run, event)
        else:
            return await self._idle(run, park=park)
        return True

    async def _idle(self, run: Run[Any, Any], *, park: bool) -> bool:
        """Go on where hooks asked for nothing: end, take a signal, wait, or park and return False."""
        graph, state = run.graph, run.state
        run.cursor.hook = ""
        if state in graph.terminal:
            await self._finalizer.end(run)
        elif graph.is_working(state):
            raise RunError(f"{graph.name}: nothing leaves the working state {state.value!r}")
        elif self._take_signal(run):
            pass
        elif self._due(run):
            self._ring(run)
        elif park:
            await self._finalizer.park(run, "waiting")
            return False
        else:
            await run.control.mailbox.wait()
        return True

    def _take_signal(self, run: Run[Any, Any]) -> bool:
        """Make the next posted event with an edge here the pending one; those without are reported."""
        while (signal := run.control.mailbox.take()) is not None:
            run.control.signal = signal
            try:
                run.machine.steps(run.cursor.state, str(signal.event))
            except EventError as error:
                run.cursor.committed = False
                self._report.failed(run, signal.event, error)
            else:
                run.cursor.pending_event = signal.event
                return True
        return False

    def _waits(self, run: Run[Any, Any]) -> bool:
        if run.control.pause_request is not None:
            return True
        busy = run.control.halted or run.cursor.entry_pending or run.cursor.pending_event is not None
        return not busy and not run.graph.is_working(run.state) and run.state not in run.graph.terminal

    def _raised(
        self, run: Run[Any, Any], scope: CancelScope | CallerScope, event: StrEnum | None, error: Exception
    ) -> None:
        if scope.cancelled():
            raise asyncio.CancelledError from error  # it came out of the hook under another name
        if isinstance(error, Fenced):
            raise error  # somebody else has the run: what happens to it from here on is not ours to say
        if run.control.interruption is None:
            self._failed(run, event, error)
        else:  # what a hook raises while it is being stopped is told, but why it was stopped decides
            self._report.failed(run, event, error)

    # ---- limits and interruptions ----

    def _due(self, run: Run[Any, Any]) -> bool:
        """Tell whether a time limit has passed; a parked run has no alarm that would ring."""
        due = self._executor.due(run)
        return due is not None and self._clock.monotonic() >= due

    def _ring(self, run: Run[Any, Any]) -> None:
        if run.control.interruption is not None:
            return
        cause: Exception
        if run.control.expires_at is not None and self._clock.monotonic() >= run.control.expires_at:
            cause = DeadlineExceeded(run.control.expires_at - (run.cursor.started_at or 0.0))
            run.control.expires_at = None  # said once: the way to the end is not interrupted for it again
        else:
            limit = run.graph.dwell_of(run.state)
            cause = run.control.overdue = StateTimeout(run.cursor.state, limit[0] if limit else 0.0)
        run.stop(cause)

    def _stopped(self, run: Run[Any, Any]) -> None:
        """Choose the event for an interruption: failure, or the dwell event of an overdue state."""
        cause = _cause(run)
        if run.cursor.parked:  # stopped while it waited for somebody
            self._report.started(run, self._clock.time())
        if cause is None:
            return  # the limit of a state that was left in time after all
        limit = run.graph.dwell_of(run.state)
        if isinstance(cause, StateTimeout) and limit and limit[1] != run.graph.failure_event(run.state):
            if run.graph.is_working(run.state):
                run.cursor.committed = False
                self._report.failed(run, limit[1], cause)
            run.cursor.entry_pending, run.cursor.pending_event = False, limit[1]
        else:
            self._failed(run, None, cause)

    # ---- failure ----

    def _failed(self, run: Run[Any, Any], event: StrEnum | None, error: Exception) -> None:
        """Make the failure event of the state an error happened in the pending one.

        Raises the error where the graph or the state has none. A refused request from outside leaves a
        waiting run as it is, and an error in a terminal state without a failure edge leaves it ended.
        """
        graph, state = run.graph, run.state
        fact = self._report.failed(run, event, error)
        ends = state in graph.terminal
        waits = not ends and not graph.is_working(state)
        if waits and event is not None and not fact.committed and isinstance(error, EventError):
            run.cursor.pending_event = None
            return
        failure = None if graph.failure is None else graph.failure_event(state)
        stuck = failure is not None and failure == event and not fact.committed
        if stuck or graph.failure is None or (failure is None and not ends):
            raise error
        if run.cursor.error is None:
            run.cursor.error, run.cursor.failure = error, fact
        run.cursor.entry_pending, run.cursor.pending_event = False, failure


def _this_process() -> str:
    """Name this process and this driver for people who ask a journal who holds a run."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def _cause(run: Run[Any, Any]) -> Exception | None:
    """Take why the run was to be stopped, if it was; it is not halted any more."""
    cause, run.control.interruption, run.control.halted = run.control.interruption, None, False
    return cause


def _raise_cause(run: Run[Any, Any]) -> None:
    cause = _cause(run)
    if cause is not None:
        raise cause
