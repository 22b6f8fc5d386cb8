"""The local engine: executes the runs of one or several agents in one asyncio process, with a limit on concurrent runs.

    async with LocalEngine(agent, slots=16) as engine:
        handle = await engine.submit("Summarise the open incidents.")
        result = await handle

    async with LocalEngine(agent, recover="resume") as engine:  # a process that only executes runs
        await engine.run_until_signal()

Submitted runs wait in memory, first come first served; the journal knows a run only after it has started. Runs of one
conversation run one after the other. A parked run returns its slot and queues for one when it can continue (`Slots`
documents the order); an agent that is a tool of a run shares that run's slot. A run that is cancelled while it waits
ends without a slot, because it only writes a few records. Leaving the block drains the engine, at once after an error.

The engine never touches the signal handlers of its host: a web server has its own, and its shutdown leaves the block.
`run_until_signal`, for a process without another main job, catches SIGTERM and SIGINT until it returns. (An option that
caught them from the start replaced the handlers of uvicorn, which then never closed its connections.)

An engine has no thread: call it only in the process and event loop that started it, and from other threads with
`asyncio.run_coroutine_threadsafe`. After a fork the child process has to make its own engine. Every task is awaited
before the engine has stopped, and a caller's cancellation ends only the caller's waiting.

Draining an engine: runs that can end in time end, the others are left in the journal and can be resumed.

1. Queued runs do not start. They are rejected, or stay in the journal if it has them.
2. Active runs get `grace` seconds to end. The drain does not wait for runs that wait for a person.
3. The remaining runs are asked to pause before their next step, with the reason `shutdown`, and get SETTLE seconds.
4. Runs that are still inside a step are interrupted. Recovery treats them like runs after a crash, by the effects of
   their tools. Runs that wait are left as they are. A tool that ignores its cancellation is abandoned after the run's
   `cancel_seconds` (kernel/cancellation.py). An unavailable journal server is not waited for: a supervisor would not
   wait for it either.

A later drain may shorten step 2, or steps 2 and 3, while they last.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Generic, Self, Unpack

from orchestrator.argument_names import checks_names
from orchestrator.engines.agent import AgentRegistry, AgentResultT_co, EngineAgent, RunLimits, SubmitArguments
from orchestrator.engines.dispatcher import Scheduler
from orchestrator.engines.engine_directory import START, STARTED, EngineLog, Registration
from orchestrator.engines.operator_command import ActiveCommands, CommandHandler, OperatorCommand
from orchestrator.engines.orphan_recovery import OrphanRecovery, Recover, checked_mode
from orchestrator.engines.process import (
    GcThresholds,
    LoopAffinity,
    current_affinity,
    first_signal,
    refuse_foreign,
)
from orchestrator.engines.run_queue import EngineJob, Handle, RunQueue
from orchestrator.errors import (
    ConfigError,
    JournalError,
    NotAdmitting,
    OrchestratorError,
    OtherAgent,
    RunError,
    RunExists,
    RunUnknown,
    Suspended,
)
from orchestrator.kernel.clock import running_loop
from orchestrator.kernel.fact import Follower
from orchestrator.kernel.journal import Journal
from orchestrator.llm.port import Clock
from orchestrator.runtime.llm_loop.run_options import RunArguments
from orchestrator.runtime.run_stream import RunStream
from orchestrator.runtime.service.answer import default_actor
from orchestrator.runtime.service.arguments import IfExists, check_if_exists
from orchestrator.runtime.service.recovery import OpenRun
from orchestrator.telemetry.instrument import Load

SETTLE = 5.0
"""Seconds that runs get to finish their step.

A supervisor has to wait for grace + SETTLE + the greatest `cancel_seconds` of its runs, with some reserve.
"""

HURRY = 10.0
"""Seconds after a forced drain in which calls do not wait for an unavailable journal server."""

SHUTDOWN = "shutdown"
_INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The outcome of each run when an engine was drained, by run id."""

    ended: tuple[str, ...] = ()
    """Ended within the grace period."""
    parked: tuple[str, ...] = ()
    """Left in the journal between two steps, or where they waited for a person."""
    interrupted: tuple[str, ...] = ()
    """Left in the journal inside a step."""
    refused: tuple[str, ...] = ()
    """Never started; they are not in the journal."""


