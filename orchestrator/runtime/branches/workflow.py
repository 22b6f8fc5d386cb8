"""`Workflow`, the facade of a host's own graph: its runs are journalled, resumed and listed like those of an Agent.

The context is a dataclass of the host, written as changes. A run has no model of its own: its states start branches,
or call whatever they like with the handles of the host in `run.deps.host`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from orchestrator.argument_names import checks_names
from orchestrator.errors import CancelRequested, ConfigError, LimitReached, RejectRequested
from orchestrator.journal.context import ContextCodec, copied
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.fact import Fact, Follower, Observer, Transition
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.journal import Journal, Record, RunHead
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.llm.message import NO_USAGE, Usage
from orchestrator.machines.failing import reason_of
from orchestrator.machines.llm_loop.graph import BUDGET_OF
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.plain import plain_json
from orchestrator.runtime.branches.tree_usage import usage_of_children
from orchestrator.runtime.facade import HumanInput
from orchestrator.runtime.llm_loop.agent_tool import open_root
from orchestrator.runtime.llm_loop.result import result_bundle, stopped
from orchestrator.runtime.run_stream import RunStream, new_stream
from orchestrator.runtime.service import arguments
from orchestrator.runtime.service.arguments import IfExists, agent_data, host_data, new_id
from orchestrator.runtime.service.child_run import ChildWaitObserver
from orchestrator.runtime.service.hosting import Hosting
from orchestrator.runtime.service.restored_run import rebuilt
from orchestrator.runtime.service.run_service import RunKind, RunService
from orchestrator.runtime.service.runtime import Runtime, outside_loop, runtime_of, with_arguments_of
from orchestrator.runtime.service.waiting_run import Answers, EndedResult, Wait
from orchestrator_callbacks.llm_loop.budget_account import ChildBudget
from orchestrator_guards import Verdict

ContextT = TypeVar("ContextT")
OutputT = TypeVar("OutputT", default=None)
OutputT_co = TypeVar("OutputT_co", default=Any, covariant=True)


@dataclass(slots=True, kw_only=True)
class WorkflowDeps:
    """Handles of one run."""

    clock: Clock
    host: Any = None
    """The host's own handles."""
    account: ChildBudget | None = None
    """Budget of its child runs."""


@dataclass(frozen=True, kw_only=True)
class WorkflowResult(EndedResult, Generic[OutputT_co]):
    """The end of a run of a Workflow."""

    run_id: str
    state: StrEnum
    """The terminal state."""
    outcome: Outcome
    reason: str
    """One of REASONS[outcome]."""
    output: OutputT_co
    """What `output` of the Workflow returned; None unless the run completed."""
    usage: Usage
    """Usage of its child runs."""
    transitions: tuple[Transition, ...]
    """The path of the run: the last 10,000 transitions."""
    verdict: Verdict | None = None
    """The refusal that ended the run, if any."""
    error: Exception | None = None
    """The first error."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return result_bundle(self)

    def raise_for_outcome(self) -> Self:
        """Return self if the run completed; else raise the RunStopped of its outcome, caused by the first error."""
        if self.outcome is Outcome.COMPLETED:
            return self
        raise stopped(self) from self.error


class WorkflowCodec(ContextCodec[Any]):
    """The codec of a host's context. The last record has the output and the usage of the child runs."""

    def __init__(self, kind: Any, output: Callable[[Any], Any]) -> None:
        super().__init__(kind)
        self._of = output

    def closing(self, run: Run[Any, WorkflowDeps]) -> Mapping[str, Any]:
        """Return output and usage. An output that no record can hold is described."""
        about: dict[str, Any] = {"usage": plain_json(_usage(run))}
        if run.error is None:
            try:
                about["output"] = plain_json(self._of(run.ctx))
            except Exception as error:  # noqa: BLE001 - code of the host can raise anything
                about |= {"output": None, "returned": f"{type(error).__name__}: {error}"[:300]}
        return about


def _usage(run: Run[Any, WorkflowDeps]) -> Usage:
    return NO_USAGE if run.deps.account is None else run.deps.account.usage


