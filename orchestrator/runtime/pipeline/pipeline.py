"""`Pipeline`, the facade of the pipeline machine: graph, guards, hooks and the host's stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, TypedDict

from orchestrator.argument_names import checks_names
from orchestrator.errors import ConfigError, Suspended
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import Follower, Observer, Transition
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.journal import Journal, Record, RunHead
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.pipeline import progress
from orchestrator.machines.pipeline.graph import PIPELINE, ending
from orchestrator.machines.pipeline.model import (
    APART,
    EFFECTS,
    Attempt,
    BudgetManager,
    Evaluation,
    Feedback,
    Implementation,
    Implementer,
    Judge,
    OrchestrationState,
    PipelineContext,
    PipelineLimits,
    Plan,
    Planner,
    Port,
    Rubric,
    Validation,
    Validator,
)
from orchestrator.machines.plain import plain_json
from orchestrator.runtime.facade import HumanInput
from orchestrator.runtime.llm_loop.result import result_bundle, stopped
from orchestrator.runtime.pipeline.judge_panel import BoundPanel, JudgePanel
from orchestrator.runtime.pipeline.prompt_stage import BoundStage, PromptStage
from orchestrator.runtime.run_stream import RunStream, new_stream
from orchestrator.runtime.service import arguments
from orchestrator.runtime.service.arguments import IfExists, agent_data, host_data, new_id
from orchestrator.runtime.service.hosting import Hosting, RunInput
from orchestrator.runtime.service.restored_run import rebuilt
from orchestrator.runtime.service.run_service import RunKind, RunService
from orchestrator.runtime.service.runtime import Runtime, outside_loop, runtime_of, with_arguments_of
from orchestrator.runtime.service.waiting_run import Answers, EndedResult, Wait
from orchestrator_callbacks.pipeline import before, enter, leave, stage
from orchestrator_callbacks.pipeline.stage import PipelineDeps, PipelineRun
from orchestrator_guards import Verdict


class PipelineCodec(ContextCodec[PipelineContext]):
    """The codec of the pipeline. Results of stages are restored from their own records, unless a hook changed them."""

    def changes(self, run: Run[PipelineContext, Any]) -> dict[str, Any]:
        """Return the changes since the last call."""
        changed = super().changes(run)
        amended = progress.amended(run.ctx)
        return {**changed, "amended": amended} if amended else changed


def codec(launch: Mapping[str, Any] | None = None) -> PipelineCodec:
    """Return the codec of a pipeline."""
    about = {"launch": dict(launch)} if launch else {}
    return PipelineCodec(PipelineContext, apart=APART, about=lambda _: about)


def plain_spec(spec: Any) -> Any:
    """Return a spec as JSON types. Raises ConfigError for an empty spec and for one without a JSON form."""
    if spec is None or spec == "":
        raise ConfigError("the spec is empty; give text or data that describes the task")
    try:
        return plain_json(spec)
    except ValueError as error:
        raise ConfigError(f"the spec cannot be stored as JSON: {error}") from None


def restored(
    stored: StoredRun,
    records: Iterable[Record],
    machine: Machine,
    deps: PipelineDeps,
    codec: ContextCodec[PipelineContext],
) -> PipelineRun:
    """Return the run as of its last record, ready for `drive`. Changes nothing outside."""
    ctx = codec.decoded(stored.context)
    for record in records:
        if record.kind == "stage":
            progress.replay(ctx, record.body)
        elif record.kind == "context" and "amended" in record.body:
            progress.amend(ctx, record.body["amended"])
    return rebuilt(stored, machine, ctx, deps, codec)


def is_irreversible(port: object) -> bool:
    """Return whether the work of a port must not happen twice."""
    return getattr(port, "effect", None) == "irreversible"


def refuse_unknown(run: PipelineRun) -> None:
    """Raise Suspended if such work has started and its result is unknown."""
    ports = {state.value: port for state, port in run.deps.ports.items()}
    if run.cursor.entry_pending and not stage.is_done(run) and is_irreversible(ports.get(run.cursor.state)):
        stage_name = run.cursor.state
        why = f"{stage_name} may have happened, and its port is irreversible; check it, then resume with again=True"
        raise Suspended(run.run_id, why)


def summary(run: Run[PipelineContext, Any]) -> dict[str, Any]:
    """Return the totals for `run.completed`, and the used share of each enabled limit."""
    ctx, limits = run.ctx, run.ctx.limits
    budgets = (
        ("iterations", ctx.iteration, limits.max_iterations),
        ("tokens", ctx.tokens, limits.token_budget),
    )
    return {
        "tokens": ctx.tokens,
        "refinements": ctx.refinements,
        "budget_used": {name: round(used / limit, 4) for name, used, limit in budgets if limit},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult(EndedResult):
    """The end of a run, with the last results of its stages."""

    run_id: str
    state: StrEnum
    """The terminal state: State.SUCCEEDED, FAILED or BUDGET_EXHAUSTED, or a state of the host."""
    outcome: Outcome
    reason: str
    """One of REASONS[outcome]."""
    output: Any
    """The content of the approved implementation; None without approval."""
    best: Attempt | None
    """The attempt with the highest score, approved or not; None if nothing was judged."""
    plan: Plan | None
    validation: Validation | None
    implementation: Implementation | None
    evaluation: Evaluation | None
    feedback: tuple[Feedback, ...]
    iterations: int
    """Plans that were passed to validation."""
    refinements: int
    tokens: int
    """Tokens of all stages, including their child runs."""
    transitions: tuple[Transition, ...]
    """The path of the run with tokens and reasons: the last 10,000 transitions."""
    verdict: Verdict | None = None
    """The refusal that ended the run, if any."""
    error: Exception | None = None
    """The first error."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return result_bundle(self, PIPELINE)

    def raise_for_outcome(self) -> PipelineResult:
        """Return self if the run completed; else raise the RunStopped of its outcome, caused by the first error."""
        if self.outcome is Outcome.COMPLETED:
            return self
        raise stopped(self) from self.error


