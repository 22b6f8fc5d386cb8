"""Execution of the runs of one graph, whatever the graph: live in this process, durable in one journal.

A facade holds a RunService and describes its runs with a RunKind. This module imports no machine, and no class derives
from RunService.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import warnings
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeAlias, TypeVar

from orchestrator.errors import (
    ConfigError,
    Corrupt,
    DeadlineExceeded,
    Held,
    JournalError,
    OtherGraph,
    RunExists,
    RunUnknown,
    StoreDown,
    Suspended,
)
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.clock import GRACE
from orchestrator.kernel.driver import INVALID_TABLE, Driver
from orchestrator.kernel.fact import Fact, Follower, Observer, RunRecovered, Transition
from orchestrator.kernel.journal import Record, RunHead, let_go
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.llm.port import UNKNOWN_CURRENCY, common_currency
from orchestrator.runtime.service import arguments
from orchestrator.runtime.service.child_run import RunScope
from orchestrator.runtime.service.evicted_runs import EvictedRun, RunEvicted
from orchestrator.runtime.service.live_runs import RunRegistry
from orchestrator.runtime.service.ownership import AgentIdentity, LocalDefinition, refuse_same_name, register
from orchestrator.runtime.service.program import ProgramsUnknown
from orchestrator.runtime.service.recovery import (
    ClaimedRun,
    DepsRequired,
    Migration,
    Recovery,
    RepeatedWork,
    RunAlreadyEnded,
)
from orchestrator.runtime.service.restored_run import RecordedPath
from orchestrator.runtime.service.run_controller import RunController
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.telemetry.connection import connect, is_metrics
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.scope import scope
from orchestrator.tools.spec import ToolSpec

R = TypeVar("R")

_LOG = logging.getLogger("orchestrator")


def _warn_of_disabled_logger() -> None:
    """Warn once if a configuration of logging has disabled our logger: it could not say so itself."""
    if _LOG.disabled and not _warned:
        _warned.append(True)
        warnings.warn(
            "the logger 'orchestrator' is disabled, so the warnings of this package are lost: call "
            "logging.config.dictConfig with disable_existing_loggers=False, or name the logger in it",
            RuntimeWarning,
            stacklevel=3,
        )


_warned: list[bool] = []
_A_PERSON = "it waits for a person"
_NOT_RECOVERED = {Suspended: "poison", OtherGraph: "other_graph", Corrupt: "corrupt"}

CheckResume: TypeAlias = Callable[[RunHead, bool], Awaitable[None]]
"""Checks whether a run may be resumed, given `again`, before it is claimed. Raises Suspended, ConfigError."""
UpdateRun: TypeAlias = Callable[[Run[Any, Any], StoredRun, Sequence[Record], Any], Awaitable[Iterable[Fact]]]
"""Changes a restored and claimed run besides its limits (the last argument): charges, and data outside its records.

Returns what to publish as soon as the resumption is recorded.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKind(Generic[R]):
    """What the runs of one graph are to the service; R is the type of their results."""

    machine: Machine
    codec: ContextCodec[Any]
    declare: Callable[[RunService[R]], None]
    """Declares the names of the runs to the observers, with `RunService.announce`."""
    ending: Callable[[Run[Any, Any]], Ending]
    """Returns outcome and reason of a run in its terminal state."""
    summary: Callable[[Run[Any, Any]], Mapping[str, Any]]
    """Returns the totals for `run.completed`."""
    result: Callable[[Run[Any, Any], Iterable[Transition], Ending], R]
    """Returns the result of a run that ended, with its path."""
    restore: Callable[[StoredRun, Sequence[Record]], Run[Any, Any]]
    """Returns a run as of its last record. Changes nothing outside."""
    complete: Callable[[Run[Any, Any], R], Awaitable[R]] | None = None
    """Adds to the result of a restored run what only the journal has."""
    update: UpdateRun | None = None
    check_limits: Callable[[Any], None] | None = None
    """Checks that a run with these limits may call its model. None means unchanged limits."""
    check_resume: CheckResume | None = None
    over: Callable[[Run[Any, Any]], None] | None = None
    """Cleans up a started run that is over here (it ended, or was left where it is), before its result is made."""
    lacks_deps: Callable[[StoredRun], bool] | None = None
    """Whether a run needs live deps that cannot be made here."""
    lacks_agent: Callable[[StoredRun], str] | None = None
    """Returns the name of the agent that a run needs next and that is not here; "" if it is."""
    migrations: Callable[[], Iterable[Migration]] = tuple
    """Returns migrations of its runs that need no one of the host. Called only for a run of another graph, by a table
    without changes."""
    keeps_state: Callable[[Run[Any, Any]], bool] | None = None
    """Whether a run has live deps or other live state that cannot be made again when it is resumed here."""
    repeated: RepeatedWork | None = None
    laps: Container[str] = ()
    """Events that count an iteration of the path."""
    waits_for: str = ""
    """Description of the cause that a parked run waits for; a person by default."""