@checks_names
class Workflow(HumanInput[WorkflowResult[OutputT]], Generic[ContextT, OutputT]):
    """Run a graph of the host, for any number of runs, also concurrent ones.

    The constructor starts nothing.

    Args:
        graph: The graph. Its `context` is a dataclass with the field `iteration`, a counter for logs.
        hooks: Modules or objects with `enter_/leave_/before_/after_` functions.
        output: Pure function from the context of a completed run to its output; None by default.
        limits: Tokens and cost of all child runs of a run together; by default none. Other limits belong to the agents.
        name, version: Stored with each run.
        deps: Handles of the host, in `run.deps.host` and in `ToolContext.deps` of calls in branches.
        runtime, journal, observers: As for Agent.

    Raises:
        ConfigError: An argument is invalid.
        GraphError: The graph is invalid or does not fit the hooks.

    Example:
        reviews = Workflow(REVIEWS, [hooks], output=lambda ctx: ctx.summary, name="reviews")
        result = await reviews.run(ReviewContext(["a.md", "b.md"]))
    """

    def __init__(
        self,
        graph: Graph,
        hooks: Iterable[object],
        *,
        output: Callable[[ContextT], OutputT] | None = None,
        limits: Limits | None = None,
        name: str | None = None,
        version: str | None = None,
        deps: Any = None,
        runtime: Runtime | None = None,
        journal: Journal | None = None,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        hooks = tuple(hooks)
        arguments.check_agent(
            {
                "graph": graph,
                "hooks": hooks,
                "limits": limits,
                "journal": journal,
                "observers": observers,
                "runtime": runtime,
            },
            Limits,
        )
        kind: Any = graph.context
        if not is_dataclass(kind) or "iteration" not in kind.__dataclass_fields__:
            raise ConfigError(
                f"the context of graph {graph.name!r} is {kind!r}; give Graph(context=…), a dataclass with the field "
                "`iteration: int = 0`"
            )
        self._limits = limits or Limits(max_iterations=0)
        self._output: Callable[[Any], Any] = output or (lambda _: None)
        self._codec, self._host = WorkflowCodec(graph.context, self._output), deps
        self._machine = Machine(graph, collect(graph, extra=hooks))
        self._failed = {edge.dest for edge in graph.edges if edge.event in _failures(graph)}
        self._serve(runtime_of(runtime, journal, observers), agent_data(name, version))

    def _serve(self, runtime: Runtime, data: Mapping[str, Any], **options: Any) -> None:
        kind = RunKind(
            machine=self._machine,
            codec=self._codec,
            declare=lambda service: service.announce(0.0),
            ending=self._ending,
            summary=_summary,
            result=self._result,
            restore=self._restore,
            update=self._update,
            check_resume=self._check_resume,
        )
        self._service = RunService(self, kind, runtime, data, **options)
        self.hosting = Hosting(self._service, None, check=self._check_run, begin=self._begin)
        """Engine-only interface of this workflow."""

    def as_child_of(self, owner: HumanInput[Any]) -> Workflow[ContextT, OutputT]:
        """Return a copy whose runs use the journal, the live runs and the engine of `owner`. For branches."""
        found, above, own = copy.copy(self), owner._service, self._service  # noqa: SLF001 - a facade
        found._serve(  # noqa: SLF001 - of this class
            own.runtime.on_journal_of(above.runtime),
            own.data,
            live=above.live,
            control=above.control,
            watching=(ChildWaitObserver(),),
            owner=above.driver.owner,
        )
        found._service.shares_journal = False  # noqa: SLF001
        owner.hosting.join(found.hosting)
        return found

    # ---- run ----

    async def run(
        self,
        context: ContextT,
        *,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        wait: Wait = "always",
    ) -> WorkflowResult[OutputT]:
        """Run the graph from its initial state to its end and return the WorkflowResult.

        If the caller is cancelled, it gets its CancelledError, and the run is left where it was and can be resumed.

        Args:
            context: The context of the run. It belongs to the run from now on.
            run_id: Id of the run; random by default.
            if_exists, metadata, tags, wait: As for `Agent.run`.

        Raises:
            RunExists: `run_id` is in use.
            ConfigError: The context is of another class, or another argument is invalid.
        """
        data = self._checked(context, run_id, metadata, tags)
        arguments.check_if_exists(if_exists, run_id)
        return await self._run_or_continue(
            if_exists, wait, context, run_id or new_id(), None, None, None, data
        )

    @with_arguments_of(run)
    def run_sync(self, context: ContextT, **options: Any) -> WorkflowResult[OutputT]:
        """Run from code without an event loop; options as for `run`. Raises ConfigError inside a running loop."""
        return outside_loop("run_sync", "workflow.run", lambda: self.run(context, **options))

    async def deposit(
        self,
        context: ContextT,
        *,
        run_id: str | None = None,
        tenant: str = "",
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Store a run in the journal for a worker, and return its id; nothing is executed here. As `Agent.deposit`."""
        data = self._checked(context, run_id, metadata, tags)
        return await self._service.deposit(self.new_run(context, run_id or new_id(), data), tenant)

    def stream(
        self,
        context: ContextT,
        *,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RunStream[Any, WorkflowResult[OutputT]]:
        """Run as `run` does and stream the events of the run and of its child runs; otherwise as `Agent.stream`."""
        data = self._checked(context, run_id, metadata, tags)
        new = new_stream(self._begin, context, run_id, None, None, None, data)
        return self._stream_or_continue(new, run_id, if_exists, partial(self.resume, new.run_id))

    async def resume(
        self,
        run_id: str,
        *,
        limits: None = None,
        by: str = "",
        again: bool = False,
        from_agent: str | None = None,
        answers: Answers | None = None,
        wait: Wait = "always",
    ) -> WorkflowResult[OutputT]:
        """Resume a run of the journal from its last record and return its result. For an ended run it is only read.

        The enter hook of an interrupted state runs again; branches that have ended are read. `limits` are
        those of the workflow, so None. Other arguments and errors as for `Agent.resume`.
        """
        if limits is not None:
            raise ConfigError("a run of a workflow has no limits of its own; give them to the Workflow")

        async def work() -> WorkflowResult[OutputT]:
            await self._post_answers(run_id, answers, by)
            return await self._service.resume(
                run_id, None, by, again=again, from_agent=from_agent, drive=self._drive
            )

        return await self._ended_or_waiting(run_id, wait, work)

    def new_run(self, context: ContextT, run_id: str, data: Mapping[str, Any]) -> Run[ContextT, WorkflowDeps]:  # type: ignore[type-var]  # the constructor has checked that it has `iteration`
        """Return a new run; `data` is that of the host. For branches."""
        run = self._service.new_run(run_id, context, self._deps(), data)
        return self._opened(run)

    # ---- called by the engine and the service ----

    def _deps(self) -> WorkflowDeps:
        return WorkflowDeps(clock=self._service.clock, host=self._host)

    def _opened(self, run: Run[Any, WorkflowDeps], usage: Usage = NO_USAGE) -> Run[Any, WorkflowDeps]:
        run.deps.account = ChildBudget(run, own_limits=self._limits, usage=usage)
        return run

    def _checked(
        self, context: object, run_id: str | None, metadata: object, tags: object
    ) -> Mapping[str, Any]:
        """Return the data of a new run. Raises ConfigError."""
        data = self._check_run(run_id, None, None, None, metadata=metadata, tags=tags)
        kind = self._machine.declared.context
        if kind is None or not isinstance(context, kind):
            raise ConfigError(
                f"the context is a {type(context).__name__}; give a {getattr(kind, '__name__', kind)}"
            )
        try:
            copied(context)
        except TypeError as error:
            raise ConfigError(
                f"the context has no JSON form: {error}; give fields of JSON types and dataclasses"
            ) from None
        return data

    def _check_run(
        self, run_id: object, conversation_id: object, limits: object, deadline: object, /, **options: Any
    ) -> Mapping[str, Any]:
        arguments.check_run(run_id, kind=Limits)
        for name, value in (("conversation_id", conversation_id), ("limits", limits), ("deadline", deadline)):
            if value is not None:
                raise ConfigError(f"a run of a workflow has no {name}; leave it out")
        return host_data("a workflow", options)

    async def _start(  # noqa: PLR0917 - the arguments of a new run
        self,
        prompt: Any,
        run_id: str,
        conversation_id: str | None,  # noqa: ARG002 - always None, see `_check_run`
        limits: Any,  # noqa: ARG002
        deadline: float | None,  # noqa: ARG002
        settings: Mapping[str, Any],
        follower: Follower | None = None,
        /,
    ) -> WorkflowResult[OutputT]:
        run = self.new_run(prompt, run_id, settings)
        run.follow(follower)
        self._service.limit_time(run, None)
        return await self._drive(run)

    async def _drive(self, run: Run[Any, Any], path: Iterable[Transition] = ()) -> WorkflowResult[OutputT]:
        return await self._service.drive(run, path, park=self.parks)

    def _restore(self, stored: StoredRun, records: Sequence[Record]) -> Run[Any, WorkflowDeps]:  # noqa: ARG002
        ctx = self._codec.decoded(stored.context)
        run = rebuilt(stored, self._service.machine, ctx, self._deps(), self._codec)
        return self._opened(run, Usage.of((stored.ended or {}).get("usage") or {}))

    async def _update(
        self,
        run: Run[Any, WorkflowDeps],
        stored: StoredRun,
        records: Sequence[Record],  # noqa: ARG002 - as RunKind
        limits: object,  # noqa: ARG002
    ) -> Iterable[Fact]:
        """Count the usage of its child runs, from their records."""
        account = run.deps.account
        if account is not None:
            account.dormant = await usage_of_children(self._service.journal, stored.run_id)
            account.usage = sum(account.dormant.values(), NO_USAGE)
        return ()

    async def _check_resume(self, head: RunHead, again: bool) -> None:  # noqa: ARG002, FBT001 - as RunKind
        root = await open_root(self._service.journal, head)
        if root not in (None, head.run_id):
            raise ConfigError(
                f"run {head.run_id!r} is part of run {root!r}, which resumes it; resume that run"
            )

    def _ending(self, run: Run[Any, Any]) -> Ending:
        """Return outcome and reason: a state that the failure event leads to is a failure, also without an error."""
        error = run.error
        if error is None:
            failed = run.state in self._failed
            return Ending(Outcome.FAILED, "policy_stop") if failed else Ending(Outcome.COMPLETED, "none")
        if isinstance(error, RejectRequested):
            return Ending(Outcome.REJECTED, "operator")
        if isinstance(error, CancelRequested):
            return Ending(Outcome.CANCELLED, error.reason)
        guard = getattr(error.verdict, "guard", "") if isinstance(error, LimitReached) else ""
        if guard in BUDGET_OF:
            return Ending(Outcome.BUDGET_EXCEEDED, BUDGET_OF[guard])
        return Ending(Outcome.FAILED, reason_of(run, error))

    def _result(
        self, run: Run[Any, WorkflowDeps], path: Iterable[Transition], end: Ending
    ) -> WorkflowResult[OutputT]:
        output: Any = self._output(run.ctx) if end.outcome is Outcome.COMPLETED else None
        return WorkflowResult(
            run_id=run.run_id,
            state=run.state,
            outcome=end.outcome,
            reason=end.reason,
            output=output,
            usage=_usage(run),
            transitions=tuple(path),
            verdict=getattr(run.error, "verdict", None),
            error=run.error,
        )


def _failures(graph: Graph) -> set[StrEnum]:
    """Return the events that an error fires."""
    failure = graph.failure
    return set() if failure is None else set(failure.values()) if isinstance(failure, Mapping) else {failure}


def _summary(run: Run[Any, WorkflowDeps]) -> Mapping[str, Any]:
    used = _usage(run)
    return {"tokens_in": used.input_tokens, "tokens_out": used.output_tokens, "cost": used.cost}
