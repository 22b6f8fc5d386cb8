"""Execution of runs, the same for every graph: live in this process, durable in one journal, with control requests."""

from __future__ import annotations

import asyncio
import functools
import logging
import warnings
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from orchestrator.errors import Corrupt, DeadlineExceeded, Held, OrchestratorError, OtherGraph, Suspended
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.clock import GRACE
from orchestrator.kernel.driver import INVALID_TABLE, Driver
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Journal, Record, RunHead, let_go
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.record import Follower, Observer, RunRecovered, Transition
from orchestrator.kernel.run import Run
from orchestrator.machines.question import Question
from orchestrator.runtime.runs.runs import Runs
from orchestrator.runtime.service import option as arguments
from orchestrator.runtime.service.answer import RunController
from orchestrator.runtime.service.child_run import RunScope
from orchestrator.runtime.service.option import new_id
from orchestrator.runtime.service.ownership import AgentIdentity, LocalDefinition, RunRegistry, register
from orchestrator.runtime.service.program import ProgramsUnknown
from orchestrator.runtime.service.recovery import (
    ClaimedRun,
    DepsRequired,
    RecordedPath,
    Recovery,
    RunAlreadyEnded,
)
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.runtime.service.stream import RunStream
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
_NOT_RECOVERED = {Suspended: "poison", OtherGraph: "other_graph", Corrupt: "corrupt"}


def announce(  # noqa: PLR0917 - the parts of one agent, called in two places
    observers: Sequence[Observer],
    graph: Graph,
    journal: Journal,
    max_seconds: float,
    agent: str,
    guards: Iterable[str] = (),
) -> None:
    """Declare the names of a graph without its own models and tools to the observers."""
    for observer in observers:
        tell = getattr(observer, "declare", None)
        if is_metrics(observer):
            observer.declare(
                graph,
                agent=agent,
                guards=guards,
                backends=[journal.backend],
                run_seconds=max_seconds or None,
            )
        elif tell is not None:
            tell(graph, backends=[journal.backend])
    connect(observers, journal)


def logger_of(observers: Sequence[Observer], run: Run[Any, Any]) -> Callable[[], Any] | None:
    """Return a function that makes the logger for code inside a run, if there is a log."""
    for observer in observers:
        if isinstance(observer, TransitionLog):
            return partial(observer.logger_for, run.run_id, run.graph.name)
    return None