class Drain:
    """Drain a queue of runs."""

    def __init__(self, name: str, agents: AgentRegistry, line: RunQueue, clock: Clock, why: str) -> None:
        self._name = name
        self._agents = agents
        self._line = line
        self._clock = clock
        self._why = why
        self._found: dict[str, list[str]] = {"ended": [], "parked": [], "interrupted": [], "refused": []}
        self._ends: float | None = None
        self._at_once = False

    def shorten(self, seconds: float) -> None:
        """End the grace period in at most this many seconds; SETTLE does not change."""
        ends = self._clock.monotonic() + seconds
        if not self._line.frozen and (self._ends is None or ends < self._ends):
            self._ends = ends
            self._line.changed.set()

    def hurry(self) -> None:
        """Interrupt all remaining runs at once."""
        self._at_once = True
        self._line.changed.set()

    async def run(self) -> DrainReport:
        """Drain the queue and return the outcome of its runs."""
        line = self._line
        for job in self._line.let_go(lambda _: True):
            if job.stored:
                self._found["parked"].append(job.run_id)
                job.settle(Suspended(job.run_id, SHUTDOWN))
            else:
                self._found["refused"].append(job.run_id)
                job.settle(NotAdmitting(self._name, self._why, "submit it to another engine"))
        begun = list(line.live.values())
        await self._until_idle()
        line.freeze()
        for job in self._line.active():
            if not job.hosting.ask(job.run_id, "pause", by=SHUTDOWN, why=self._why):
                self._cut(job)  # it is not claimed yet, or it has ended and its result is read
        self._ends = self._clock.monotonic() + SETTLE
        await self._until_idle()
        left = list(line.live.values())
        for job in left:
            self._cut(job)
        for job in begun:
            if job.cut and not job.end.done():
                _hurry(job.hosting.journal)
        if tasks := [job.task for job in left if job.task is not None]:
            await asyncio.wait(tasks)
        for job in begun:
            if not job.end.done():
                job.settle(await self._outcome(job))
            self._found[_kind(job.end.result())].append(job.run_id)
        return DrainReport(**{name: tuple(found) for name, found in self._found.items()})

    async def _until_idle(self) -> None:
        """Return when no run is active any more, or when the time is up."""
        line, clock = self._line, self._clock
        while line.active() and not self._at_once:
            left = None if self._ends is None else self._ends - clock.monotonic()
            if left is not None and left <= 0:
                return
            line.changed.clear()
            alarm = None if left is None else clock.call_later(left, line.changed.set)
            try:
                await line.changed.wait()
            finally:
                if alarm is not None:
                    alarm.cancel()

    def _cut(self, job: EngineJob) -> None:
        job.cut = True
        if job.task is not None:
            job.task.cancel()

    async def _outcome(self, job: EngineJob) -> object:
        """Return the outcome of an interrupted run from its state in the journal."""
        try:
            head = await job.hosting.journal.head(job.run_id)
            if head.status == "ended":
                return await self._agents[job.agent].resume(job.run_id)
        except RunUnknown:
            return NotAdmitting(self._name, self._why, "submit it to another engine")
        except JournalError:
            return Suspended(job.run_id, _INTERRUPTED)
        except OrchestratorError as error:  # the id belongs to a run of another agent
            return error
        return Suspended(job.run_id, head.reason or _INTERRUPTED)


def _kind(outcome: object) -> str:
    """Return the field of DrainReport for the outcome of a run."""
    if isinstance(outcome, NotAdmitting):
        return "refused"
    if isinstance(outcome, Suspended):
        return "interrupted" if outcome.reason == _INTERRUPTED else "parked"
    return "ended"


def _hurry(journal: Journal) -> None:
    """Make a journal with a server stop waiting for that server. Other journals have no server."""
    hurry = getattr(journal, "hurry", None)
    if hurry is not None:
        hurry(HURRY)