def result_of(run: Run[PipelineContext, Any], path: Iterable[Transition], end: Ending) -> PipelineResult:
    """Return the result of a run with this end."""
    ctx = run.ctx
    approved = ctx.implementation if end.outcome is Outcome.COMPLETED else None
    return PipelineResult(
        run_id=run.run_id,
        state=OrchestrationState(run.cursor.state)
        if run.cursor.state in set(OrchestrationState)
        else run.state,
        outcome=end.outcome,
        reason=end.reason,
        output=approved.content if approved else None,
        best=ctx.best,
        plan=ctx.plan,
        validation=ctx.validation,
        implementation=ctx.implementation,
        evaluation=ctx.evaluation,
        feedback=ctx.feedback,
        iterations=ctx.iteration,
        refinements=ctx.refinements,
        tokens=ctx.tokens,
        transitions=tuple(path),
        verdict=ctx.verdict,
        error=run.error,
    )


class PipelineArguments(TypedDict, total=False):
    """Further keyword arguments of `Pipeline`, for a class that passes them on."""

    name: str | None
    version: str | None
    rubric: Rubric | None
    budget: BudgetManager | None
    hooks: Iterable[object]
    graph: Graph
    deps: Any
    launch: Mapping[str, Any] | None


class PipelineRunArguments(TypedDict, total=False):
    """Options of `Pipeline.run`."""

    run_id: str | None
    limits: PipelineLimits | None
    deadline: float | None
    metadata: Mapping[str, Any] | None
    tags: Mapping[str, str] | None


class PipelineResumeArguments(TypedDict, total=False):
    """Options of `Pipeline.resume`."""

    limits: PipelineLimits | None
    by: str
    again: bool
    from_agent: str | None


