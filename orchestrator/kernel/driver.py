"""Drives runs through a machine: one event at a time, hooks in the order of looplab/fsm (Go), one failure path.

`TransitionExecutor.trigger` defines the order of hooks. The `enter_` hook does the work of its state and returns the
event that leaves it. The driver fires it in its own loop, so the stack does not grow with the length of a run.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from orchestrator.errors import (
    EventError,
    Fenced,
    GraphError,
    InTransition,
    InvalidEvent,
    NoTransition,
    RunError,
    RunExists,
    StateTimeout,
)
from orchestrator.kernel.cancellation import CallerScope, CancelScope
from orchestrator.kernel.clock import Alarm, Clock, SystemClock
from orchestrator.kernel.fact import AdmissionRejected, Fact, Observer, TableRejected
from orchestrator.kernel.journal import JournalWriter, owner_name
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending
from orchestrator.kernel.report import Reporter
from orchestrator.kernel.run import Run
from orchestrator.kernel.suspension import ConcurrencyLimiter, Evicted, HookServices, Park, RunFinalizer
from orchestrator.kernel.transition_executor import TransitionExecutor
from orchestrator.kernel.writer import Codec, Writer

INVALID_TABLE = "invalid_table"
"""Reason of runs that are parked, or refused, because a change left an invalid table."""

_TURNS = 64
"""Number of turns after which other tasks and time limits get a turn: hooks that never wait would block them."""


class Driver:
    """Drives any number of runs of one machine and keeps no run itself.

    Args:
        observers: Receive every fact of every run, in this order.
        journal: Stores the records; None keeps runs in memory only.
        owner: Name of this driver in the leases of the journal; None chooses a unique name.
        ending: Returns outcome and reason of a run in its terminal state.
        summary: Returns the totals of a run for RunCompleted.
        codec: Converts the context to records, so that a run can be resumed.
        strict: Whether `fire` raises NoTransition after an internal edge, as looplab/fsm does.
        agent: Name of the agent of its runs, for facts about none of them.
        declare: Called after each change of the table, to declare its names to the observers.
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
        agent: str = "",
        declare: Callable[[], None] | None = None,
    ) -> None:
        self.machine = machine
        self.observers = tuple(observers)
        self._clock = clock or SystemClock()
        self._report = Reporter(self.observers, self._clock)
        self.observer_errors = self._report.errors
        """Number of errors per class of observer; an error of an observer never fails a run."""
        self.owner = owner or owner_name()
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
        # One bound method for all runs, which keep it.
        self._accept = self._services.accept_control_request
        self._publish, self._stop_overdue = self._report.publish, self._executor.stop_overdue
        self._strict = strict
        self._agent = agent
        self._declare = declare
        machine.followers.add(self)

    def copy(self) -> Driver:
        """Return a driver with the same machine, observers, journal and owner, but its own limit on concurrency."""
        # Not among `machine.followers`: this driver is, and the observers that both share must learn of a change once.
        # The `declare` of a service holds its driver, so this one lives as long as its copies.
        found = copy.copy(self)
        found._services = HookServices(  # noqa: SLF001 - of this class
            self._report, self._writer, self._executor, self._finalizer, self._clock
        )
        found._accept = found._services.accept_control_request  # noqa: SLF001
        return found

    async def start(self, run: Run[Any, Any]) -> StrEnum | None:
        """Create the run: journal it, run the enter hooks of the initial state, and return the event they chose.

        Raises RunExists if the run exists already, and the errors of hooks.
        """
        if run.cursor.started_at is not None:
            raise RunExists(run.run_id)
        return await self._single(run, None)

    async def fire(self, run: Run[Any, Any], event: StrEnum) -> StrEnum | None:
        """Fire one event from outside and return the event that the hook of the new state chooses next.

        Raises InTransition, InvalidEvent, UnknownEvent or Refused (the state is unchanged), errors of hooks (without
        a failure event), and the cause of `run.stop()`. A run in a terminal state ends.
        """
        return await self._single(run, event)

    async def drive(self, run: Run[Any, Any], event: StrEnum | None = None, *, park: bool = True) -> None:
        """Drive the run until it ends or, in a waiting or rest state, until its mailbox is empty.

        `event` is fired first, in place of the event that the hooks of the present state chose. With `park=False` the
        driver waits in place for the mailbox instead of returning, also while the run is paused or a hook awaits a
        decision. A cancelled caller gets its CancelledError, and the run is parked in its state. A later `drive`
        continues there, with the interrupted hook.
        """
        self._claim(run, event)
        # _begin_or_resume: create the run, or continue one that was parked
        # _loop_over_interruptions: again after each stop, with the event that `_route_interruption` chooses
        #     _loop_over_events: one event or step at a time, until the run ends, parks or is stopped
        #         _step, _step_without_event: hold a pause, repeat a hook, or take, await or park for a signal
        run.control.waits_in_place, run.control.folds = not park, True
        run.control.alarm = Alarm(self._clock, self._stop_overdue, run)
        try:
            if not run.cursor.ended and await self._begin_or_resume(run, event, park=park):
                await self._loop_over_interruptions(run, park=park)
        except (asyncio.CancelledError, Exception):
            run.control.alarm.cancel()
            await self._finalizer.abandon(run)
            raise
        finally:
            run.control.alarm.cancel()
            run.control.alarm = None
            run.control.mailbox.listen(None, run)
            run.control.driving = False

    async def deposit(self, run: Run[Any, Any], launch: Mapping[str, Any]) -> None:
        """Make a new run durable and leave it to the process that `launch` names.

        That process publishes its facts. Raises RunExists, RunError without a journal, and the errors of the store.
        """
        if run.cursor.started_at is not None:
            raise RunExists(run.run_id)
        if self._writer is None:
            raise RunError(f"run {run.run_id!r} cannot be left to another process: there is no journal")
        self._check_table(run)
        late = await self._writer.create(run, self._clock.time(), deposited=launch)
        await self.release(run)
        if late is not None:
            raise late

    def publish(self, fact: Fact) -> None:
        """Send observers a fact that belongs to no driven run."""
        self._report.publish(fact)

    async def announce(self, run: Run[Any, Any], kind: str, body: Mapping[str, Any]) -> None:
        """Append a record about a run that is not being driven. Raises the errors of the journal."""
        run.writes.publish = self._report.publish
        run.note(kind, body)
        await self._finalizer.settle(run)

    async def release(self, run: Run[Any, Any]) -> None:
        """Return a run that is not being driven to the journal, so that any process can take it."""
        await self._finalizer.release(run)

    @property
    def limiter(self) -> ConcurrencyLimiter | None:
        """Limits how many runs that wait in place are active; None: no limit."""
        return self._services.limiter

    def limit_concurrency(self, limiter: ConcurrencyLimiter | None) -> None:
        """Let `limiter` limit how many runs that wait in place are active. Raises RunError if a limit is set."""
        if limiter is not None and self._services.limiter is not None:
            raise RunError(f"the runs of driver {self.owner} have seats already")
        self._services.limiter = limiter

    # ---- the table ----

    def table_changed(self) -> None:
        """Declare the names of a changed table to the observers."""
        if self._declare is not None:
            self._declare()

    def table_rejected(self, error: GraphError) -> None:
        """Publish that a change left an invalid table."""
        problems = tuple(map(str, error.problems))
        self._report.publish(TableRejected(error.graph, problems, self._clock.time(), self._agent))

    def _check_table(self, run: Run[Any, Any]) -> None:
        """Let a new run begin with the present table. Raises GraphError, also published, if that is invalid."""
        try:
            run.graph = run.machine.graph
        except GraphError:
            at = self._clock.time()
            self._report.publish(AdmissionRejected(run.graph.name, run.run_id, INVALID_TABLE, at, run.agent))
            raise

    def _follow_table(self, run: Run[Any, Any]) -> None:
        """Let a run follow a change of the table. Raises Park if the table is invalid."""
        try:
            run.follow_table()
        except GraphError as error:
            raise Park(INVALID_TABLE, {"why": str(error.problems[0])}) from error

    # ---- taking a run up ----

    def _claim(self, run: Run[Any, Any], event: StrEnum | None) -> None:
        name = run.graph.name
        if run.control.driving:
            raise InTransition(graph=name, state=run.cursor.state, event=str(event or "drive"))
        if run.cursor.ended and event is not None:
            raise InvalidEvent(graph=name, state=run.cursor.state, event=str(event), allowed=())
        run.control.driving = True
        run.writes.publish, run.writes.observed_kinds = self._publish, self._report.observed
        run.control.executor, run.control.services = self._executor, self._services

    async def _create(self, run: Run[Any, Any]) -> None:
        self._check_table(run)
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
            await self._start_or_fire(run, event)
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

    async def _start_or_fire(self, run: Run[Any, Any], event: StrEnum | None) -> None:
        if run.cursor.started_at is None:
            await self._create(run)
            await self._executor.enter(run)
        _raise_cause(run)
        if run.graph is not run.table.graph:
            run.follow_table()
        if event is not None:
            await self._executor.trigger(run, event)
            _raise_cause(run)
        if run.state in run.graph.terminal and run.cursor.pending_event is None:
            await self._finalizer.end(run)

    # ---- a whole run ----

    async def _begin_or_resume(self, run: Run[Any, Any], event: StrEnum | None, *, park: bool) -> bool:
        """Begin or continue a run. Returns False if it is parked and still has nothing to do."""
        if run.cursor.started_at is None:
            run.cursor.pending_event = event
            await self._create(run)
        elif event is not None:
            run.cursor.entry_pending, run.cursor.pending_event = False, event
        run.control.mailbox.listen(self._accept, run)
        if run.cursor.parked:
            if (
                park
                and self._waits(run)
                and not len(run.control.mailbox)
                and not self._executor.is_overdue(run)
            ):
                return False
            self._report.started(run, self._clock.time())
        return True

    async def _loop_over_interruptions(self, run: Run[Any, Any], *, park: bool) -> None:
        scope = CancelScope(run, self._clock)
        while True:
            self._executor.arm(run)
            await scope.let(self._loop_over_events(run, scope, park=park))
            if run.cursor.ended or run.control.evicted or not run.control.halted:
                return
            self._route_interruption(run)

    async def _loop_over_events(
        self, run: Run[Any, Any], scope: CancelScope | CallerScope, *, park: bool
    ) -> None:
        """Fire events until the run ends, parks or is stopped; errors become the failure event."""
        turns, cursor, control = 0, run.cursor, run.control
        while not (cursor.ended or control.halted):
            event = None if cursor.entry_pending else cursor.pending_event
            try:
                if run.graph is not run.table.graph:
                    self._follow_table(run)
                # `_step` fires events too, after a pause. Without one they are fired here: no coroutine per transition.
                if event is not None and (control.pause_request is None or run.loses):
                    await self._executor.trigger(run, event)
                elif not await self._step(run, event, park=park):
                    return
            except Evicted:
                return
            except Park as wish:
                await self._finalizer.park(run, wish.reason, wish.detail)
                return
            except Exception as error:  # noqa: BLE001 - hooks are free to raise anything
                self._handle_error(run, scope, event, error)
            if scope.cancelled() and not cursor.ended:
                raise asyncio.CancelledError  # a hook swallowed it
            turns += 1
            if not turns % _TURNS:
                await scope.let_others_run()

    async def _step(self, run: Run[Any, Any], event: StrEnum | None, *, park: bool) -> bool:
        """Carry out the next step. Returns False if the run parked because there is none."""
        if run.control.pause_request is not None:
            await self._services.hold(run)
        if run.cursor.entry_pending:
            await self._executor.go_on(run)
        elif event is not None:
            await self._executor.trigger(run, event)
        else:
            return await self._step_without_event(run, park=park)
        return True

    async def _step_without_event(self, run: Run[Any, Any], *, park: bool) -> bool:
        """Continue if hooks chose no event: end, take a signal, wait, or park and return False."""
        graph, state = run.graph, run.state
        run.cursor.hook = ""
        if state in graph.terminal:
            await self._finalizer.end(run)
        elif graph.is_working(state):
            raise RunError(f"{graph.name}: nothing leaves the working state {state.value!r}")
        elif self._take_signal(run):
            pass
        elif self._executor.is_overdue(run):
            self._executor.stop_overdue(run)
        elif park:
            await self._finalizer.park(run, "waiting")
            return False
        else:
            await run.control.mailbox.wait()
        return True

    def _take_signal(self, run: Run[Any, Any]) -> bool:
        """Make the next posted event with an edge here the pending event; report posted events without an edge."""
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

    def _handle_error(
        self, run: Run[Any, Any], scope: CancelScope | CallerScope, event: StrEnum | None, error: Exception
    ) -> None:
        if scope.cancelled():
            raise asyncio.CancelledError from error  # it came out of the hook under another name
        if isinstance(error, Fenced):
            raise error  # another owner has the run and decides about it
        if run.control.interruption is None:
            self._route_to_failure(run, event, error)
        else:  # publish the error of a hook that is being stopped; the cause of the stop decides
            self._report.failed(run, event, error)

    # ---- limits and interruptions ----

    def _route_interruption(self, run: Run[Any, Any]) -> None:
        """Choose the event for an interruption: failure, or the dwell event of an overdue state."""
        cause = _cause(run)
        if run.cursor.parked:  # stopped while it waited for an answer
            self._report.started(run, self._clock.time())
        if cause is None:
            return  # the limit of a state that was left in time after all
        if isinstance(cause, Fenced):
            raise cause  # as in `_handle_error`: an append that a hook overlapped with found another owner
        limit = run.graph.dwell_of(run.state)
        if isinstance(cause, StateTimeout) and limit and limit[1] != run.graph.failure_event(run.state):
            if run.graph.is_working(run.state):
                run.cursor.committed = False
                self._report.failed(run, limit[1], cause)
            run.cursor.entry_pending, run.cursor.pending_event = False, limit[1]
        else:
            self._route_to_failure(run, None, cause)

    # ---- failure ----

    def _route_to_failure(self, run: Run[Any, Any], event: StrEnum | None, error: Exception) -> None:
        """Make the failure event of the present state pending. Raises the error if the graph or the state has none.

        A refused request leaves a waiting run unchanged; without a failure edge an error leaves a terminal run ended.
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


def _cause(run: Run[Any, Any]) -> Exception | None:
    """Remove and return the cause for which the run was to be stopped, if any. The run is no longer halted."""
    cause, run.control.interruption, run.control.halted = run.control.interruption, None, False
    return cause


def _raise_cause(run: Run[Any, Any]) -> None:
    cause = _cause(run)
    if cause is not None:
        raise cause