@checks_names
class LocalEngine(Generic[AgentResultT_co]):
    """Execute runs of agents that share one journal, at most `slots` runs at once.

    With `recover="resume"` the engine also resumes orphaned runs, at its start and as long as it lives: runs whose
    process died or gave them back, including runs that have to ask about an irreversible call that may have happened.
    A run that was parked for an answer stays in the journal and costs nothing here; it is resumed when it was answered
    or cancelled, or when its question expires. Of several engines on one journal only one resumes a run. Not resumed
    are paused runs until they are resumed or cancelled, poison and damaged runs, runs of another version of the graph,
    runs whose graph several agents here have, and runs that were started with a `launch` if the agent has none.

    Args:
        agent: One Agent or Pipeline, or several by name.
        queue: Maximum number of runs that wait to start.
        grace: Seconds that runs get to end when the engine drains.
        rescan: Seconds between two searches for runs whose process died.
        gc_thresholds: Thresholds of Python's garbage collector in this process from the start of the engine until it
            has drained, as for `gc.set_threshold`; then those from before are back. None leaves the collector alone.
            With thousands of runs at once, (50_000, 20, 50) saves up to half of the processor time. Never freezes
            objects.
        scheduler: Receives the orphaned runs; the engine executes only submitted and resumed runs (see `worker`).

    Raises ConfigError if an argument is invalid, or if the agents cannot work in one engine.
    """

    def __init__(
        self,
        agent: EngineAgent[AgentResultT_co] | Mapping[str, EngineAgent[Any]],
        *,
        slots: int = 16,
        queue: int = 1000,
        grace: float = 30.0,
        name: str | None = None,
        recover: Recover = "list",
        rescan: float = 5.0,
        gc_thresholds: tuple[int, int, int] | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._agents = AgentRegistry(agent)
        self._grace = float(OperatorCommand.of("drain", "", {"grace": grace}).about)
        self.name = name or "local"
        self._recover, self._queue = checked_mode(recover), queue
        self._gc = GcThresholds(gc_thresholds)
        self._journal, self._clock = self._agents.journal, self._agents.clock
        self._line = RunQueue(self.name, slots, queue, self._may_begin)
        self._active_commands = ActiveCommands(self._line.slots.fill)
        self._registration = Registration(self._journal, self._clock)
        self._log = EngineLog(self.name, self._registration)
        parts = self._line, self._active_commands, self._registration, self._log
        self._commands = CommandHandler(
            self._agents.hosts, *parts, drain=self._begin_to_drain, start=self.deposit
        )
        self._orphans = OrphanRecovery(self._agents, self._line, rescan, self._commands.is_closed, scheduler)
        self._scheduler = scheduler
        self.found: list[OpenRun] = []
        """The runs that had not ended when the engine started, and what `resume` would do with each."""
        self.recovered: dict[str, Handle] = {}
        """The runs that were resumed at the start. `status` also shows the runs that were resumed later."""
        self._affinity: LoopAffinity | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._drain: Drain | None = None
        self._draining: asyncio.Task[DrainReport] | None = None
        self._command_tasks: set[asyncio.Task[None]] = set()
        self._leaving = asyncio.Event()

    @property
    def run_id(self) -> str:
        """Id of the run that represents this engine in the journal."""
        return self._registration.run_id

    # ---- lifecycle ----

    async def start(self) -> list[OpenRun]:
        """Start to admit runs and return the runs that had not ended (`found`).

        With `recover="resume"` the runs that can continue unattended do so, oldest first, before any submitted run.
        The records of engines on this journal that died without stopping are closed and name this engine. Raises
        RunError if an agent has another engine, and the errors of the journal.
        """
        running_loop()
        if self._affinity is not None:
            raise ConfigError(f"engine {self.name!r} was started before; make another one")
        # Attach the agents and create the engine's run in the journal, all or nothing.
        self._agents.attach(self, self._line, self._active_commands)
        try:
            self.found = await self._orphans.found()
            limits = {"slots": self._line.slots.limit, "queue": self._queue, "grace": self._grace}
            how = {"recover": self._recover} | ({"placed": True} if self._orphans.places else {})
            await self._registration.begin(
                {"name": self.name, **limits, **how, "agents": self._agents.plain()}
            )
        except BaseException:
            self._agents.detach(self)
            raise
        self._affinity = current_affinity()
        self._gc.set()
        self._log.started(self._line.slots.limit, len(self.found))
        if self._journal.shared:
            self._background(self._registration.listen(self._commands.take), "inbox")
        try:
            await self._registration.close_lost(f"engine {self.name}")
            if self._recover == "resume":
                self.recovered = await self._orphans.begin(self.found)
                self._background(self._orphans.keep(), "uptake")
        except BaseException:
            await self._drain_at_once()
            raise
        return self.found

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.drain(None if kind is None else 0.0, why="the engine is left")
        except asyncio.CancelledError:
            await self._drain_at_once()
            raise

    # ---- runs ----

    async def submit(
        self,
        prompt: Any,
        *,
        agent: str | None = None,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        conversation_id: str | None = None,
        limits: RunLimits | None = None,
        deadline: float | None = None,
        follower: Follower | None = None,
        **options: Unpack[RunArguments],
    ) -> Handle[Any, AgentResultT_co]:
        """Queue a run and return its handle at once; options as for `run`. `agent` names one of several agents.

        With `if_exists` a run that exists is `resume`d, or only `return`ed if it has ended; one that is queued or
        active here keeps its place. With a `follower` models stream from the first request. Raises NotAdmitting,
        Overloaded if the queue is full, and RunExists; the journal has no rejected run.
        """
        check_if_exists(if_exists, run_id)
        chosen = self._agents.chosen(agent)
        more = self._agents.checked(chosen, (run_id, conversation_id, limits, deadline), options)
        tags = options.get("tags") or {}
        try:
            self._refuse_closed(chosen, tags)
        except NotAdmitting:
            self._agents.refused(chosen, run_id, "closed" if self._draining is None else "draining")
            raise
        if run_id is not None and if_exists != "raise" and (job := self._line.find(run_id)) is not None:
            return Handle(job)
        if run_id is not None and await self._agents[chosen].hosting.continues(run_id, if_exists):
            return await self.resume(run_id, agent=agent, limits=limits)
        self._refuse_closed(chosen, tags)
        name = run_id or secrets.token_hex(16)
        work = self._agents.work(chosen, prompt, name, conversation_id, limits, deadline, follower, more)
        job = self._agents.job(name, chosen, work, conversation_id, tags)
        self._line.enter(job)
        return Handle(job)

    def stream(
        self, prompt: Any, *, run_id: str | None = None, **options: Unpack[SubmitArguments]
    ) -> RunStream[Any, AgentResultT_co]:
        """Submit a run when its first event is requested, and stream its events; options as for `submit`.

        As `Agent.stream`, except that closing the stream does not stop the run, which continues in this engine.
        """
        name, chosen = run_id or secrets.token_hex(16), self._agents.chosen(options.get("agent"))
        output = functools.partial(self._agents[chosen].hosting.output_of, name, options.get("output_type"))

        async def work(follower: Follower) -> AgentResultT_co:
            return await (await self.submit(prompt, run_id=name, follower=follower, **options))

        why = f"the stream of run {name!r} was closed; the run continues in engine {self.name!r}"
        return RunStream(name, work, RunError(why), output)

    async def resume(
        self, run_id: str, *, agent: str | None = None, limits: RunLimits | None = None, by: str = ""
    ) -> Handle[Any, AgentResultT_co]:
        """Queue a run of the journal to resume it; a run that is paused in this engine resumes at once.

        Raises RunUnknown, OtherAgent for an active run of another agent, and the errors of `submit`. The handle raises
        the errors of `Agent.resume`.
        """
        self._refuse_closed()
        job = self._line.find(run_id)
        if job is not None:
            if agent is not None and (chosen := self._agents.chosen(agent)) != job.agent:
                raise OtherAgent(run_id, job.hosting.agent, self._agents[chosen].hosting.agent)
            live = job.hosting.live(run_id)
            if live is None or not live.paused or limits is not None:
                raise RunExists(run_id)
            job.hosting.ask(run_id, "resume", by=by, why="")
            return Handle(job)
        head = await self._journal.head(run_id)
        chosen = self._agents.chosen(agent if agent is not None else self._agents.resumer(head))
        self._refuse_closed(chosen, head.tags)
        work = functools.partial(self._agents[chosen].resume, run_id, limits=limits, by=by)
        job = self._agents.stored_job(head, chosen, work)
        self._line.enter(job)
        return Handle(job)

    async def deposit(
        self,
        value: Any,
        *,
        run_id: str,
        agent: str | None = None,
        tenant: str = "",
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        by: str = "",
    ) -> str:
        """Store a run in the journal, start it as soon as a slot is free, and return its id.

        Unlike `submit`, the run survives this process before it starts, and a second call with the same id has no
        effect. Other processes that share the journal reach it with a `start` request, as the console does.

        Args:
            value: The input: text or messages for an Agent, JSON for a Pipeline, `{"prompt": …, "context": …}` for an
                Rlm.
            run_id: Id of the run, chosen by the caller.
            agent: Name of one of several agents.
            tenant, metadata, tags: As for `Agent.deposit`.
            by: Who asks for it, for a `started` record of the engine; empty for none.

        Raises:
            ConfigError: An argument is invalid, the agent needs deps and has no factory for them, or its runs start
                in the process of the agent only.
            RunExists: The id belongs to a run of another agent.
            NotAdmitting: The engine accepts no such run.
            StoreDown: The journal is unavailable.

        Example:
            await engine.deposit("Summarise the open incidents.", run_id="daily-2026-11-28", agent="support")
        """
        chosen = self._agents.chosen(agent)
        host = self._agents[chosen].hosting
        if host.input is None:
            raise ConfigError(
                f"agent {chosen!r} is a {type(self._agents[chosen]).__name__}, whose runs start where its files or "
                "its Python context are: start it in its own program"
            )
        self._agents.checked(chosen, (run_id, None, None, None), {"metadata": metadata, "tags": tags})
        self._refuse_closed(chosen, tags)
        is_new = True
        try:
            await host.input.deposit(value, run_id=run_id, tenant=tenant, metadata=metadata, tags=tags)
        except RunExists:
            is_new = False
            head = await self._journal.head(run_id)
            if (head.graph, head.agent) != (host.graph, host.agent):
                raise
        else:
            head = await self._journal.head(run_id)
        if head.seq > 0 or head.owner is not None:
            pass  # it started before
        elif self._scheduler is not None:
            await self._scheduler.submit(run_id, head.seq, tenant=tenant)
        elif self._line.find(run_id) is None:  # else the engine found it in the journal already
            work = functools.partial(self._agents[chosen].resume, run_id, by=f"engine {self.name}")
            self._line.enter(self._agents.stored_job(head, chosen, work), bounded=False)
        if by and is_new:
            await self._registration.note(STARTED, {"by": by, "agent": chosen, "run_id": run_id})
            self._log.ordered(START, by, "", run_id)
        return run_id

    def load(self) -> Load:
        """Return the load of the engine for a scrape. May be called from any thread."""
        phase = "starting" if self._affinity is None else "running"
        if self._draining is not None:
            phase = "stopped" if self._draining.done() else "draining"
        return self._agents.load(self._line, phase)

    # ---- operators ----

    async def control(self, command: str, *, by: str = "", why: str = "", **about: Any) -> None:
        """Carry out an operator command (one of KINDS) after it was journalled with actor and reason.

        `about` is the object of the command: `tool=`, `model=`, `slots=`, `graph=` or `grace=`; with
        `agent=` or `tags=` most concern the runs of one agent, or with these tags, only (OF_RUNS). Raises ConfigError
        for a command that cannot be carried out, and the errors of the journal; nothing is changed then.
        """
        self._refuse_foreign()
        given = OperatorCommand.of(command, by or default_actor(), {**about, "why": why})
        self._commands.check(given)
        await self._unbroken(self._commands.execute(given, id=secrets.token_hex(8)))

    def status(self) -> dict[str, Any]:
        """Return slots, queue, active operator commands and live runs as plain data."""
        return self._commands.status()

    async def drain(self, grace: float | None = None, *, by: str = "", why: str = "") -> DrainReport:
        """Stop admitting runs, give the active ones `grace` seconds, park the rest, and stop the engine.

        Returns the outcome of each run when no run is active here. A second call joins a running drain and shortens it
        if it asks for less time. Cancelling the caller does not stop the drain.
        """
        self._refuse_foreign()
        command = OperatorCommand.of("drain", by or default_actor(), {"grace": grace, "why": why})
        if self._draining is None:
            await self._unbroken(self._drain_on_command(command))
            command = replace(command, about=None)
        return await asyncio.shield(self._begin_to_drain(command))

    async def run_until_signal(
        self, grace: float | None = None, *, ready: Callable[[], object] | None = None
    ) -> DrainReport:
        """Wait for SIGTERM, SIGINT or an operator's drain; then drain, and return the outcome of the runs.

        A second signal ends the process at once. A running drain is joined. The handlers of the host are back when
        this returns.

        Args:
            grace: As for `drain`.
            ready: Called as soon as signals are caught, for the line that a supervisor waits for.

        Raises:
            ConfigError: Outside the main thread, or the engine is not started.
        """
        self._refuse_foreign()
        received: list[str] = []

        def leave(name: str) -> None:
            received.append(name)
            self._leaving.set()

        with first_signal(leave):
            if ready is not None:
                ready()
            await self._leaving.wait()
            return await self.drain(grace, by="signal" if received else "", why="".join(received))

    async def leaving(self) -> None:
        """Return when the engine starts to drain, or is asked to."""
        await self._leaving.wait()

    # ---- private: start ----

    def _background(self, work: Coroutine[Any, Any, None], what: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"engine {self.name} {what}"))

    # ---- private: runs and stop ----

    def _may_begin(self, job: EngineJob) -> bool:
        """Return whether a queued run may start: its model is not blocked, and no run of its conversation is active."""
        if self._active_commands.blocks(job.hosting.model):
            return False
        talk = job.conversation_id
        return talk is None or all(one.conversation_id != talk for one in self._line.live.values())

    def _refuse_closed(self, chosen: str | None = None, tags: Mapping[str, str] | None = None) -> None:
        """Raise NotAdmitting if the engine accepts no run, or none of the agent `chosen` with these tags."""
        self._refuse_foreign(started=False)
        if self._affinity is None:
            raise NotAdmitting(
                self.name, "it is not started", "use `async with engine` or `await engine.start()`"
            )
        if self._draining is not None:
            raise NotAdmitting(self.name, "it is draining or has stopped", "submit it to another engine")
        agent = "" if chosen is None else self._agents[chosen].hosting.agent
        if (closed := self._commands.closed_for(agent, tags or {})) is not None:
            then = "wait until an operator allows admission again, or submit it to another engine"
            raise NotAdmitting(self.name, f"admission was stopped by {closed.explain()}", then)

    def _refuse_foreign(self, *, started: bool = True) -> None:
        refuse_foreign(self.name, self._affinity, started=started)

    async def _drain_on_command(self, command: OperatorCommand) -> None:
        await self._registration.notify("control", {**command.body(), "id": secrets.token_hex(8)})
        self._log.ordered(command.kind, command.by, command.why, command.about)
        self._begin_to_drain(command)

    async def _unbroken(self, doing: Coroutine[Any, Any, None]) -> None:
        """Complete an operation even if its caller is cancelled meanwhile; stopping the engine waits for it."""
        task = asyncio.create_task(doing)
        self._command_tasks.add(task)
        task.add_done_callback(self._command_tasks.discard)
        await asyncio.shield(task)

    def _begin_to_drain(self, command: OperatorCommand) -> asyncio.Task[DrainReport]:
        seconds = command.about
        if self._draining is None:
            self._commands.draining = True
            self._orphans.stop()
            self._drain = Drain(
                self.name, self._agents, self._line, self._clock, f"drained by {command.explain()}"
            )
            seconds = self._grace if seconds is None else seconds
            self._draining = asyncio.create_task(self._stop(self._drain), name=f"engine {self.name} drain")
            self._leaving.set()
        if self._drain is not None and seconds is not None:
            self._drain.shorten(seconds)
        return self._draining

    async def _drain_at_once(self) -> None:
        """Drain at once and wait for the end, even if the caller is cancelled meanwhile: no task is left running."""
        draining = self._begin_to_drain(OperatorCommand("drain", default_actor(), "the engine is left", 0.0))
        if self._drain is not None:
            self._drain.hurry()
        while not draining.done():
            with contextlib.suppress(asyncio.CancelledError):  # the caller raises it again
                await asyncio.wait((draining,))

    async def _stop(self, drain: Drain) -> DrainReport:
        try:
            report = await drain.run()
            if self._command_tasks:
                await asyncio.wait(self._command_tasks)
            with contextlib.suppress(JournalError):  # the store is down: the engine will count as lost
                await self._registration.end(asdict(report))
            self._log.ended(len(report.parked) + len(report.interrupted))
            return report
        finally:
            self._gc.restore()
            self._agents.detach(self)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for task in self._tasks:
                if not task.cancelled():
                    task.result()  # a defect of the engine ended the task early