@checks_names
class Pipeline(HumanInput[PipelineResult]):
    """Run plan → validate → implement → judge, for any number of runs, also concurrent ones.

    The constructor starts nothing.

    Args:
        planner: A port (see `orchestrator.machines.pipeline.model`) or a PromptStage; the other three alike.
        validator: Checks a plan.
        implementer: Implements a plan.
        judge: Scores an implementation. A JudgePanel asks several judges.
        limits: Default limits of a run.
        rubric: Thresholds for the judge's scores.
        budget: The host's own budget, checked before and after each stage in addition to `limits.token_budget`.
        deps: Handles of the host, in `StageRequest.deps`.
        hooks, graph, runtime, journal, observers, launch, name, version: As for Agent.

    Raises:
        ConfigError: An argument is invalid.
        GraphError: The graph is invalid or does not fit the hooks.

    Example:
        pipeline = Pipeline(plan, validate, implement, judge)
        result = await pipeline.run("A light show for this song.")
    """

    def __init__(
        self,
        planner: Planner | PromptStage,
        validator: Validator | PromptStage,
        implementer: Implementer | PromptStage,
        judge: Judge | PromptStage | JudgePanel,
        *,
        limits: PipelineLimits | None = None,
        rubric: Rubric | None = None,
        budget: BudgetManager | None = None,
        hooks: Iterable[object] = (),
        graph: Graph = PIPELINE,
        deps: Any = None,
        runtime: Runtime | None = None,
        journal: Journal | None = None,
        observers: Iterable[Observer] | None = None,
        launch: Mapping[str, Any] | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        arguments.check_agent(locals(), PipelineLimits)
        self._limits = limits or PipelineLimits()
        if rubric is not None and not isinstance(rubric, Rubric):
            raise ConfigError(f"rubric is a {type(rubric).__name__}; give Rubric(approve=7.0)")
        self._rubric = rubric or Rubric()
        if isinstance(judge, JudgePanel):
            graph = judge.graph(graph, self._rubric)
        self._codec = codec(launch)
        self._service = RunService(
            self,
            RunKind(
                machine=Machine(graph, collect(graph, enter, leave, before, extra=tuple(hooks))),
                codec=self._codec,
                declare=lambda service: service.announce(self._limits.max_seconds, _GUARDS),
                ending=ending,
                summary=summary,
                result=result_of,
                restore=self._restore,
                check_resume=self._check_resume,
                laps=("plan_ready",),
            ),
            runtime_of(runtime, journal, observers),
            agent_data(name, version),
        )
        given = {"planner": planner, "validator": validator, "implementer": implementer, "judge": judge}
        if budget is not None and not callable(getattr(budget, "is_exhausted", None)):
            raise ConfigError(f"budget must have a method `is_exhausted()`; {type(budget).__name__} does not")
        ports = {_STATE_OF[name]: self._port(name, port) for name, port in given.items()}
        self._deps = PipelineDeps(ports=ports, clock=self._service.clock, budget=budget, host=deps)
        bound = [
            one
            for port in ports.values()
            for one in (port.judges if isinstance(port, BoundPanel) else (port,))
        ]
        stages = [one.hosting for one in bound if isinstance(one, BoundStage)]
        self.hosting = Hosting(self._service, launch, stages, check=self._check_run, begin=self._begin)
        self.hosting.input = RunInput({"title": "Spec"}, self.deposit)
        """Engine-only interface of this pipeline."""

    # ---- run ----

    async def run(
        self,
        spec: Any,
        *,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        limits: PipelineLimits | None = None,
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        wait: Wait = "always",
    ) -> PipelineResult:
        """Run the pipeline and return its PipelineResult.

        If the caller is cancelled, it gets its CancelledError, and the run is left where it was and can be resumed.

        Args:
            spec: Plain data: text, or JSON types.
            run_id: Id of the run; random by default.
            limits: Limits of this run instead of the pipeline's.
            deadline: Seconds from now, in addition to `limits`.
            metadata: JSON data of the host, stored with the run and its child runs; as for Agent.
            tags: Text by name, likewise.

        Returns:
            The PipelineResult. Its `outcome` says how the run ended.

        Raises:
            RunExists: `run_id` is in use.
            ConfigError: The spec cannot be stored, or another argument is invalid.
        """
        data = self._check_run(run_id, None, limits, deadline, metadata=metadata, tags=tags)
        arguments.check_if_exists(if_exists, run_id)
        name = run_id or new_id()
        return await self._run_or_continue(if_exists, wait, spec, name, None, limits, deadline, data)

    async def deposit(
        self,
        spec: Any,
        *,
        run_id: str | None = None,
        limits: PipelineLimits | None = None,
        tenant: str = "",
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Store a run in the journal for a worker, and return its id; no stage is executed here.

        Requires a journal that other processes share. `tenant` names the owner of the run, for limits per tenant.
        Raises the errors of `run`.
        """
        data = self._check_run(run_id, None, limits, None, metadata=metadata, tags=tags)
        return await self._service.deposit(self._new(spec, run_id or new_id(), limits, data), tenant)

    @with_arguments_of(run)
    def run_sync(self, spec: Any, **options: Any) -> PipelineResult:
        """Run from code without an event loop; options as for `run`. Raises ConfigError inside a running loop."""
        return outside_loop("run_sync", "pipeline.run", lambda: self.run(spec, **options))

    def stream(
        self,
        spec: Any,
        *,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        limits: PipelineLimits | None = None,
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RunStream[Any, PipelineResult]:
        """Run as `run` does and stream the facts of the run and of its child runs; otherwise as `Agent.stream`."""
        data = self._check_run(run_id, None, limits, deadline, metadata=metadata, tags=tags)
        new = new_stream(self._begin, spec, run_id, None, limits, deadline, data)
        return self._stream_or_continue(new, run_id, if_exists, partial(self.resume, new.run_id))

    async def resume(
        self,
        run_id: str,
        *,
        limits: PipelineLimits | None = None,
        by: str = "",
        again: bool = False,
        from_agent: str | None = None,
        answers: Answers | None = None,
        wait: Wait = "always",
    ) -> PipelineResult:
        """Resume a run of the journal from its last record and return its result. For an ended run it is only read.

        A finished stage is not executed again; an interrupted one is. A program that the last owner left running is
        ended first.

        Args:
            run_id: Id of the run.
            limits: Limits from now on instead of the run's own.
            by: Who resumes the run.
            again: A person has checked that an interrupted stage may be repeated. Required if its port is
                `irreversible`, and if its program was started on another host.

            from_agent, answers, wait: As for `Agent.resume`.

        Raises:
            RunUnknown: The journal does not have the run.
            OtherAgent: The run belongs to an agent of another name.
            Held: Another process owns the run.
            OtherGraph: The run has another version of the graph and there is no migration.
            Corrupt: The run is damaged.
            Suspended: The run requires `again`, or failed to make progress too often.
        """
        arguments.check_run(limits=limits, kind=PipelineLimits)

        async def work() -> PipelineResult:
            await self._post_answers(run_id, answers, by)
            return await self._service.resume(
                run_id, limits, by, again=again, from_agent=from_agent, drive=self._drive
            )

        return await self._ended_or_waiting(run_id, wait, work)

    # ---- private ----

    def _new(
        self, spec: Any, run_id: str, limits: PipelineLimits | None, data: Mapping[str, Any]
    ) -> PipelineRun:
        ctx = PipelineContext(plain_spec(spec), limits or self._limits, self._rubric)
        return self._service.new_run(run_id, ctx, self._deps, data)

    async def _drive(self, run: PipelineRun, path: Iterable[Transition] = ()) -> PipelineResult:
        return await self._service.drive(run, path, park=self.parks)

    def _port(self, name: str, given: object) -> Port:
        """Return the port of a stage. Raises ConfigError if it is invalid."""
        port = given.bound(self, _STATE_OF[name]) if isinstance(given, PromptStage | JudgePanel) else given
        if not callable(port) or isinstance(port, type):
            shown = port.__name__ if isinstance(port, type) else type(port).__name__
            raise ConfigError(f"{name} is {shown}; give a function of one request, or a PromptStage")
        effect = getattr(given, "effect", "idempotent")
        if effect not in EFFECTS:
            raise ConfigError(f"the effect of {name} is {effect!r}; allowed: {', '.join(EFFECTS)}")
        return port

    # ---- called by the engine and the service ----

    def _check_run(
        self, run_id: object, conversation_id: object, limits: object, deadline: object, /, **options: Any
    ) -> Mapping[str, Any]:
        arguments.check_run(run_id, None, limits, deadline, kind=PipelineLimits)
        if conversation_id is not None:
            raise ConfigError("a pipeline has no conversations: leave conversation_id out")
        return host_data("a pipeline", options)

    async def _start(  # noqa: PLR0917 - the arguments of a new run
        self,
        prompt: Any,
        run_id: str,
        conversation_id: str | None,  # noqa: ARG002 - always None, see `_check_run`
        limits: PipelineLimits | None,
        deadline: float | None,
        settings: Mapping[str, Any],
        follower: Follower | None = None,
        /,
    ) -> PipelineResult:
        run = self._new(prompt, run_id, limits, settings)
        run.follow(follower)
        self._service.limit_time(run, deadline)
        return await self._drive(run)

    def _restore(self, stored: StoredRun, records: Iterable[Record]) -> PipelineRun:
        return restored(stored, records, self._service.machine, self._deps, self._codec)

    async def _check_resume(self, head: RunHead, again: bool) -> None:  # noqa: FBT001 - as RunKind
        """Raise Suspended if an irreversible stage may have happened; the run is not claimed then."""
        if again or not any(is_irreversible(port) for port in self._deps.ports.values()):
            return
        stored, records = await self._service.recovery.read(head.run_id)
        unread = await stored.unread(self._service.journal)
        cancelled = any(one.kind == "cancel" for one in unread)  # then no stage is executed any more
        if stored.fingerprint == self._service.machine.valid_graph.fingerprint and not cancelled:
            refuse_unknown(self._restore(stored, records))


_GUARDS = ("affordable", "host_budget", "iterations", "refinements", "tokens")
"""Guards of verdicts that are not those of an edge."""
_STATE_OF: Mapping[str, OrchestrationState] = {
    "planner": OrchestrationState.PLANNING,
    "validator": OrchestrationState.VALIDATING,
    "implementer": OrchestrationState.IMPLEMENTING,
    "judge": OrchestrationState.JUDGING,
}