def _with_currency(
    runtime: Runtime, data: Mapping[str, Any], reporting: Iterable[object]
) -> tuple[str | None, Mapping[str, Any]]:
    """Return the currency of the costs of an agent, and the data of its runs, which record it."""
    currency = common_currency((runtime.price,), reporting) or data.get("currency")
    if currency is None or currency == UNKNOWN_CURRENCY:
        return currency, {name: value for name, value in data.items() if name != "currency"}
    return currency, {**data, "currency": currency}


class RunService(Generic[R]):
    """Starts, drives, resumes and controls the runs of one agent; R is the type of their results.

    Args:
        agent: The facade; tools that run agents find it as the agent of a run that is driven.
        kind: What its runs are.
        runtime: How they are executed.
        data: Name and version of the agent, stored with each of its runs.
        local: Its definition, which is stored with each run too; another agent of this name on the journal is refused.
            None if the launch of each run says how its agent is made.
        find_tool: Finds a tool of the agent that is exactly one of a run's, given as name -> digest, to check edited
            arguments.
        live: The live runs that these belong to; others by default.
        control: Delivers the requests to them.
        watching: Further observers of the runs.
        owner: Owner of the runs in the journal.
        reporting: Models and programs that report the cost of an answer.

    Raises:
        ConfigError: Another agent of this name has other tools, or costs would be in two currencies.
    """

    def __init__(
        self,
        agent: object,
        kind: RunKind[R],
        runtime: Runtime,
        data: Mapping[str, Any],
        *,
        local: LocalDefinition | None = None,
        find_tool: Callable[[str, Mapping[str, str]], ToolSpec | None] = lambda _, __: None,
        live: RunRegistry | None = None,
        control: RunController | None = None,
        watching: Iterable[Observer] = (),
        owner: str | None = None,
        reporting: Iterable[object] = (),
    ) -> None:
        self.agent, self.kind, self.runtime = agent, kind, runtime
        self.currency, self.data = _with_currency(runtime, data, reporting)
        self.machine, self.journal, self.clock = kind.machine, runtime.journal, runtime.clock
        self.live = RunRegistry() if live is None else live
        self.control = control or RunController(self.live, self.journal, self.clock, find_tool)
        self.evicted = self.control.evicted
        self.leaving, self.unattended = self.live.leaving, self.live.unattended
        if local is not None:
            self.data = {**self.data, "definition": local.tools}
            register(agent, self.journal, self.identity, local)
        kind.declare(self)
        self.driver = Driver(
            self.machine,
            observers=(self.live, *watching, *runtime.observers),
            journal=self.journal,
            owner=owner,
            clock=self.clock,
            ending=kind.ending,
            summary=kind.summary,
            codec=kind.codec,
            agent=self.identity.name,
            declare=partial(kind.declare, self),
        )
        self.recovery = _recovery_of(self)
        self.shares_journal = runtime.own_journal is None
        """Whether other agents may use its journal."""

    def varied(
        self, agent: object, kind: RunKind[R], data: Mapping[str, Any], reporting: Iterable[object] = ()
    ) -> Self:
        """Return the service of a variant of the agent, with the same live runs, journal and observers."""
        found = copy.copy(self)
        found.agent, found.kind = agent, kind
        found.currency, found.data = _with_currency(self.runtime, data, reporting)
        found.driver = self.driver.copy()
        found.recovery = _recovery_of(found)
        found.shares_journal = False  # it belongs to its agent
        kind.declare(found)
        return found

    @property
    def identity(self) -> AgentIdentity:
        """Name, version and tools of the agent."""
        data = self.data
        return AgentIdentity(
            self.machine.declared.name,
            str(data.get("agent", "")),
            str(data.get("agent_version", "")),
            data.get("definition"),
            self.currency,
        )

    def announce(
        self,
        max_seconds: float,
        guards: Iterable[str] = (),
        *,
        budgets: Iterable[str] | None = None,
        handoffs: Iterable[tuple[str, str]] = (),
        **labels: Any,
    ) -> None:
        """Declare the names of the runs to the observers, so that every series exists at 0 before the first run.

        `labels` are the models and the tools, `budgets` the limits that are set, and `handoffs` those between the
        agents of a team, as `Metrics.declare` has them.
        """
        about = {**labels, "backends": [self.journal.backend]}
        for observer in self.runtime.observers:
            tell = getattr(observer, "declare", None)
            if is_metrics(observer):
                observer.declare(
                    self.machine.valid_graph,
                    agent=self.identity.name,
                    guards=guards,
                    run_seconds=max_seconds or None,
                    version=self.identity.version,
                    budgets=budgets,
                    handoffs=handoffs,
                    currency=self.currency,
                    **about,
                )
            elif tell is not None:
                tell(self.machine.valid_graph, **about)
        connect(self.runtime.observers, self.journal)

    async def refuse_same_name(self) -> None:
        """Raise ConfigError if an open run of the journal belongs to another agent of this name and version."""
        if self.shares_journal:
            await refuse_same_name(self.journal, self.identity)

    # ---- new runs ----

    @contextmanager
    def left_when_waiting(self, run_id: str) -> Iterator[None]:
        """Leave a run that is driven in this block when it, or each active child run of it, waits for a person."""
        self.leaving.add(run_id)
        try:
            yield
        finally:
            self.leaving.discard(run_id)

    def new_run(self, run_id: str, ctx: Any, deps: Any, data: Mapping[str, Any]) -> Run[Any, Any]:
        """Return a new run; `data` is that of the host."""
        # Runs without data of their own share that of their agent.
        return Run(
            self.machine, run_id, ctx, deps, data=({**self.data, **data} if data else self.data) or None
        )

    async def deposit(self, run: Run[Any, Any], tenant: str) -> str:
        """Store a new run in the journal for a worker, and return its id. Raises ConfigError."""
        await self.driver.deposit(run, {"tenant": tenant} if arguments.checked_tenant(tenant) else {})
        return run.run_id

    def limit_time(self, run: Run[Any, Any], deadline: float | None) -> None:
        """Set the end of a new run: its time limit, and the caller's `deadline` in seconds from now."""
        if deadline is not None:
            run.ctx.deadline = max(0.0, deadline)
            if deadline <= 0:
                run.stop(DeadlineExceeded(0.0))
        self._set_end(run, self.control.clock.monotonic())

    def _set_end(self, run: Run[Any, Any], began: float) -> None:
        """Set the time (monotonic) by which a run must end, from its start."""
        limits = getattr(run.ctx, "limits", None)  # the context of a host's machine may have none
        ends = getattr(limits, "max_seconds", 0.0), getattr(run.ctx, "deadline", 0.0)
        seconds = [limit for limit in ends if limit]
        expires_at = began + min(seconds) if seconds else None
        run.limit_time(expires_at, getattr(limits, "cancel_seconds", GRACE))

    async def drive(self, run: Run[Any, Any], path: Iterable[Transition] = (), *, park: bool = False) -> R:
        """Drive a run to its end; with `park` until it has to wait for a person, which raises Suspended.

        Child runs never park: they wait in this process.
        """
        _warn_of_disabled_logger()
        earlier, leaves = await self._open(run, path), run.run_id in self.leaving
        # For code inside of the run:
        log = next((one for one in self.runtime.observers if isinstance(one, TransitionLog)), None)
        make_logger: Any = None if log is None else partial(log.logger_for, run.run_id, run.graph.name)
        end: R | None = None
        try:
            # No context managers here: every run keeps them while it waits.
            self.control.inbox.listen(run.run_id)
            try:
                limits = getattr(run.ctx, "limits", None)
                with scope(limits, make_logger=make_logger), RunScope(self.agent, run) as current:
                    current.leaves, current.unattended = leaves, run.run_id in self.unattended
                    if self._may_evict(run, earlier):
                        run.evict_when_waiting(self.runtime.evict_after, partial(self._detach, run, current))
                    await self.control.deliver(run.run_id)
                    await self.driver.drive(run, park=park or leaves)
            finally:
                try:
                    if not run.control.evicted:  # else `_detach` has closed it
                        kept = self.live.close(run)
                        if self.kind.over is not None and run.started_at is not None:  # else it was refused
                            self.kind.over(run)
                finally:
                    await self.control.inbox.leave(run.run_id)
            if run.control.evicted:
                seq = -1 if run.lease is None else run.lease.seq
                evicted = RunEvicted(run, seq)
                # A cancelled timer keeps its context, and with it the run, until the event loop drops it.
                run.ctx = run.deps = None
                raise evicted
            if not run.ended:
                leaves = run.control.pause_request is not None and run.control.pause_request.by == "shutdown"
                invalid = run.cursor.parked_for == INVALID_TABLE
                reason = (
                    "shutdown" if leaves else INVALID_TABLE if invalid else self.kind.waits_for or _A_PERSON
                )
                raise Suspended(run.run_id, reason)
            result = self.kind.result(run, kept, run.ending or self.kind.ending(run))
            if path != ():
                result = await self._completed(run, result)
            end = result
            return end
        finally:
            if not run.ended:
                await self.driver.release(run)
                if run.started_at is not None:
                    self.runtime.retire(run.run_id)
            if end is not None or not run.control.evicted:
                self.live.ended(run.run_id, end or Suspended(run.run_id, "interrupted"))

    async def _completed(self, run: Run[Any, Any], result: R) -> R:
        """Return the result of a resumed run with what only the journal has, and end its open descendants.

        The result does not depend on them: if the store fails, they stay open.
        """
        if self.kind.complete is not None:
            result = await self.kind.complete(run, result)
        try:
            async for ended in self.recovery.end_descendants(run.run_id):
                self.driver.publish(ended)
        except JournalError as error:
            _LOG.warning("run %r: its open child runs could not be ended: %s", run.run_id, error)
        return result

    async def drive_child(
        self,
        parent: Run[Any, Any],
        run_id: str,
        make: Callable[[], Awaitable[Run[Any, Any]]],
        adopt: Callable[[Run[Any, Any]], None],
    ) -> R:
        """Start or resume a child run and drive it to its end; for an ended one the result is only read.

        `make` returns a new run; `adopt` gets the run before it is driven. Raises RunExists if `run_id` is not a
        child of `parent`, ConfigError if its cost would be in another currency than that of `parent`.
        """
        if other := self.identity.other_currency(parent.run_id, str((parent.data or {}).get("currency", ""))):
            raise ConfigError(other)
        path: Iterable[Transition] = ()
        try:
            head = await self.journal.head(run_id)
        except RunUnknown:
            run = await make()
            run.parent_run_id = parent.run_id
            self.limit_time(run, None)
        else:
            if head.parent_run_id != parent.run_id:
                raise RunExists(run_id)
            if head.status == "ended":
                return await self.ended_result(run_id)
            run, path = await self.claim(run_id, None, f"run {parent.run_id}")
        adopt(run)
        return await self.drive(run, path)

    async def _open(self, run: Run[Any, Any], path: Iterable[Transition]) -> EvictedRun | None:
        """Add a run to the live runs; return the evicted run that it continues, whose reader follows it then.

        Raises RunExists, ConfigError, and the errors of the journal. The run is released if it is not added.
        """
        try:
            if run.started_at is None and run.parent_run_id is None:
                await self.refuse_same_name()
            earlier = self.evicted.find(run.run_id)
            if earlier is not None and earlier.follower is not None and run.lease is not None:
                await earlier.catch_up(self.journal, run.lease.seq)
                run.follow(earlier)
            self.live.open(run, path)
        except BaseException:
            await self.driver.release(run)
            raise
        return earlier

    # ---- evicted runs ----

    async def outlast(
        self,
        work: Coroutine[Any, Any, R],
        resume: Callable[[str], Awaitable[R]],
        follower: Follower | None,
    ) -> R:
        """Await the work of a new run. If the run is evicted meanwhile, follow it in the journal until it has ended.

        `resume` resumes the run by its id, when it can continue and no other process has resumed it.
        """
        try:
            return await work
        except RunEvicted as error:
            left = error.with_traceback(None)
        del work
        with EvictedRun(self.evicted, left, follower) as evicted:
            del left, follower
            try:
                while True:
                    try:
                        head = await self._ready(evicted)
                        if head is not None:
                            end = await self._continue_evicted(head, resume)
                            if evicted.follower is not None:  # another process may have ended it meanwhile
                                head = await self.journal.head(evicted.run_id)
                                await evicted.catch_up(self.journal, head.seq)
                            return end
                    except RunEvicted:
                        continue  # its new question may be answered already
                    except (Held, StoreDown):  # read again later
                        head, evicted.has_owner = None, True
                    await evicted.changed()
            finally:
                self.live.free(evicted.conversation_id, evicted.run_id)
                self.live.ended(evicted.run_id, Suspended(evicted.run_id, "interrupted"))

    async def _ready(self, evicted: EvictedRun) -> RunHead | None:
        """Return the head of an evicted run that has ended or can continue here; None while it waits.

        Raises RunUnknown if it was erased, and StoreDown.
        """
        head = await self.journal.head(evicted.run_id)
        await evicted.catch_up(self.journal, head.seq)
        evicted.has_owner = head.owner is not None
        if head.status == "ended":
            return head
        if evicted.has_owner:
            return None
        found = await self.recovery.described(head)
        evicted.expires_at = found.expires_at
        return head if found.unattended else None

    async def _continue_evicted(self, head: RunHead, resume: Callable[[str], Awaitable[R]]) -> R:
        """Resume an evicted run, in a slot of the engine if it has one, or read the result of one that has ended.

        Raises Held and the errors of `resume`.
        """
        limiter = self.driver.limiter
        if head.status == "ended":
            end = await self.ended_result(head.run_id)
            self.live.ended(head.run_id, end)
            return end
        if limiter is None:
            return await resume(head.run_id)
        await limiter.back(head.run_id)
        try:
            return await resume(head.run_id)
        except Held:
            limiter.leave(head.run_id, head.reason)
            raise

    def _may_evict(self, run: Run[Any, Any], earlier: EvictedRun | None) -> bool:
        """Return whether a run may be evicted: its caller, who started it, waits in this task and can follow it."""
        if not self.runtime.evict_after or run.parent_run_id is not None:
            return False
        if run.started_at is not None and (earlier is None or earlier.task is not asyncio.current_task()):
            return False  # resumed by somebody else
        return self.kind.keeps_state is None or not self.kind.keeps_state(run)

    def _detach(self, run: Run[Any, Any], current: RunScope) -> bool:
        """Remove a waiting run from the live runs; later requests go to the journal. False if it has to stay."""
        leaves = run.control.pause_request is not None and run.control.pause_request.by == "shutdown"
        if current.children or leaves:
            return False
        self.live.close(run)
        self.live.reserve(getattr(run.ctx, "conversation_id", None), run.run_id)
        return True

    # ---- stored runs ----

    async def resume(
        self,
        run_id: str,
        limits: Any,
        by: str,
        *,
        again: bool,
        from_agent: str | None,
        drive: Callable[[Run[Any, Any], Iterable[Transition]], Awaitable[R]],
    ) -> R:
        """Resume a run of the journal and return its result. For an ended run of this agent it is only read.

        `limits`, unless None, replace the run's own. `again` and `from_agent` as for `Recovery.claim`. `drive` gets
        the resumed run with its path.
        """
        live = self.live.find(run_id)
        if live is not None:  # it may be paused here
            if live.control.pause_request is None or limits is not None:
                raise Held(run_id, "this process: it is active here")
            self.control.go_on(run_id, by)
            end: R = await asyncio.shield(self.live.end_of(run_id))
            return end
        if self.kind.check_limits is not None:
            self.kind.check_limits(limits)
        head = await self.journal.head(run_id)
        if head.status == "ended":
            self.recovery.refuse_foreign(head, from_agent)
            return await self.ended_result(run_id)
        if self.kind.check_resume is not None:
            await self.kind.check_resume(head, again)
        try:
            with self.live.taking(run_id):
                run, path = await self.claim(run_id, limits, by, again=again, from_agent=from_agent)
        except RunAlreadyEnded:
            return await self.ended_result(run_id)
        try:
            return await drive(run, path)
        finally:
            if not run.ended:  # its facade failed, or was cancelled, before the run was driven
                await self.driver.release(run)

    async def ended_result(self, run_id: str) -> R:
        """Return the result of an ended run from its records."""
        stored, records = await self.recovery.read(run_id)
        said = stored.ended or {}
        end = Ending(Outcome(said["outcome"]), said["reason"])
        run = self.kind.restore(stored, records)
        result = self.kind.result(run, self._path(run_id, records), end)
        return result if self.kind.complete is None else await self.kind.complete(run, result)

    def _path(self, run_id: str, records: Iterable[Record]) -> RecordedPath:
        return RecordedPath(run_id, self.machine.declared.name, records, self.kind.laps)

    async def claim(
        self, run_id: str, limits: Any, by: str, *, again: bool = False, from_agent: str | None = None
    ) -> tuple[Run[Any, Any], RecordedPath]:
        """Claim and restore a run of the journal, and record its resumption; return it with its path.

        The record contains the changes of the context (other limits, a charge for lost answers) and the programs that
        the last owner left running. `again` and `from_agent` as for `Recovery.claim`.
        """
        stored, records, lease, ended = await self._claimed(run_id, again=again, from_agent=from_agent)
        try:
            run = self.kind.restore(stored, records)
            run.set_lease(lease)
            if limits is not None:
                run.ctx.limits = limits
            facts: Iterable[Fact] = ()
            if self.kind.update is not None:
                facts = await self.kind.update(run, stored, records, limits)
            changes = self.kind.codec.changes(run)
            self._set_end(run, run.started_at or 0.0)
            body = {"at": self.control.clock.time(), "by": by, "context": changes}
            body |= self.identity.taking(stored, from_agent)
            if ended:
                body["ended"] = list(ended)
                _LOG.warning(
                    "run %r: %s was still running and was ended before its work is repeated",
                    run_id,
                    ", ".join(ended),
                )
            await self.driver.announce(run, "resumed", body)
            for fact in facts:
                run.emit(fact)
        except BaseException:
            await let_go(self.journal, lease)
            raise
        return run, self._path(run_id, records)

    async def _claimed(self, run_id: str, *, again: bool, from_agent: str | None) -> ClaimedRun:
        """Claim a run, and publish the recovery of one that its last owner had left."""
        try:
            found = await self.recovery.claim(run_id, again=again, from_agent=from_agent)
        except (ProgramsUnknown, DepsRequired) as error:
            if error.parked:
                self.driver.publish(await self.recovery.parked(run_id))
            raise
        except (Suspended, OtherGraph, Corrupt) as error:
            self._publish_recovered(run_id, _NOT_RECOVERED[type(error)])
            raise
        if found.stored.parked is None and found.stored.begun:
            self._publish_recovered(run_id, "resumed")
        return found

    def _publish_recovered(self, run_id: str, outcome: str) -> None:
        graph, at = self.machine.declared.name, self.control.clock.time()
        self.driver.publish(RunRecovered(graph, run_id, outcome, at, self.identity.name))


def _recovery_of(service: RunService[Any]) -> Recovery:
    return Recovery(
        service.journal,
        service.machine,
        service.kind.codec,
        service.driver.owner,
        service.runtime.migrations,
        agent=service.identity,
        now=service.clock.time,
        lacks_deps=service.kind.lacks_deps,
        lacks_agent=service.kind.lacks_agent,
        own_migrations=service.kind.migrations,
        repeated=service.kind.repeated,
    )
