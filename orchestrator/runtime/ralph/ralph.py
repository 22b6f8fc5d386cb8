"""`Ralph`, the facade of the ralph loop: graph, guards, hooks, agents and sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import ConfigError, RunExists, RunUnknown
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.journal import Journal, Record
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending
from orchestrator.kernel.record import Follower, Observer, Transition
from orchestrator.kernel.run import Run
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.ralph.contract import OrchestratorOutput, Role
from orchestrator.machines.ralph.ending import ending
from orchestrator.machines.ralph.fault import SessionFileError
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.limits import RalphLimits
from orchestrator.machines.ralph.model import RalphContext, Task
from orchestrator.machines.ralph.ports import AgentPort
from orchestrator.runtime.ralph import argument
from orchestrator.runtime.ralph import codec as ralph_record
from orchestrator.runtime.ralph import transition_log as ralph_log
from orchestrator.runtime.ralph.prompt_agent import BoundAgent
from orchestrator.runtime.ralph.result import RalphResult, result_of
from orchestrator.runtime.ralph.session.directory import SessionDirectory, session_id_for
from orchestrator.runtime.service import argument_check as arguments
from orchestrator.runtime.service.hosting import Hosting
from orchestrator.runtime.service.position import rebuilt
from orchestrator.runtime.service.run_data import agent_data, host_data
from orchestrator.runtime.service.run_service import RunService
from orchestrator.runtime.service.runtime import Runtime, runtime_of
from orchestrator.runtime.service.stream import RunStream
from orchestrator.runtime.service.synchronous import outside_loop, with_arguments_of
from orchestrator_callbacks.ralph import before, enter
from orchestrator_callbacks.ralph.deps import Asks, RalphDeps, RalphRun


class Ralph(RunService[RalphResult]):
    """Run the ralph loop: plan, execute and review task by task, then check the whole against the goal.

    Sessions are directories below `root`. Their Markdown files define the status of tasks; the journal defines the
    run. The constructor starts nothing.

    Args:
        planner: A callable of one AgentRequest (see `orchestrator.machines.ralph.ports`), or an agent such as
            PromptAgent; the other agents alike.
        executor: Executes tasks.
        reviewer: Reviews tasks.
        questioner: Asks and researches questions; optional.
        checker: Checks the whole against the goal; optional.
        limits: Default limits of a run.
        root: Folder of the sessions.
        answer: Source of answers to questions: a function, "wait", "park" or None (see `deps.Asks`).
        open_questions: Behaviour when no round of questions is left: "proceed" or "fail".
        retry: Policy for network errors of agents.
        deps: Handles of the host, in `AgentRequest.deps`.
        hooks, graph, runtime, journal, observers, launch, name, version: As for Agent.

    Raises:
        ConfigError: An argument is invalid.
        GraphError: The graph is invalid or does not fit the hooks.
    """

    waits_for = "questions wait for answers"
    bound_to = "the directory of its session"
    """Why no other machine could execute its runs."""

    def __init__(
        self,
        planner: AgentPort | Any,
        executor: AgentPort | Any,
        reviewer: AgentPort | Any,
        questioner: AgentPort | Any = None,
        checker: AgentPort | Any = None,
        *,
        limits: RalphLimits | None = None,
        root: Path | str = ".ralph-sessions",
        answer: Asks = None,
        open_questions: Literal["proceed", "fail"] = "proceed",
        retry: RetryPolicy | None = None,
        hooks: Iterable[object] = (),
        graph: Graph = RALPH,
        deps: Any = None,
        runtime: Runtime | None = None,
        journal: Journal | None = None,
        observers: Iterable[Observer] | None = None,
        launch: Mapping[str, Any] | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        arguments.check_agent(locals(), RalphLimits)
        self._limits = limits or RalphLimits()
        self._root = Path(root)
        self._answer, self._strict = argument.asks(answer), argument.strict(open_questions)
        self._retry = retry or RetryPolicy()
        self._data = agent_data(name, version)
        self._set_up(runtime_of(runtime, journal, observers))
        self._machine = Machine(graph, collect(graph, enter, before, extra=tuple(hooks)))
        self._codec = ralph_record.codec(launch)
        self._agents = self._ports(planner, questioner, executor, reviewer, checker)
        self._host = deps
        self._wire(ralph_log.SessionLog(self._live.find))
        parts = self._journal, self._driver, self._clock, self._live, self._recovery, launch
        stages = [agent.hosting for agent in self._agents.values() if isinstance(agent, BoundAgent)]
        self.hosting = Hosting(*parts, stages, check=self._check_run, begin=self._begin, bound=True)
        """Engine-only interface of this agent."""

    # ---- run ----

    async def run(
        self,
        request: str = "",
        *,
        session: Path | str | None = None,
        run_id: str | None = None,
        limits: RalphLimits | None = None,
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RalphResult:
        """Run the loop in a new or existing session, and return its result. Raises Suspended if the run was parked.

        `session` is the path of an existing session, which continues from the state of its files; `request` is then
        optional and planned as a new requirement. The run's id is that of the session, with a number from its second
        run on. `deadline` is in seconds from now. `metadata` and `tags` are as for Agent.

        Raises:
            ConfigError: A new session has no request, or another argument is invalid.
            RunExists: `run_id` is in use, or an earlier run of the session has not ended.
            SessionFileError: The session cannot be read, or another process has an active run in it.
        """
        data = self._check_run(run_id, None, limits, deadline, metadata=metadata, tags=tags)
        return await self._begin((request, session), run_id or "", None, limits, deadline, data)

    @with_arguments_of(run)
    def run_sync(self, request: str = "", **options: Any) -> RalphResult:
        """Run from code without an event loop; options as for `run`. Raises ConfigError inside a running loop."""
        return outside_loop("run_sync", "ralph.run", lambda: self.run(request, **options))

    def stream(
        self,
        request: str = "",
        *,
        session: Path | str | None = None,
        run_id: str | None = None,
        limits: RalphLimits | None = None,
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RunStream[Any, RalphResult]:
        """Run the loop as `run` does and stream the facts of the run and of its child runs; as `Agent.stream`.

        Without `run_id` the id of the run is random.
        """
        data = self._check_run(run_id, None, limits, deadline, metadata=metadata, tags=tags)
        return self._stream((request, session), run_id, None, limits, deadline, data)

    async def resume(
        self,
        run_id: str,
        *,
        limits: RalphLimits | None = None,
        by: str = "",
        again: bool = False,
        from_agent: str | None = None,
    ) -> RalphResult:
        """Resume a run of the journal from its last record and return its result. For an ended run it is only read.

        An agent that has answered is not called again. An interrupted one is called with the same key, after its
        program was ended if that was still running.

        Args:
            run_id: Id of the run.
            limits: Limits from now on instead of the run's own.
            by: Who resumes the run.
            again: A person has checked that the program of an interrupted agent has ended. Required if it was started
                on another host.

            from_agent: As for `Agent.resume`.

        Raises:
            RunUnknown: The journal does not have the run.
            OtherAgent: The run belongs to an agent of another name.
            Held: Another process owns the run.
            OtherGraph: The run has another version of the graph and there is no migration.
            Corrupt: The run is damaged.
            Suspended: The run requires `again`, or failed to make progress too often.
            SessionFileError: The session cannot be read.
        """
        arguments.check_run(limits=limits, kind=RalphLimits)
        return await self._resume(run_id, limits, by, again=again, from_agent=from_agent)

    # ---- messages of people ----

    def stop(self, run_id: str, why: str = "", *, by: str = "") -> Awaitable[None]:
        """Request that a run ends as `cancelled` at its next boundary; work in flight ends first.

        Otherwise as `steer`.
        """
        return self._control.say(run_id, "stop", why, by)

    def steer(self, run_id: str, text: str, *, by: str = "") -> Awaitable[None]:
        """Add a requirement to a run, which is planned at its next boundary.

        Messages are read in the order of sending, also from other processes. Raises RunUnknown and RunOver. Await the
        result if the run may belong to another process.
        """
        return self._control.say(run_id, "steer", argument.said("steer", text), by)

    def inform(self, run_id: str, text: str, *, by: str = "") -> Awaitable[None]:
        """Add a note for all agents that are called from the next boundary on. As `steer`."""
        return self._control.say(run_id, "inform", argument.said("inform", text), by)

    def answer(self, run_id: str, answers: Mapping[str, str], *, by: str = "") -> Awaitable[None]:
        """Answer questions of a waiting run: question id -> answer. As `steer`.

        The first answer to a question counts: a different answer, or one of another person, raises AnswerRefused; the
        same person may repeat the same answer. If one of several answers is refused, none is posted.
        """
        given: object = answers
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(f"the answers are {given!r}; give question id -> answer")
        told = {str(one): argument.said("answer", text) for one, text in answers.items()}
        return self._control.reply(run_id, told, by)

    async def status(self, run_id: str) -> OrchestratorOutput:
        """Return the status of a run in this or another process. Raises RunUnknown."""
        stored = StoredRun.of(run_id, await self._journal.load(run_id))
        return ralph_record.status(stored, self._codec.decoded(stored.context))

    # ---- private ----

    def _ports(self, *given: object) -> Mapping[Role, AgentPort]:
        """Return the port of each role; the arguments are in the order of Role."""
        agents = dict(zip(Role, given, strict=True))
        wanted = {role: agent for role, agent in agents.items() if agent is not None or role not in _OPTIONAL}
        return {role: self._port(role, agent) for role, agent in wanted.items()}

    def _port(self, role: Role, given: object) -> AgentPort:
        """Return the port of a role. Raises ConfigError if it is invalid."""
        bound = getattr(given, "bound", None)
        port: Any = bound(self, role) if callable(bound) else given
        if not callable(port) or isinstance(port, type):
            shown = port.__name__ if isinstance(port, type) else type(port).__name__
            raise ConfigError(
                f"{role.value} is {shown}; give a function of one request, a command or a model's agent"
            )
        found: AgentPort = port
        return found

    def _opened(self, request: str, session: Path | str | None) -> tuple[SessionDirectory, bool]:
        """Return the files of a session, and whether it is new. Raises SessionFileError, RunExists."""
        if session is not None:
            files = SessionDirectory.open(session)
            for run_id in self._live:
                if self._live.get(run_id).ctx.session_path == str(files.path):
                    raise RunExists(run_id)
            return files, False
        began = session_id_for(datetime.fromtimestamp(self._clock.time()), self._root)  # noqa: DTZ006 - local time
        return SessionDirectory.create(self._root, request, began), True

    def _context(
        self, request: str, files: SessionDirectory, limits: RalphLimits | None, *, is_new: bool
    ) -> RalphContext:
        log = files.path / ralph_log.NAME
        return RalphContext(
            request=request,
            session_id=files.id,
            session_path=str(files.path),
            is_new=is_new,
            limits=limits or self._limits,
            fail_on_open_questions=self._strict,
            log_offset=log.stat().st_size if log.exists() else 0,
            requirements=(request,) if request.strip() and not is_new else (),
        )

    async def _alone(
        self, run: RalphRun, files: SessionDirectory, path: Iterable[Transition] = ()
    ) -> RalphResult:
        """Drive a run while no other run is active in its session, not even one with another journal."""
        with ExitStack() as stack:
            try:
                stack.enter_context(files.locked())
            except (SessionFileError, OSError):
                await self._driver.release(run)
                raise
            return await self._drive_run(run, path)

    async def _free_id(self, session_id: str) -> str:
        """Return the id of the session's next run. Raises RunExists if the previous one has not ended."""
        number, name = 1, session_id
        while True:
            try:
                head = await self._journal.head(name)
            except RunUnknown:
                return name
            if head.status != "ended":
                raise RunExists(name)
            number += 1
            name = f"{session_id}-{number}"

    def _deps(self, files: SessionDirectory) -> RalphDeps:
        return RalphDeps(
            session=files,
            agents=self._agents,
            clock=self._clock,
            retry=self._retry,
            look=self._control.deliver,
            answer=self._answer,
            price=self._runtime.price,
            host=self._host,
        )

    # ---- called by RunService ----

    laps = ("task_selected",)

    def _check_run(
        self, run_id: object, conversation_id: object, limits: object, deadline: object, /, **options: Any
    ) -> Mapping[str, Any]:
        arguments.check_run(run_id, None, limits, deadline, kind=RalphLimits)
        if conversation_id is not None:
            raise ConfigError("a ralph loop has no conversations: leave conversation_id out")
        return host_data("a ralph loop", options)

    async def _begin(  # noqa: PLR0917 - the arguments of a new run
        self,
        prompt: str | tuple[str, Path | str | None],
        run_id: str,
        conversation_id: str | None,  # noqa: ARG002 - always None, see `_check_run`
        limits: RalphLimits | None,
        deadline: float | None,
        settings: Mapping[str, Any],
        follower: Follower | None = None,
        /,
    ) -> RalphResult:
        """Start a run for a request, alone or with its session; an empty `run_id` is that of the session."""
        request, session = prompt if isinstance(prompt, tuple) else (prompt, None)
        argument.text("the request", request)
        if session is None and not str(request).strip():
            raise ConfigError("the request is empty; describe the goal in a sentence or more")
        files, is_new = self._opened(request, session)
        ctx = self._context(request, files, limits, is_new=is_new)
        name, data = run_id or await self._free_id(files.id), {**self._data, **settings}
        run: RalphRun = Run(self._machine, name, ctx, self._deps(files), data=data or None)
        run.follow(follower)
        self._limit_time(run, deadline)
        return await self._alone(run, files)

    def _ending(self, run: RalphRun) -> Ending:
        return ending(run)

    def _summary(self, run: RalphRun) -> Mapping[str, Any]:
        return ralph_record.summary(run)

    def _result(self, run: RalphRun, path: Iterable[Transition], end: Ending) -> RalphResult:
        return result_of(run, _tasks(run), path, end)

    def _restore(self, stored: StoredRun, records: Iterable[Record]) -> RalphRun:  # noqa: ARG002 - the context has all
        ctx = self._codec.decoded(stored.context)
        deps = self._deps(SessionDirectory(Path(ctx.session_path)))
        return rebuilt(stored, self._machine, ctx, deps, self._codec)

    async def _update(
        self, run: RalphRun, stored: StoredRun, records: Sequence[Record], limits: RalphLimits | None
    ) -> None:
        run.deps.session = SessionDirectory.open(run.ctx.session_path)
        ralph_log.mend(run, records)
        await super()._update(run, stored, records, limits)

    async def _drive(self, run: RalphRun, path: Iterable[Transition]) -> RalphResult:
        return await self._alone(run, SessionDirectory(Path(run.ctx.session_path)), path)


RalphOrchestrator = Ralph
"""The same class under the name of the specification."""

_OPTIONAL = frozenset((Role.QUESTIONER, Role.CHECKER))


def _tasks(run: RalphRun) -> tuple[Task, ...]:
    """Return the tasks of the files; none if they cannot be read, which the run's error explains."""
    try:
        run.deps.session.refresh()
    except (SessionFileError, OSError):
        return ()
    return run.deps.session.tasks()
