"""`Ralph`, the facade of the ralph loop: graph, guards, hooks, agents and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from orchestrator.argument_names import checks_names
from orchestrator.errors import ConfigError, RunExists, RunUnknown
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import Follower, Observer, Transition
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.journal import Journal, Record
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.llm.retry import RetryPolicy
from orchestrator.llm.usage import Usage
from orchestrator.machines.ralph.contract import OrchestratorOutput, OrchestratorStatus, Role
from orchestrator.machines.ralph.graph import RALPH, ending
from orchestrator.machines.ralph.model import AgentPort, RalphContext, RalphLimits, RalphState, RoleCall, Task
from orchestrator.machines.ralph.tasklist import SessionFileError
from orchestrator.runtime.facade import Facade
from orchestrator.runtime.llm_loop.result import result_bundle, stopped
from orchestrator.runtime.ralph import session as ralph_log
from orchestrator.runtime.ralph.prompt_agent import BoundAgent
from orchestrator.runtime.ralph.session import SessionDirectory, session_id_for
from orchestrator.runtime.run_stream import RunStream, new_stream
from orchestrator.runtime.service import arguments, program
from orchestrator.runtime.service.arguments import IfExists, agent_data, host_data, new_id
from orchestrator.runtime.service.hosting import Hosting
from orchestrator.runtime.service.live_runs import RunRegistry
from orchestrator.runtime.service.restored_run import rebuilt
from orchestrator.runtime.service.run_service import RunKind, RunService
from orchestrator.runtime.service.runtime import Runtime, outside_loop, runtime_of, with_arguments_of
from orchestrator.runtime.service.waiting_run import Answers, EndedResult, OpenQuestion, Wait, check_answers
from orchestrator_callbacks.ralph import before, enter
from orchestrator_callbacks.ralph.deps import Asks, RalphDeps, RalphRun
from orchestrator_guards import Verdict


def checked_text(kind: str, value: object) -> str:
    """Return non-empty text of a person; `kind` is its name. Raises ConfigError."""
    if isinstance(value, str) and value.strip():
        return storable_text(kind, value)
    raise ConfigError(f"{kind} needs non-empty text; got {value!r}")


def storable_text(kind: str, value: str) -> str:
    """Return text that can be stored. Raises ConfigError."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{kind} is not text: it contains bytes that are not UTF-8") from None
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RalphResult(EndedResult):
    """The end of a run. The work itself is in the session's directory and in the files of its tasks."""

    run_id: str
    state: StrEnum
    """The terminal state: State.DONE or FAILED, or a state of the host."""
    outcome: Outcome
    reason: str
    """One of REASONS[outcome]."""
    session_id: str
    session_path: str
    tasks: tuple[Task, ...]
    """Tasks of the current files without planning; empty if they cannot be read."""
    blockers: tuple[str, ...]
    """Reasons why the work could not be done, from the planner or from a task that failed too often."""
    qa_cycles: int
    executions: int
    qualified: int
    reworks: int
    replans: int
    current_task_id: str | None
    attempt: int
    summary: str
    """Last summary of the whole."""
    usage: Usage
    """Tokens and cost of all agents. `usage.estimated_…` is the part that agents did not report."""
    agent_calls: tuple[RoleCall, ...]
    """The calls of agents with their sessions and usage, oldest first. The cost of a call is None if it is unknown."""
    transitions: tuple[Transition, ...]
    """The path of the run: the last 10,000 transitions."""
    verdict: Verdict | None = None
    """The refusal that ended the run, if any."""
    error: Exception | None = None
    """The first error."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return result_bundle(self, RALPH)

    def raise_for_outcome(self) -> RalphResult:
        """Return self if the run completed; else raise the RunStopped of its outcome, caused by the first error."""
        if self.outcome is Outcome.COMPLETED:
            return self
        raise stopped(self, "; ".join(self.blockers)) from self.error


def result_of(run: Run[RalphContext, Any], path: Iterable[Transition], end: Ending) -> RalphResult:
    """Return the result of a run with this end."""
    ctx = run.ctx
    tasks: tuple[Task, ...] = ()
    with suppress(SessionFileError, OSError):  # the run's error explains why the files cannot be read
        run.deps.session.refresh()
        tasks = run.deps.session.tasks()
    return RalphResult(
        run_id=run.run_id,
        state=RalphState(run.cursor.state) if run.cursor.state in set(RalphState) else run.state,
        outcome=end.outcome,
        reason=end.reason,
        session_id=ctx.session_id,
        session_path=ctx.session_path,
        tasks=tuple(task for task in tasks if not task.planning),
        blockers=ctx.blockers,
        qa_cycles=ctx.qa_cycle_count,
        executions=ctx.iteration,
        qualified=ctx.qualified,
        reworks=ctx.reworks,
        replans=ctx.replans,
        current_task_id=ctx.current_task_id,
        attempt=ctx.attempt,
        summary=ctx.summary,
        usage=ctx.usage,
        agent_calls=ctx.agent_calls,
        transitions=tuple(path),
        verdict=ctx.verdict,
        error=run.error,
    )


def codec(launch: Mapping[str, Any] | None = None) -> ContextCodec[RalphContext]:
    """Return the codec of the loop."""
    about = {"launch": dict(launch)} if launch else {}
    return ContextCodec(RalphContext, windows=("agent_calls",), about=lambda _: about)


def summary(run: Run[RalphContext, Any]) -> dict[str, Any]:
    """Return the totals for `run.completed`, and the used share of each enabled limit."""
    ctx, limits = run.ctx, run.ctx.limits
    budgets = (
        ("iterations", ctx.iteration, limits.max_executions),
        ("qa_cycles", ctx.qa_cycle_count, limits.max_qa_cycles),
        ("replans", ctx.replans, limits.max_replans),
        ("tokens", ctx.usage.input_tokens + ctx.usage.output_tokens, limits.max_tokens),
        ("cost", ctx.usage.cost_for_limits, limits.max_cost_micros),
    )
    return {
        "qualified": ctx.qualified,
        "reworks": ctx.reworks,
        "qa_cycles": ctx.qa_cycle_count,
        "replans": ctx.replans,
        **({"blockers": len(ctx.blockers)} if ctx.blockers else {}),
        "budget_used": {name: round(used / limit, 4) for name, used, limit in budgets if limit},
    }


# ---- status ----

_NEXT: Mapping[RalphState, str] = {
    RalphState.INITIALIZING: "resolve the session",
    RalphState.PLANNING: "plan",
    RalphState.EXECUTING: "execute {task}",
    RalphState.REVIEWING: "review {task}",
    RalphState.COMPLETE: "check the work against the goal",
}


_LETS_GO_ON: Mapping[str, str] = {
    "questions": "answer its questions",
    "paused": "resume",
    program.PROGRAMS_REASON: "end its programs on other hosts, then resume with --again",
}
"""Reason of a parked run -> action of a person that continues it."""


def status(stored: StoredRun, ctx: RalphContext) -> OrchestratorOutput:
    """Return the status of a stored run."""
    state = RalphState(stored.state) if stored.state in set(RalphState) else RalphState.INITIALIZING
    ended, parked = stored.ended, stored.parked
    waits = parked is not None and parked.get("reason") in _LETS_GO_ON
    how = OrchestratorStatus.IN_PROGRESS
    if ended is not None:
        done = ended.get("outcome") == "completed"
        how = OrchestratorStatus.COMPLETED if done else OrchestratorStatus.BLOCKED
    elif waits:
        how = OrchestratorStatus.BLOCKED
    following = "" if ended is not None else _NEXT[state].format(task=ctx.current_task_id or "the next task")
    if waits and parked is not None:
        following = _LETS_GO_ON[parked["reason"]]
    failed = () if stored.failure is None else (str(stored.failure["message"]),)
    counted = f"{ctx.qualified} of {ctx.iteration} executions qualified, {ctx.reworks} reworked"
    return OrchestratorOutput(
        status=how,
        session_id=ctx.session_id,
        current_state=stored.state or RalphState.INITIALIZING.value,
        last_action=str(stored.step.get("event", "")),
        next_action=following,
        summary="; ".join((*ctx.blockers, *failed, ctx.summary or counted)),
    )


@checks_names
class Ralph(Facade[RalphResult]):
    """Run the ralph loop: plan, execute and review task by task, then check the whole against the goal.

    Sessions are directories below `root`. Their Markdown files define the status of tasks; the journal defines the
    run. The constructor starts nothing.

    Args:
        planner: A callable of one AgentRequest (see `orchestrator.machines.ralph.model`), or an agent such as
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
        source: object = answer
        if not (source is None or callable(source) or source in {"wait", "park"}):
            raise ConfigError(
                f"answer is {answer!r}; give a function of the questions, 'wait', 'park' or None"
            )
        if open_questions not in {"proceed", "fail"}:
            raise ConfigError(f"open_questions is {open_questions!r}; it must be 'proceed' or 'fail'")
        self._answer, self._strict = answer, open_questions == "fail"
        self._retry = retry or RetryPolicy()
        self._codec, self._host = codec(launch), deps
        live = RunRegistry()
        self._service = RunService(
            self,
            RunKind(
                machine=Machine(graph, collect(graph, enter, before, extra=tuple(hooks))),
                codec=self._codec,
                declare=lambda service: service.announce(self._limits.max_seconds),
                ending=ending,
                summary=summary,
                result=result_of,
                restore=self._restore,
                update=self._update,
                laps=("task_selected",),
                waits_for="questions wait for answers",
            ),
            runtime_of(runtime, journal, observers),
            agent_data(name, version),
            live=live,
            watching=(ralph_log.SessionLog(live.find),),
            reporting=(planner, questioner, executor, reviewer, checker),
        )
        given = dict(zip(Role, (planner, questioner, executor, reviewer, checker), strict=True))
        self._agents: Mapping[Role, AgentPort] = {
            role: self._port(role, agent)
            for role, agent in given.items()
            if agent is not None or role not in _OPTIONAL
        }
        stages = [agent.hosting for agent in self._agents.values() if isinstance(agent, BoundAgent)]
        self.hosting = Hosting(
            self._service, launch, stages, check=self._check_run, begin=self._begin, bound=True
        )
        """Engine-only interface of this agent."""

    # ---- run ----

    async def run(
        self,
        request: str = "",
        *,
        session: Path | str | None = None,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        limits: RalphLimits | None = None,
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        wait: Wait = "always",
    ) -> RalphResult:
        """Run the loop in a new or existing session, and return its result. Raises Suspended if the run was parked.

        `session` is the path of an existing session, which continues from the state of its files; `request` is then
        optional and planned as a new requirement. The run's id is that of the session, with a number from its second
        run on. `deadline` is in seconds from now. `if_exists`, `metadata`, `tags` and `wait` are as
        for Agent; with `wait="never"` and no `run_id` the id is random.

        Raises:
            ConfigError: A new session has no request, or another argument is invalid.
            RunExists: `run_id` is in use, or an earlier run of the session has not ended.
            SessionFileError: The session cannot be read, or another process has an active run in it.
        """
        data = self._check_run(run_id, None, limits, deadline, metadata=metadata, tags=tags)
        arguments.check_if_exists(if_exists, run_id)
        name = run_id or ("" if wait == "always" else new_id())
        given = request, session
        return await self._run_or_continue(if_exists, wait, given, name, None, limits, deadline, data)

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
        if_exists: IfExists = "raise",
        limits: RalphLimits | None = None,
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RunStream[Any, RalphResult]:
        """Run the loop as `run` does and stream the facts of the run and of its child runs; as `Agent.stream`.

        Without `run_id` the id of the run is random.
        """
        data = self._check_run(run_id, None, limits, deadline, metadata=metadata, tags=tags)
        new = new_stream(self._begin, (request, session), run_id, None, limits, deadline, data)
        return self._stream_or_continue(new, run_id, if_exists, partial(self.resume, new.run_id))

    async def resume(
        self,
        run_id: str,
        *,
        limits: RalphLimits | None = None,
        by: str = "",
        again: bool = False,
        from_agent: str | None = None,
        answers: Answers | None = None,
        wait: Wait = "always",
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

            from_agent, answers, wait: As for `Agent.resume`.

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

        async def work() -> RalphResult:
            await self._post_answers(run_id, answers, by)
            return await self._service.resume(
                run_id, limits, by, again=again, from_agent=from_agent, drive=self._drive
            )

        return await self._ended_or_waiting(run_id, wait, work)

    # ---- messages of people ----

    def stop(self, run_id: str, why: str = "", *, by: str = "") -> Awaitable[None]:
        """Request that a run ends as `cancelled` at its next boundary; work in flight ends first.

        Otherwise as `steer`.
        """
        return self._service.control.say(run_id, "stop", why, by)

    def steer(self, run_id: str, text: str, *, by: str = "") -> Awaitable[None]:
        """Add a requirement to a run, which is planned at its next boundary.

        Messages are read in the order of sending, also from other processes. Raises RunUnknown and RunOver. Await the
        result if the run may belong to another process.
        """
        return self._service.control.say(run_id, "steer", checked_text("steer", text), by)

    def inform(self, run_id: str, text: str, *, by: str = "") -> Awaitable[None]:
        """Add a note for all agents that are called from the next boundary on. As `steer`."""
        return self._service.control.say(run_id, "inform", checked_text("inform", text), by)

    def answer(self, run_id: str, answers: Mapping[str, str], *, by: str = "") -> Awaitable[None]:
        """Answer questions of a waiting run: question id -> answer. As `steer`.

        The first answer to a question counts: a different answer, or one of another person, raises AnswerRefused; the
        same person may repeat the same answer. If one of several answers is refused, none is posted.
        """
        given: object = answers
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(f"the answers are {given!r}; give question id -> answer")
        told = {str(one): checked_text("answer", text) for one, text in answers.items()}
        return self._service.control.reply(run_id, told, by)

    async def questions(self, run_id: str) -> tuple[OpenQuestion, ...]:
        """Return the open questions of the planner of a waiting run, or those of its child runs.

        Raises RunUnknown, SessionFileError.
        """
        stored = StoredRun.of(run_id, await self._service.journal.load(run_id))
        if stored.parked is None or stored.parked.get("reason") != "questions":
            return await super().questions(run_id)
        files = SessionDirectory.open(self._codec.decoded(stored.context).session_path)
        return tuple(
            OpenQuestion(id=one.id, run_id=run_id, key=one.id, text=one.text, why="questions")
            for one in files.questions()
            if one.answer is None
        )

    async def _post_answers(self, run_id: str, answers: Answers | None, by: str) -> None:
        if answers is None:
            return
        questions = {one.id: one for one in await self.questions(run_id)}
        check_answers(run_id, answers, questions)
        if any(one.why == "questions" for one in questions.values()):
            await self.answer(run_id, cast("Mapping[str, str]", answers), by=by)
        else:
            await super()._post_answers(run_id, answers, by)

    async def status(self, run_id: str) -> OrchestratorOutput:
        """Return the status of a run in this or another process. Raises RunUnknown."""
        stored = StoredRun.of(run_id, await self._service.journal.load(run_id))
        return status(stored, self._codec.decoded(stored.context))

    # ---- private ----

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

    async def _drive(self, run: RalphRun, path: Iterable[Transition] = ()) -> RalphResult:
        """Drive a run while no other run is active in its session, not even one with another journal."""
        session = SessionDirectory(Path(run.ctx.session_path))
        with session.locked():
            result = await self._service.drive(run, path)
            with suppress(OSError):  # the run has ended: a log that is gone does not change its result
                await asyncio.to_thread(session.sync_log)
            return result

    async def _free_id(self, session_id: str) -> str:
        """Return the id of the session's next run. Raises RunExists if the previous one has not ended."""
        number, name = 1, session_id
        while True:
            try:
                head = await self._service.journal.head(name)
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
            clock=self._service.clock,
            retry=self._retry,
            look=self._service.control.deliver,
            answer=self._answer,
            price=self._service.runtime.price,
            host=self._host,
        )

    # ---- called by the engine and the service ----

    def _check_run(
        self, run_id: object, conversation_id: object, limits: object, deadline: object, /, **options: Any
    ) -> Mapping[str, Any]:
        arguments.check_run(run_id, None, limits, deadline, kind=RalphLimits)
        if conversation_id is not None:
            raise ConfigError("a ralph loop has no conversations: leave conversation_id out")
        return host_data("a ralph loop", options)

    async def _start(  # noqa: PLR0917 - the arguments of a new run
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
        storable_text("the request", request)
        if session is None and not str(request).strip():
            raise ConfigError("the request is empty; describe the goal in a sentence or more")
        if session is None:
            now = datetime.fromtimestamp(self._service.clock.time())  # noqa: DTZ006 - local time
            files = SessionDirectory.create(self._root, request, session_id_for(now, self._root))
        else:
            files = SessionDirectory.open(session)
            for active in self._service.live:
                if self._service.live.get(active).ctx.session_path == str(files.path):
                    raise RunExists(active)
        log = files.path / ralph_log.TRANSITIONS
        ctx = RalphContext(
            request=request,
            session_id=files.id,
            session_path=str(files.path),
            is_new=session is None,
            limits=limits or self._limits,
            fail_on_open_questions=self._strict,
            log_offset=log.stat().st_size if log.exists() else 0,
            requirements=(request,) if request.strip() and session is not None else (),
        )
        name = run_id or await self._free_id(files.id)
        run = self._service.new_run(name, ctx, self._deps(files), settings)
        run.follow(follower)
        self._service.limit_time(run, deadline)
        return await self._drive(run)

    def _restore(self, stored: StoredRun, records: Iterable[Record]) -> RalphRun:  # noqa: ARG002 - the context has all
        ctx = self._codec.decoded(stored.context)
        deps = self._deps(SessionDirectory(Path(ctx.session_path)))
        return rebuilt(stored, self._service.machine, ctx, deps, self._codec)

    async def _update(
        self,
        run: RalphRun,
        stored: StoredRun,  # noqa: ARG002 - as RunKind
        records: Sequence[Record],
        limits: RalphLimits | None,  # noqa: ARG002
    ) -> tuple[()]:
        run.deps.session = SessionDirectory.open(run.ctx.session_path)
        ralph_log.mend_log(run, records)
        return ()


RalphOrchestrator = Ralph
"""The same class under the name of the specification."""

_OPTIONAL = frozenset((Role.QUESTIONER, Role.CHECKER))