class RunService(Generic[R]):
    """Runs the runs of one graph; R is the type of their results. Base of the facades in `runtime`."""

    _limits: Any
    _machine: Machine
    _codec: ContextCodec[Any]
    _driver: Driver
    _recovery: Recovery
    _data: Mapping[str, Any] = MappingProxyType({})
    """Name and version of the agent, stored with each of its runs."""
    _shares: bool = False
    """Whether other agents may use its journal."""
    laps: Container[str] = ()
    """Events that count an iteration of the path."""
    waits_for: str = "it waits for a person"
    """Description of the cause that a parked run waits for."""
    parks: bool = False
    """Whether a run that has to wait for a person is left in the journal (Suspended); child runs always wait here."""

    @property
    def name(self) -> str:
        """Name of the agent; empty if it has none."""
        return str(self._data.get("agent", ""))

    @property
    def version(self) -> str:
        """Version of the agent; empty if it has none."""
        return str(self._data.get("agent_version", ""))

    @property
    def machine(self) -> Machine:
        """The `transitions.Machine` of its graph. A change through the library's interface applies to all its runs.

        Each run follows at its next step, and its records have the fingerprint of the changed table. Several changes
        go into one block `with agent.machine.changing():`.
        """
        return self._machine

    @property
    def identity(self) -> AgentIdentity:
        """Name, version and tools of the agent."""
        return AgentIdentity(
            self._machine.declared.name, self.name, self.version, self._data.get("definition")
        )

    # ---- composition ----

    def _set_up(self, runtime: Runtime, find_tool: Callable[[str], ToolSpec | None] = lambda _: None) -> None:
        """Set the common services. `_wire` follows when machine and codec are set too."""
        self._runtime, self._clock, self._retire = runtime, runtime.clock, runtime.retire
        self._observers, self._journal = runtime.observers, runtime.journal
        self._shares = runtime.own_journal is None
        self._live = RunRegistry()
        self._control = RunController(self._live, self._journal, self._clock, find_tool)

    def _identify(self, definition: Mapping[str, str], *parts: object, launched: bool = False) -> None:
        """Store the tools with each run, and refuse another agent of this name on the journal. Raises ConfigError.

        Called between `_set_up` and `_wire`. With `launched`, the launch of each run says how its agent is made.
        """
        if not launched:
            self._data = {**self._data, "definition": definition}
            register(self, self._journal, self.identity, LocalDefinition.of(definition, *parts))

    def _wire(self, *watching: Observer, owner: str | None = None) -> None:
        """Make the driver and the recovery of the runs, and declare their names to the observers."""
        self._declare()
        self._driver = Driver(
            self._machine,
            observers=(self._live, *watching, *self._observers),
            journal=self._journal,
            owner=owner,
            clock=self._clock,
            ending=self._ending,
            summary=self._summary,
            codec=self._codec,
            agent=self.identity.name,
            declare=self._declare,
        )
        self._recovery = self._make_recovery()

    def _make_recovery(self) -> Recovery:
        return Recovery(
            self._journal,
            self._machine,
            self._codec,
            self._driver.owner,
            self._runtime.migrations,
            agent=self.identity,
            shared=self._shares,
            now=self._clock.time,
            lacks_deps=self._lacks_deps,
            repeated=self._repeated_work,
        )

    # ---- implemented by facades ----

    def _declare(self) -> None:
        """Declare the names of the runs to the observers."""
        seconds, agent = self._limits.max_seconds, self.identity.name
        announce(self._observers, self._machine.graph, self._journal, seconds, agent)

    def _ending(self, run: Run[Any, Any]) -> Ending:
        """Return outcome and reason of a run in its terminal state."""
        raise NotImplementedError

    def _summary(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the totals for `run.completed`."""
        raise NotImplementedError

    def _result(self, run: Run[Any, Any], path: Iterable[Transition], end: Ending) -> R:
        """Return the result of a run that ended."""
        raise NotImplementedError

    def _with_recorded_output(self, result: R, ended: Mapping[str, Any]) -> R:  # noqa: ARG002 - by default none
        """Return the result of an ended run with the part of its output that only its last record has."""
        return result

    def _restore(self, stored: StoredRun, records: Iterable[Record]) -> Run[Any, Any]:
        """Return a run as of its last record. Changes nothing outside."""
        raise NotImplementedError

    def _lacks_deps(self, stored: StoredRun) -> bool:  # noqa: ARG002 - by default no run has deps
        """Return whether a run needs live deps that cannot be made here."""
        return False

    def _repeated_work(self, stored: StoredRun, tools: Mapping[str, str]) -> Iterable[str]:  # noqa: ARG002
        """Say how a resumed run repeats its interrupted work."""
        return ()

    def _check_run(
        self, run_id: object, conversation_id: object, limits: object, deadline: object, /, **options: Any
    ) -> Any:
        """Check the arguments and options of one run, and return its settings. Raises ConfigError."""
        raise NotImplementedError

    async def _begin(  # noqa: PLR0917 - the arguments of a new run
        self,
        prompt: Any,
        run_id: str,
        conversation_id: str | None,
        limits: Any,
        deadline: float | None,
        settings: Any,
        follower: Follower | None = None,
        /,
    ) -> R:
        """Start a run with checked arguments and drive it to its end."""
        raise NotImplementedError

    def _check_model(self, limits: Any) -> None:
        """Check that a run with these limits may call its model. None means unchanged limits."""

    async def _check_resume(self, head: RunHead, *, again: bool) -> None:
        """Check that a run may be resumed, before it is claimed. Raises Suspended, ConfigError."""

    async def _update(
        self,
        run: Run[Any, Any],
        stored: StoredRun,  # noqa: ARG002 - for facades
        records: Sequence[Record],  # noqa: ARG002
        limits: Any,
    ) -> None:
        """Change a restored and claimed run: other limits, charges, and data outside of its records."""
        if limits is not None:
            run.ctx.limits = limits

    async def _drive(self, run: Run[Any, Any], path: Iterable[Transition]) -> R:
        """Drive a resumed run to its end."""
        return await self._drive_run(run, path, park=self.parks)

    def _out_of_hand(self, run: Run[Any, Any]) -> None:
        """Clean up a run that is not driven any more, before its result is made."""

    def _over(self, run: Run[Any, Any]) -> None:
        """Clean up a started run that is over here: it ended, or was left where it is."""

    # ---- new runs ----

    def _stream(  # noqa: PLR0917 - the arguments of a new run
        self,
        prompt: Any,
        run_id: str | None,
        conversation_id: str | None,
        limits: Any,
        deadline: float | None,
        settings: Any,
    ) -> RunStream[Any, R]:
        """Return the stream of a new run with checked arguments."""
        name = run_id or new_id()
        work = functools.partial(self._begin, prompt, name, conversation_id, limits, deadline, settings)
        return RunStream(name, work)

    async def _deposit(self, run: Run[Any, Any], tenant: str) -> str:
        """Store a new run in the journal for a worker, and return its id. Raises ConfigError."""
        await self._driver.deposit(run, {"tenant": tenant} if arguments.checked_tenant(tenant) else {})
        return run.run_id

    # ---- control ----

    @property
    def runs(self) -> Runs:
        """The runs of the journal, also those of other agents and processes."""
        return Runs(self._journal, control=self._control)

    def cancel(
        self, run_id: str, *, reason: str = "caller", by: str = "caller", why: str = ""
    ) -> Awaitable[None]:
        """Request that a run stops: it starts nothing more and ends as `cancelled`.

        A live run of this process has received the request when this returns. For a run of another process, await the
        result: the request is in the journal then.

        Args:
            run_id: Id of the run.
            reason: "caller", or "shutdown" if the process stops.
            by: Who cancels the run.
            why: The reason as text.

        Raises:
            RunUnknown: The run does not exist.
            ConfigError: `reason` has another value.
        """
        return self._control.stop(run_id, reason, by, why)

    def pause(self, run_id: str, *, by: str = "", why: str = "") -> Awaitable[None]:
        """Request that a run parks before its next step, after the work in flight; `resume` continues it.

        As `cancel`.
        """
        return self._control.keep_future(run_id, by, why)

    # ---- private ----

    def _limit_time(self, run: Run[Any, Any], deadline: float | None) -> None:
        """Set the end of a new run: its time limit, and the caller's `deadline` in seconds from now."""
        if deadline is not None:
            run.ctx.deadline = max(0.0, deadline)
            if deadline <= 0:
                run.stop(DeadlineExceeded(0.0))
        self._set_end(run, self._control.clock.monotonic())

    def _set_end(self, run: Run[Any, Any], began: float) -> None:
        """Set the time (monotonic) by which a run must end, from its start."""
        seconds = [limit for limit in (run.ctx.limits.max_seconds, run.ctx.deadline) if limit]
        expires_at = began + min(seconds) if seconds else None
        run.limit_time(expires_at, getattr(run.ctx.limits, "cancel_seconds", GRACE))

    async def _drive_run(
        self, run: Run[Any, Any], path: Iterable[Transition] = (), *, park: bool = False
    ) -> R:
        """Drive a run to its end; with `park` until it has to wait for a person, which raises Suspended."""
        _warn_of_disabled_logger()
        if run.started_at is None and run.parent_run_id is None:
            await self._recovery.refuse_second()
        try:
            self._live.open(run, path)
        except OrchestratorError:
            await self._driver.release(run)
            raise
        end: R | None = None
        try:
            async with self._control.listening(run.run_id):
                try:
                    make_logger = logger_of(self._observers, run)
                    with scope(run.ctx.limits, make_logger=make_logger), RunScope(self, run):
                        await self._control.deliver(run.run_id)
                        await self._driver.drive(run, park=park)
                finally:
                    kept = self._live.close(run)
                    self._out_of_hand(run)
            if not run.ended:
                leaves = run.control.pause_request is not None and run.control.pause_request.by == "shutdown"
                invalid = run.cursor.parked_for == INVALID_TABLE
                reason = "shutdown" if leaves else INVALID_TABLE if invalid else self.waits_for
                raise Suspended(run.run_id, reason)
            end = self._result(run, kept, run.ending or self._ending(run))
            return end
        finally:
            if run.started_at is not None:  # a refused run wrote no record
                self._over(run)
                if not run.ended:
                    await self._driver.release(run)
                    self._retire(run.run_id)
            self._live.ended(run.run_id, end or Suspended(run.run_id, "interrupted"))

    async def _resume(
        self, run_id: str, limits: Any, by: str, *, again: bool = False, from_agent: str | None = None
    ) -> R:
        """Resume a run of the journal and return its result. For an ended run of this agent it is only read.

        `limits`, unless None, replace the run's own. `again` and `from_agent` as for `Recovery.claim`.
        """
        live = self._live.find(run_id)
        if live is not None:
            return await self._resume_here(live, by, changed=limits is not None)
        self._check_model(limits)
        head = await self._journal.head(run_id)
        if head.status == "ended":
            self._recovery.refuse_foreign(head, from_agent)
            return await self._ended_result(run_id)
        await self._check_resume(head, again=again)
        try:
            with self._live.taking(run_id):
                run, path = await self._claim(run_id, limits, by, again=again, from_agent=from_agent)
        except RunAlreadyEnded:
            return await self._ended_result(run_id)
        return await self._drive(run, path)

    async def _ended_result(self, run_id: str) -> R:
        """Return the result of an ended run from its records."""
        stored, records = await self._recovery.read(run_id)
        said = stored.ended or {}
        end = Ending(Outcome(said["outcome"]), said["reason"])
        result = self._result(self._restore(stored, records), self._path(run_id, records), end)
        return self._with_recorded_output(result, said)

    def _path(self, run_id: str, records: Iterable[Record]) -> RecordedPath:
        return RecordedPath.of(run_id, self._machine.declared.name, records, self.laps)

    async def _resume_here(self, run: Run[Any, Any], by: str, *, changed: bool) -> R:
        """Resume a run that was paused here, and return its result. Raises Held if it is not paused."""
        if run.control.pause_request is None or changed:
            raise Held(run.run_id, "this process: it is active here")
        self._control.go_on(run.run_id, by)
        end: R = await asyncio.shield(self._live.end_of(run.run_id))
        return end

    async def _claim(
        self, run_id: str, limits: Any, by: str, *, again: bool = False, from_agent: str | None = None
    ) -> tuple[Run[Any, Any], RecordedPath]:
        """Claim and restore a run of the journal, and record its resumption; return it with its path.

        The record contains the changes of the context by `_update` (other limits, a charge for lost answers) and the
        programs that the last owner left running. `again` and `from_agent` as for `Recovery.claim`.
        """
        stored, records, lease, ended = await self._claimed(run_id, again=again, from_agent=from_agent)
        try:
            run = self._restore(stored, records)
            run.set_lease(lease)
            await self._update(run, stored, records, limits)
            changes = self._codec.changes(run)
            self._set_end(run, run.started_at or 0.0)
            body = {"at": self._control.clock.time(), "by": by, "context": changes}
            body |= self.identity.taking(stored, from_agent)
            if ended:
                body["ended"] = list(ended)
                _LOG.warning(
                    "run %r: %s was still running and was ended before its work is repeated",
                    run_id,
                    ", ".join(ended),
                )
            await self._driver.announce(run, "resumed", body)
        except BaseException:
            await let_go(self._journal, lease)
            raise
        return run, self._path(run_id, records)

    async def _claimed(self, run_id: str, *, again: bool, from_agent: str | None) -> ClaimedRun:
        """Claim a run, and publish the recovery of one that its last owner had left."""
        try:
            found = await self._recovery.claim(run_id, again=again, from_agent=from_agent)
        except (ProgramsUnknown, DepsRequired) as error:
            if error.parked:
                self._driver.publish(await self._recovery.parked(run_id))
            raise
        except (Suspended, OtherGraph, Corrupt) as error:
            self._publish_recovered(run_id, _NOT_RECOVERED[type(error)])
            raise
        if found.stored.parked is None and found.stored.begun:
            self._publish_recovered(run_id, "resumed")
        return found

    def _publish_recovered(self, run_id: str, outcome: str) -> None:
        graph, at = self._driver.machine.declared.name, self._control.clock.time()
        self._driver.publish(RunRecovered(graph, run_id, outcome, at, self.identity.name))


class HumanInput(RunService[R]):
    """A RunService for runs that ask people about calls; R is the type of a run's result."""

    def approve(
        self,
        run_id: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        arguments: str | None = None,
        by: str = "",
        why: str = "",
    ) -> Awaitable[None]:
        """Approve a call that waits for a person.

        Await this: the answer is in the journal then. A journal in memory has it when this returns. The journal
        stores the first valid answer to a question, from any process. The same answer of the same person returns
        normally, also after the run has ended.

        Args:
            run_id: Id of the run.
            call: Key of the call as in `pending`; required if several calls wait.
            digest: If given, the answer counts only for exactly these arguments.
            arguments: JSON text that replaces the model's arguments.
            by: Who answers; the current user by default.
            why: The reason.

        Raises:
            AnswerRefused: The answer does not count. `earlier` is the answer that counts, if any.
            RunUnknown: The run does not exist.
            StoreDown: The store is unavailable.
        """
        return self._control.answer(run_id, "approve", by, why, call=call, digest=digest, arguments=arguments)

    def reject(
        self,
        run_id: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        by: str = "",
        why: str = "",
        end: bool = False,
    ) -> Awaitable[None]:
        """Reject a call: the model reads that and the reason. With `end` the run ends as `rejected`. As `approve`."""
        return self._control.answer(run_id, "reject", by, why, call=call, digest=digest, end=end or None)

    def respond(
        self,
        run_id: str,
        content: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        by: str = "",
        why: str = "",
    ) -> Awaitable[None]:
        """Answer a call in place of its tool: the model reads `content` as its result. As `approve`."""
        return self._control.answer(run_id, "respond", by, why, call=call, digest=digest, content=content)

    async def pending(self, run_id: str) -> list[Question]:
        """Return the unanswered questions of a run in this or another process. Raises RunUnknown.

        A question is listed as soon as it is durable, until the journal stores an answer to it.
        """
        return await self._control.pending(run_id)
