"""`Agent`, the facade of the LLM loop: graph, guards, hooks and handles.

A variant shares the compiled machine, the journal, the live runs and the observers of its agent, so it costs a few
objects. It has its own limit on concurrent runs, so an engine can host the agent and its variant. Names of models and
tools that are new to the observers are declared once.

A run of another graph may ask its model through an agent, as a child run (`child_agent`, `run_child`). The child run is
in the journal of its parent under its own key. Therefore it is resumed after a crash, it is stopped with its parent,
and its facts go to the same observers.
"""

# ruff: noqa: SLF001 - variants and copies for child runs are agents too

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypedDict, Unpack, overload

from typing_extensions import TypeVar

from orchestrator import around
from orchestrator.argument_names import ELSEWHERE, checks_names, refuse_unknown
from orchestrator.errors import ConfigError
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import AnswerLost, Fact, Follower, Observer, Transition
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Journal, Record, RunHead
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.mailbox import Signal
from orchestrator.llm.message import Message
from orchestrator.llm.port import LLM, Memory
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.graph import LLM_LOOP, ending
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.providers.model_guard import refuse_real
from orchestrator.runtime.facade import Facade, HumanInput
from orchestrator.runtime.llm_loop import agent_tool
from orchestrator.runtime.llm_loop import composition as compose
from orchestrator.runtime.llm_loop import run_options as per_run
from orchestrator.runtime.llm_loop.ask import Ask, AskObserver, UnansweredNotice
from orchestrator.runtime.llm_loop.hosting import PROMPT, LoopHosting
from orchestrator.runtime.llm_loop.result import Result, result_of
from orchestrator.runtime.llm_loop.run_options import Conversations, DepsSource, Prompt, RunFunction, opening
from orchestrator.runtime.llm_loop.run_record import (
    StoredResults,
    enabled_budgets,
    history_of,
    loop_codec,
    may_have_sent_request,
    repeated_work,
    restored,
    summary,
)
from orchestrator.runtime.service import arguments
from orchestrator.runtime.service.arguments import OPTIONS, IfExists, agent_data, new_id
from orchestrator.runtime.service.child_run import (
    ChildRunGuard,
    ChildWaitObserver,
    child_result,
    current_scope,
)
from orchestrator.runtime.service.hosting import RunInput
from orchestrator.runtime.service.ownership import LocalDefinition, joining
from orchestrator.runtime.service.recovery import Migration
from orchestrator.runtime.service.run_service import RunKind, RunService
from orchestrator.runtime.service.runtime import Runtime, outside_loop, runtime_of, with_arguments_of
from orchestrator.runtime.service.waiting_run import Answers, Wait
from orchestrator.tools.spec import DepsT, DepsT_contra, RunContext, ToolSpec
from orchestrator.tools.tool_set import ToolSource
from orchestrator_callbacks.llm_loop import admission
from orchestrator_callbacks.llm_loop import memory as memory_hooks
from orchestrator_callbacks.llm_loop.admission import definition_of, refuse_unknown_tools
from orchestrator_callbacks.llm_loop.answer import V, as_validator
from orchestrator_callbacks.llm_loop.deps import LoopRun, ToolProvider, open_account
from orchestrator_callbacks.llm_loop.request_usage import (
    lost_answer_usage,
    refuse_two_currencies,
    refuse_unpriced,
)
from orchestrator_guards import Guardrail, Verdict

if TYPE_CHECKING:
    from typing import _SpecialForm as SpecialForm

    from orchestrator.runtime.run_stream import RunStream
    from orchestrator.runtime.team.handoff import HandoffSource
    from orchestrator.runtime.team.team import Team

OutputT = TypeVar("OutputT", default=Any)

TypeForm: TypeAlias = "UnionType | SpecialForm"
"""A type that is no class: `Report | None`, and for mypy also `Literal[...]` and `Annotated[...]`."""
DepsFactory: TypeAlias = Callable[[RunContext], DepsT | Awaitable[DepsT]]
"""Makes the handles of a run, sync or async."""


def _again(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that a resume of it takes too."""
    return {name: options[name] for name in ("deps", "model") if options.get(name) is not None}


class AgentArguments(TypedDict, Generic[DepsT], total=False):
    """Keyword arguments of `Agent` except `output_type`, which decides the type of its output."""

    name: str | None
    version: str | None
    tools: Iterable[ToolSource[DepsT]] | ToolProvider
    handoffs: Iterable[HandoffSource[DepsT]] | None
    instructions: str | RunFunction | None
    limits: Limits | None
    retry: RetryPolicy | None
    hooks: Iterable[object]
    graph: Graph
    memory: Memory | None
    deps: DepsT | DepsFactory[DepsT] | None
    params: Mapping[str, Any] | None
    input_guards: Iterable[Guardrail | Callable[..., Verdict | bool]]
    output_guards: Iterable[Guardrail | Callable[..., Verdict | bool]]
    runtime: Runtime | None
    journal: Journal | None
    observers: Iterable[Observer] | None
    ask: Ask | None
    launch: Mapping[str, Any] | None


class AgentChanges(TypedDict, total=False):
    """The arguments of Agent that a variant of the same type can have in place of its agent's."""

    model: LLM | str
    tools: Iterable[ToolSpec | Callable[..., Any]] | ToolProvider
    handoffs: Iterable[HandoffSource[Any]] | None
    limits: Limits | None
    retry: RetryPolicy | None
    memory: Memory | None
    instructions: str | RunFunction | None
    params: Mapping[str, Any] | None
    input_guards: Iterable[Guardrail | Callable[..., Verdict | bool]]
    output_guards: Iterable[Guardrail | Callable[..., Verdict | bool]]
    name: str | None
    version: str | None
    journal: Journal
    observers: Iterable[Observer] | None
    runtime: Runtime
    hooks: Iterable[object]
    graph: Graph
    ask: Ask | None


class AgentTypeChanges(AgentChanges, total=False):
    """The same, and the arguments that decide the type of an agent."""

    output_type: object
    deps: Any


@checks_names
class Agent(HumanInput[Result[OutputT]], Generic[DepsT_contra, OutputT]):
    """Run the LLM loop: one agent for any number of runs, also concurrent ones.

    `Agent[Bank, Report]` gives a Bank to its tools and has a Report as its output; a type checker infers both.

    The constructor starts nothing.

    Args:
        model: The model, or its name as on the command line: "openai:gpt-5-mini", "demo" and so on.
        name: Name of the agent, stored with each of its runs.
        version: Version of the agent, stored with each of its runs.
        tools: Functions, tool specifications or a tool set.
        handoffs: The agents to which its model may hand the conversation over, or `handoff(agent, ...)` with options.
            Each needs a name. Its runs are those of a team then: one run keeps the conversation, and each agent that
            has it drives a child run. None: it never hands over. An empty list: it hands over no more, and the open
            runs of its team continue.
        instructions: System message of each run: text, or a function of its RunContext, evaluated once for each run.
        output_type: A pydantic model, a type, or a JSON schema; `str` and None mean free text.
        limits: Default limits of a run.
        retry: Retry policy of model requests.
        hooks: Modules or objects with `enter_/leave_/before_/after_` functions, which run after the loop's own, and
            with functions for the five middleware points.
        graph: The graph; extend `LLM_LOOP` for another one.
        memory: Long-term memory before and after a run.
        deps: Handles of the host, for tools, or a factory: a function that makes them from the RunContext of each run,
            also when it is resumed. Functions may be sync (called in a thread) or async.
        params: Parameters of every model request.
        input_guards, output_guards: Guardrails (`orchestrator_guards.Guardrail`, or pure functions that return a
            Verdict) for the prompt of each run and for its final answer.
        runtime: How its runs are executed: journal, observers, clock, migrations and prices. Agents can share it.
        journal, observers: A shortcut for a Runtime of its own with this journal and these observers.
        ask: An async function that answers the questions of its runs, also after a resume: from a Question it returns
            True (approve), False (reject), a text in place of the tool's result, or None to leave it open.
        launch: Plain data that is stored with each run, for the process that resumes it.

    Raises:
        ConfigError: An argument is invalid.
        GraphError: The graph is invalid or does not fit the hooks.

    Example:
        agent = Agent(model, name="support", tools=[search], limits=Limits(max_iterations=20))
        result = await agent.run("Summarise the open incidents.")
    """

    _team: Team | None = None
    """What it needs to hand over; None for an agent without handoffs."""

    @overload
    def __init__(
        self: Agent[DepsT_contra, str],
        model: LLM | str,
        *,
        output_type: None = None,
        **arguments: Unpack[AgentArguments[DepsT_contra]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: LLM | str,
        *,
        output_type: type[OutputT],
        **arguments: Unpack[AgentArguments[DepsT_contra]],
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[DepsT_contra, Any],
        model: LLM | str,
        *,
        output_type: Mapping[str, Any] | TypeForm,
        **arguments: Unpack[AgentArguments[DepsT_contra]],
    ) -> None: ...
    def __init__(
        self,
        model: LLM | str,
        *,
        name: str | None = None,
        version: str | None = None,
        tools: Iterable[ToolSource[Any]] | ToolProvider = (),
        handoffs: Iterable[HandoffSource[Any]] | None = None,
        instructions: str | per_run.RunFunction | None = None,
        output_type: object = None,
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        hooks: Iterable[object] = (),
        graph: Graph = LLM_LOOP,
        memory: Memory | None = None,
        deps: Any = None,
        params: Mapping[str, Any] | None = None,
        input_guards: Iterable[Guardrail | Callable[..., Verdict | bool]] = (),
        output_guards: Iterable[Guardrail | Callable[..., Verdict | bool]] = (),
        runtime: Runtime | None = None,
        journal: Journal | None = None,
        observers: Iterable[Observer] | None = None,
        ask: Ask | None = None,
        launch: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(model, str):
            model, tools = model_named(model, tools)
        arguments.check_agent(locals(), Limits)
        runtime, data = runtime_of(runtime, journal, observers), agent_data(name, version)
        hooks = tuple(hooks)
        self._parts = {"output_type": output_type, "deps": deps, "hooks": hooks, "graph": graph, "ask": ask}
        asking = UnansweredNotice(runtime.observers) if ask is None else AskObserver(ask, self)
        self._asking: AskObserver | UnansweredNotice = asking
        self._limits, self._instructions, self._launch = limits or Limits(), instructions, launch
        self._source, self._conversations = DepsSource(deps), Conversations()
        bound, points = compose.machine(graph, hooks)
        self._deps = compose.handles(
            model,
            tools,
            runtime.clock,
            output_type,
            retry,
            params,
            memory=memory,
            price=runtime.price,
            points=points,
            agent=str(data.get("agent", "")),
            host=self._source.host,
            **compose.guardrails(input_guards=input_guards, output_guards=output_guards),
        )
        self._codec: ContextCodec[Any] = loop_codec(launch)
        self._declared: set[object] = set()
        self._members: dict[object, Agent] = {}
        """Agents of tools -> copies whose runs are those of this agent's tree."""
        offers = self._deps.tools.offers
        local = LocalDefinition.of(definition_of(offers), instructions, self._deps.output)
        self._serve(
            runtime,
            bound,
            data,
            local=None if launch else local,
            find_tool=self._tool_of_run,
            watching=(self._asking,),
        )
        self.hosting: LoopHosting = self._make_hosting()
        """Engine-only interface of this agent."""
        if handoffs is not None:
            self._join(handoffs)
        refuse_unpriced(self._limits, agent_tool.prices(self))
        refuse_two_currencies(agent_tool.prices(self))
        refuse_unknown_tools(self._limits, self._deps.tools)

    def _join(self, handoffs: Iterable[HandoffSource[Any]]) -> None:
        """Make its runs those of a team. Raises ConfigError."""
        from orchestrator.runtime.team import team  # an agent without handoffs has no use for it
        from orchestrator.runtime.team.handoff import handoffs_of
        from orchestrator.runtime.team.run_record import team_codec

        service = self._service
        self._team = team.Team.of(self, self.replace(), handoffs_of(handoffs))
        self._members = {}
        self._deps, self._codec = team.team_deps(self._team.loop._deps), team_codec(self._launch)
        own = LocalDefinition.of(self._team.definition, self._instructions, self._deps.output)
        self._serve(
            service.runtime,
            team.team_machine(),
            agent_data(service.data.get("agent"), service.data.get("agent_version")),
            local=None if self._launch else own,
            live=service.live,
            control=service.control,
            watching=(self._asking,),
        )
        self.hosting = self._make_hosting()
        self.hosting.earlier = self._team.plain.hosting

    def _serve(self, runtime: Runtime, machine: Machine, data: Mapping[str, Any], **options: Any) -> None:
        """Make the service of its runs; options as for RunService."""
        self._deps.stored_result = StoredResults(runtime.journal).read
        self._service = RunService(
            self, self._kind(machine), runtime, data, reporting=(self._deps.llm,), **options
        )

    def _kind(self, machine: Machine) -> RunKind[Result[OutputT]]:
        """Return what its runs are to the service."""
        if self._team is not None:
            return self._team.kind(self, machine)
        return RunKind(
            machine=machine,
            codec=self._codec,
            declare=self._declare,
            ending=ending,
            summary=summary,
            result=result_of,
            complete=partial(agent_tool.with_stored_children, self),
            restore=self._restore,
            update=self._update,
            check_limits=self._check_limits,
            check_resume=self._check_resume,
            over=self._over,
            lacks_deps=self._source.lacks,
            migrations=partial(_loop_migrations, self._parts["graph"]),
            keeps_state=self._source.keeps,
            repeated=repeated_work,
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the agent as text and as HTML, with its graph."""
        graph, deps = self.machine.valid_graph, self._deps
        tools = ", ".join(spec.name for spec in deps.tools.offers)
        return around.bundle(
            {"agent": self.name, "model": deps.model, "tools": tools, "graph": graph.name}, graph
        )

    # ---- run ----

    async def run(
        self,
        prompt: Prompt,
        *,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        conversation_id: str | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
        wait: Wait = "always",
        **options: Unpack[per_run.RunArguments[DepsT_contra]],
    ) -> Result[OutputT]:
        """Run one prompt, or a conversation given as messages, to its end and return the Result.

        While a person is asked or has paused the run, this call waits, and the time does not count. If the caller is
        cancelled, it gets its CancelledError, and the run is left where it was and can be resumed.

        Args:
            prompt: Text, a message, or a conversation as messages or in OpenAI form.
            run_id: Id of the run; random by default.
            if_exists: For a run that exists: `raise` RunExists; `resume` it, with its own prompt and options, and read
                an ended one; `return` the Result of an ended one, RunExists for another.
            conversation_id: Conversation that the run continues.
            limits: Limits of this run instead of the agent's.
            deadline: Seconds from now, in addition to `limits`; 0 has passed already.
            wait: With `never`, this returns a WaitingRun as soon as the run waits for a person: its `questions` are
                plain data, and `resume(run_id, answers={id: …})` continues it. Calls beside a waiting child run end
                first.
            options: `deps`, `metadata`, `tags`, `model`, `instructions`, `params`, `output_type` and `tools` of this
                run, see `RunArguments`.

        Returns:
            The Result. Its `outcome` says how the run ended.

        Raises:
            RunExists: `run_id` is in use.
            ConfigError: The prompt or an option is invalid, or the conversation has an active run.
            RunError: The factory of the deps or the function of the instructions failed.
        """
        checked = self._check_run(run_id, conversation_id, limits, deadline, **options)
        name = run_id or new_id()
        if wait == "always":
            self._service.unattended.add(name)
        try:
            if if_exists == "raise" and wait == "always":
                return await self._begin(prompt, name, conversation_id, limits, deadline, checked)
            arguments.check_if_exists(if_exists, run_id)
            begin = partial(self._begin, prompt, name, conversation_id, limits, deadline, checked)
            resume = partial(self.resume, name, **_again(options))
            work = partial(self._start_or_continue, name, if_exists, begin, resume)
            return await self._ended_or_waiting(name, wait, work)
        finally:
            self._service.unattended.discard(name)

    async def deposit(
        self,
        prompt: Prompt,
        *,
        run_id: str | None = None,
        conversation_id: str | None = None,
        limits: Limits | None = None,
        tenant: str = "",
        **options: Unpack[per_run.RunArguments[DepsT_contra]],
    ) -> str:
        """Store a run in the journal for a worker, and return its id; the model is not called here.

        Requires a journal that other processes share. `tenant` names the owner of the run, for limits per tenant.
        Options as for `run`, without `deps`: the agent of the worker makes them. Raises the errors of `run`.
        """
        if options.get("deps") is not None:
            raise ConfigError(
                "deps of a deposited run cannot be stored; give the worker's agent a factory for them"
            )
        checked = self._check_run(run_id, conversation_id, limits, None, deposited=True, **options)
        name = run_id or new_id()
        if isinstance(checked.stored.get("model"), Mapping):
            raise ConfigError(
                'the model of a deposited run is stored as its name: give model="openai:…" or the like'
            )
        history = await self._conversations.before(conversation_id, self._service.journal, self._said_in)
        run = await self._new(prompt, history, name, conversation_id, limits, checked, deposited=True)
        return await self._service.deposit(run, tenant)

    @with_arguments_of(run)
    def run_sync(self, prompt: Prompt, **options: Any) -> Result[OutputT]:
        """Run from code without an event loop; options as for `run`. Raises ConfigError inside a running loop."""
        return outside_loop("run_sync", "agent.run", lambda: self.run(prompt, **options))

    def stream(
        self,
        prompt: Prompt,
        *,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        conversation_id: str | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
        **options: Unpack[per_run.RunArguments[DepsT_contra]],
    ) -> RunStream[OutputT]:
        """Run one prompt as `run` does and stream its events: `async for event in agent.stream(...)`.

        Yields every event of the run and its child runs (`orchestrator.events`), also the pieces of the model's
        answers; the last event is RunFinished. `await stream.result()` returns the Result. A slow reader does not
        delay the run. If the reader stops early, the run is left where it was and can be resumed (see
        `runtime.run_stream`). The run and its `deadline` start when the first event is requested. Raises
        ConfigError; iterating raises the errors of `run`.
        """
        checked = self._check_run(run_id, conversation_id, limits, deadline, **options)
        from orchestrator.runtime.run_stream import (
            new_stream,  # an agent that streams nothing starts without it
        )

        run_id, named = run_id or new_id(), run_id
        output = partial(self.hosting.output_of, run_id, options.get("output_type"))
        new = new_stream(
            self._begin, prompt, run_id, conversation_id, limits, deadline, checked, output=output
        )
        return self._stream_or_continue(
            new, named, if_exists, partial(self.resume, run_id, **_again(options))
        )

    async def resume(
        self,
        run_id: str,
        *,
        limits: Limits | None = None,
        by: str = "",
        again: bool = False,
        from_agent: str | None = None,
        deps: DepsT_contra | None = None,
        model: LLM | str | None = None,
        answers: Answers | None = None,
        wait: Wait = "always",
    ) -> Result[OutputT]:
        """Resume a run of the journal from its last record and return its Result.

        For an ended run the Result is only read. `Runs(journal).result(run_id)` reads that of any agent.

        A paused run is resumed, also if it lives in this process.

        `limits` replace the run's own from now on; `by` is who resumes the run; `deps` are live handles for its tools;
        `model` is the model from now on, which a run that was started with a live `model=` needs.
        `again` says that a person has checked that programs of the last owner have ended.
        `from_agent` is the name of the agent that started the run ("" for none), to transfer it from another agent.
        `answers` are to open questions by their ids (`agent.questions`): True approves, False rejects, a text answers
        in place of the tool. `wait` is as for `run`.

        Raises:
            RunUnknown: The journal does not have the run.
            OtherAgent: The run belongs to an agent of another name.
            Held: Another process owns the run.
            OtherGraph: The run has another version of the graph and there is no migration.
            Suspended: The run failed to make progress too often, or needs deps or a model.
            Corrupt: The run is damaged.
            ConfigError: The run is a child of an open run, which resumes it; or an answer is to no open question.
            AnswerRefused: The question was answered before.
        """
        arguments.check_run(limits=limits, kind=Limits)

        async def work() -> Result[OutputT]:
            await self._post_answers(run_id, answers, by)
            agent = (
                self
                if self._team is None
                else self._owner_of((await self._service.journal.head(run_id)).graph)
            )
            with self._source.given(run_id, deps, None if model is None else per_run.checked_model(model)):
                return await agent._service.resume(
                    run_id, limits, by, again=again, from_agent=from_agent, drive=agent._continue
                )

        return await self._ended_or_waiting(run_id, wait, work)

    def stream_resume(
        self,
        run_id: str,
        *,
        limits: Limits | None = None,
        by: str = "",
        again: bool = False,
        from_agent: str | None = None,
        deps: DepsT_contra | None = None,
        model: LLM | str | None = None,
    ) -> RunStream[OutputT]:
        """Resume a run as `resume` does and stream its further events; otherwise as `stream`.

        The run is resumed when the first event is requested. Events that the journal had before are not repeated, and
        child runs have their own events, under their own ids (`agent.runs.events`). If the run waits for a person
        again, the stream yields the question and then waits for the answer, as `resume` does.

        Example:
            await agent.approve("r1")
            async for event in agent.stream_resume("r1"):
                if isinstance(event, TextDelta):
                    print(event.text, end="")
        """
        from orchestrator.runtime.run_stream import resumed_stream

        return resumed_stream(
            run_id,
            self.runs,
            lambda head: self._owner_of(head.graph)._service.recovery.refuse_foreign(head, from_agent),
            lambda: self.resume(
                run_id, limits=limits, by=by, again=again, from_agent=from_agent, deps=deps, model=model
            ),
            partial(self.hosting.output_of, run_id),
        )

    @overload
    def replace(self, **changes: Unpack[AgentChanges]) -> Agent[DepsT_contra, OutputT]: ...
    @overload
    def replace(self, **changes: Unpack[AgentTypeChanges]) -> Agent: ...
    def replace(self, **changes: Any) -> Agent[Any, Any]:
        """Return a variant of this agent: another `model`, `tools`, `limits`, `instructions`, `name`, and so on.

        It shares machine, journal and observers, and costs below 100 µs; with handoffs the machines of the team are
        made again, in about 3 ms. With another `journal`, `observers`, `runtime`, `hooks` or `graph` it is an agent of
        its own, built as by the constructor, and shares the rest. See `AgentTypeChanges`.

        A type checker knows the type of a variant with another `output_type` or `deps` from an annotation only:
        `other: Agent[Bank, Report] = agent.replace(...)`.

        Raises ConfigError, and GraphError for hooks and graph.

        Example:
            test = agent.replace(model=SchemaLLM(), journal=MemoryJournal(), observers=())
        """
        given: dict[str, Any] = dict(changes)
        refuse_unknown("replace has no argument", given, AgentTypeChanges.__annotations__, ELSEWHERE)
        if self._team is not None and given.keys() & set(_BUILT):
            given.setdefault("handoffs", self._team.handoffs)
            return self._team.plain.replace(**given)
        if built := {name: given.pop(name) for name in _BUILT if name in given}:
            return self.replace(**given)._built(built)
        if self._team is not None:
            found = self._team.plain.replace(**given)
            with joining():  # it has the name and the journal of this one
                found._join(self._team.handoffs)
            return found
        if isinstance(given.get("model"), str):
            given["model"], _ = model_named(given["model"], ())
        arguments.check_agent({"limits": None, **given}, Limits)
        found = copy.copy(self)
        found._parts = {name: given.get(name, part) for name, part in self._parts.items()}
        if "deps" in given:
            found._source = DepsSource(given["deps"])
        data = dict(self._service.data)
        if "name" in given or "version" in given:
            named = agent_data(
                given.get("name", data.get("agent")), given.get("version", data.get("agent_version"))
            )
            data = named | {key: value for key, value in data.items() if key == "definition"}
        data.pop("currency", None)  # its price and its model name it
        found._limits = given.get("limits", self._limits) or Limits()
        found._instructions = given.get("instructions", self._instructions)
        found._members = {}
        own, points = self._deps, self.hosting.own_points
        guards = compose.guardrails(**{name: given[name] for name in compose.STAGES if name in given})
        common: dict[str, Any] = {
            "points": points,
            "host": found._source.host,
            "agent": str(data.get("agent", "")),
            **{name: guards.get(name, getattr(own, name)) for name in compose.STAGES},
        }
        if given.keys() & {"model", "tools", "output_type", "retry", "params", "memory"}:
            found._deps = compose.handles(
                given.get("model", own.llm),
                given.get("tools", own.tools),
                own.clock,
                given.get("output_type"),
                given.get("retry", own.retry),
                given.get("params", own.params),
                memory=given.get("memory", own.memory),
                price=own.price,
                stored_result=own.stored_result,
                validators=own.validators,
                **common,
            )
            if "output_type" not in given:
                found._deps.output = own.output
        else:
            found._deps = replace(own, **common)
        if "definition" in data:
            data["definition"] = definition_of(found._deps.tools.offers)
        reporting = (found._deps.llm,)
        found._service = self._service.varied(found, found._kind(self._service.machine), data, reporting)
        found.hosting = found._make_hosting()
        refuse_unpriced(found._limits, agent_tool.prices(found))
        refuse_two_currencies(agent_tool.prices(found))
        refuse_unknown_tools(found._limits, found._deps.tools)
        return found

    @contextmanager
    def override(self, **changes: Unpack[AgentTypeChanges]) -> Iterator[Self]:
        """Make this very agent another one inside the block, for tests of code that holds it; changes as for `replace`.

        Runs that start in the block, in any task or thread, are those of the variant. Not for code in which other runs
        of the agent start at the same time.

        Example:
            with app.agent.override(model=SchemaLLM(), observers=()):
                assert client.post("/ask").status_code == 200
        """
        before, variant = dict(vars(self)), vars(self.replace(**changes))
        vars(self).clear()
        vars(self).update(variant)
        try:
            yield self
        finally:
            vars(self).clear()
            vars(self).update(before)

    def as_tool(
        self,
        name: str,
        description: str,
        *,
        output: Callable[[OutputT], object] | None = None,
        **options: Unpack[agent_tool.AgentToolOptions],
    ) -> ToolSpec:
        """Return a tool with which the model of another agent runs this one; options as for `agent_tool`.

        Args:
            name: Name of the tool.
            description: Description of the tool for the model.
            output: A pure function from this agent's output, a value of its output type, to the result of the tool.
                By default the output is the result: the other model reads text as it is, any other value as JSON.
            options: As for `agent_tool`.
        """
        return agent_tool.agent_tool(self, name, description, output=output, **options)

    def output_validator(self, function: V) -> V:
        """Check each final answer with a function of (output, context), sync or async; a decorator.

        It may return a changed output, or raise ModelRetry: the model reads the text and answers again. Several
        functions run in the order of their decoration.
        """
        for agent in (self,) if self._team is None else (self, self._team.loop, self._team.plain):
            agent._deps.validators += (as_validator(function),)
        return function

    # ---- called by the engine and the service ----

    def _check_run(
        self,
        run_id: object,
        conversation_id: object,
        limits: object,
        deadline: object,
        /,
        *,
        deposited: bool = False,
        **options: Any,
    ) -> per_run.RunSettings:
        if options.get("deps") is None and not deposited:  # the deps of a deposited run are the worker's
            self._source.require(self._deps.tools.offers)
        if self._team is not None:
            self._team.check(self, deps=deposited or options.get("deps") is not None)
        arguments.check_run(run_id, conversation_id, limits, deadline, kind=Limits)
        if isinstance(limits, Limits):
            refuse_unknown_tools(limits, self._deps.tools)
        return per_run.run_options(self._deps, **options) if options else per_run.NO_OPTIONS

    async def _start(  # noqa: PLR0917 - the arguments of a new run
        self,
        prompt: Prompt,
        run_id: str,
        conversation_id: str | None,
        limits: Limits | None,
        deadline: float | None,
        settings: per_run.RunSettings,
        follower: Follower | None = None,
        /,
    ) -> Result[OutputT]:
        journal = self._service.journal
        history = await self._conversations.before(conversation_id, journal, self._said_in)
        run = await self._new(prompt, history, run_id, conversation_id, limits, settings)
        run.follow(follower)
        self._service.limit_time(run, deadline)
        return await self._service.drive(run, park=self.parks)

    def _declare(self, service: RunService[Any]) -> None:
        offers = self._deps.tools.offers
        guards = [one.name for one in (*self._deps.input_guards, *self._deps.output_guards)]
        names = service.machine.graph.fingerprint, self._deps.model, *(spec.name for spec in offers), *guards
        if names not in self._declared:  # variants share this set
            self._declared.add(names)
            budgets = enabled_budgets(self._limits)
            labels = compose.labels(self._deps.llm, offers)
            service.announce(self._limits.max_seconds, guards, budgets=budgets, **labels)

    def _restore(self, stored: StoredRun, records: Sequence[Record]) -> LoopRun:  # noqa: ARG002 - `stored` has all
        model = self._source.models.get(stored.run_id)
        handles = per_run.run_deps(self._deps, stored.created.get(OPTIONS) or {}, model=model)
        run = restored(stored, self._service.machine, handles, self._codec)
        if self._deps.output is None and "output" in (said := stored.ended or {}):
            run.ctx.output = said["output"]  # the last record has it, if no message has
        return run

    def _check_limits(self, limits: Limits | None) -> None:
        refuse_real(self._deps.llm)
        if limits is not None:
            refuse_unpriced(limits, agent_tool.prices(self))
            refuse_unknown_tools(limits, self._deps.tools)

    async def _check_resume(self, head: RunHead, again: bool) -> None:  # noqa: ARG002, FBT001 - as RunKind
        root = await agent_tool.open_root(self._service.journal, head)
        if root not in (None, head.run_id):
            raise ConfigError(
                f"run {head.run_id!r} is part of run {root!r}, which resumes it; resume that run"
            )

    async def _update(
        self,
        run: LoopRun,
        stored: StoredRun,
        records: Sequence[Record],  # noqa: ARG002 - as RunKind
        limits: Limits | None,
    ) -> Iterable[Fact]:
        """Make its deps, count the usage of its child runs, and charge a lost answer."""
        await self._source.restore(run)
        below = await agent_tool.recount(self, run, stored)
        if below:
            open_account(run, dormant=below)
        if limits is not None:
            run.ctx.context.limit = self._context_limit(limits, run.deps.llm)
        if not may_have_sent_request(stored):
            return ()
        lost = lost_answer_usage(run)
        run.ctx.spent.usage = run.ctx.spent.usage + lost
        at, cost = self._service.clock.time(), lost.cost_micros or 0
        return (AnswerLost(run.graph.name, run.run_id, run.deps.model, cost, at, run.agent),)

    async def _continue(self, run: LoopRun, path: Iterable[Transition]) -> Result[OutputT]:
        """Drive a resumed run to its end."""
        if run.parent_run_id is not None:  # otherwise `_check_resume` has refused: its parent run has ended
            why = f"run {run.parent_run_id!r} above it has ended"
            run.mailbox.post(Signal(kind="cancel", id=new_id(), by="caller", why=why))
        return await self._service.drive(run, path, park=self.parks)

    def _over(self, run: LoopRun) -> None:
        admission.close_turn(run.ctx)  # an interrupted turn is answered, so the history stays valid
        self._conversations.keep(run.ctx.conversation_id, run.run_id, memory_hooks.conversation(run.ctx))

    # ---- private ----

    def _built(self, changes: Mapping[str, Any]) -> Agent:
        """Return a new agent with these parts, each of `_BUILT`, and all others of this one."""
        handles, service, given = self._deps, self._service, {**self._parts, **changes}
        runtime = given.pop("runtime", None)
        on = {name: given.pop(name) for name in ("journal", "observers") if name in given}
        if runtime is None:
            runtime, on = service.runtime.replaced(**on), {}
        with joining():  # it may have the name and the journal of this one
            found: Agent = Agent(
                handles.llm,
                name=service.data.get("agent"),
                version=service.data.get("agent_version"),
                tools=handles.tools,
                instructions=self._instructions,
                limits=self._limits,
                retry=handles.retry,
                memory=handles.memory,
                params=handles.params,
                input_guards=handles.input_guards,
                output_guards=handles.output_guards,
                runtime=runtime,
                launch=self._launch,
                **on,
                **given,
            )
        found._deps.validators = handles.validators
        return found

    def _make_hosting(self) -> LoopHosting:
        found = LoopHosting(self._service, self._deps, self._launch, check=self._check_run, begin=self._begin)
        found.input = RunInput(PROMPT, self.deposit)
        return found

    def _tool_of_run(self, name: str, definition: Mapping[str, str]) -> ToolSpec | None:
        """Return a tool if a run with these tools has exactly this one; None otherwise."""
        spec = self._deps.tools.find(name)
        found = {} if spec is None else definition_of((spec,))
        return spec if found.items() <= definition.items() else None

    def _owner_of(self, graph: str) -> Agent:
        """Return what continues a run of a graph: this agent, or its part for runs from before it had handoffs."""
        team = self._team
        return self if team is None or graph == self._service.machine.declared.name else team.plain

    async def _said_in(self, run_id: str) -> Sequence[Message]:
        """Return the messages of a stored run up to its end or its last record."""
        stored, _ = await self._service.recovery.read(run_id)
        if "handoffs" in stored.context:
            from orchestrator.runtime.team.run_record import conversation_of  # as in `_join`

            return await conversation_of(self._service.journal, stored)
        return history_of(stored, loop_codec())

    async def _new(  # noqa: PLR0917 - the arguments of `run`
        self,
        prompt: Prompt,
        history: Sequence[Message],
        run_id: str,
        conversation_id: str | None,
        limits: Limits | None,
        options: per_run.RunSettings,
        *,
        deposited: bool = False,
    ) -> LoopRun:
        """Return a new run. A deposited one has deps only for the function of its instructions."""
        self._check_limits(None if limits is self._limits else limits)
        limits = limits or self._limits
        own = self._instructions if self._team is None else None  # each segment has those of its agent
        said = options.instructions or own
        factory = None if deposited and not callable(said) else self._source.factory
        deps, text = await per_run.prepare_run(self._deps, run_id, options, own, factory)
        if self._team is not None:
            state = await self._team.context(self, prompt, history, conversation_id, options.start)
            state.limits, state.instructions = limits, text
            return self._service.new_run(run_id, state, deps, options.data)
        messages = opening(prompt, history, text)
        ctx = LoopContext(messages, limits, len(messages), conversation_id=conversation_id)
        ctx.context.limit = self._context_limit(limits, deps.llm)
        return self._service.new_run(run_id, ctx, deps, options.data)

    @staticmethod
    def _context_limit(limits: Limits, llm: LLM) -> int:
        return limits.context_limit or int(getattr(llm, "context_window", 0) or 0)


_BUILT = ("journal", "observers", "runtime", "hooks", "graph", "ask", "handoffs")
"""Arguments of `replace` that a variant cannot have: they need an agent of its own."""

Orchestrator = Agent
"""The same class under the name of the specification."""


def model_named(model: str, tools: Any) -> tuple[LLM, Any]:
    """Return the model that a text names, and the given tools, else those that came with the model."""
    found = around.model_of(model)
    return found.llm, tools or found.tools


def _loop_migrations(graph: Graph) -> Iterable[Migration]:
    """Return the migrations between its graph and the same with handoffs."""
    from orchestrator.runtime.team.team import loop_migrations  # seldom needed

    return loop_migrations(graph)


def child_agent(owner: Facade[Any], output_type: Any, options: Mapping[str, Any]) -> Agent:
    """Return an agent whose runs use the journal, observers and live runs of `owner`.

    `options` are for Agent.
    """
    above = owner._service
    runtime = Runtime(
        journal=above.journal,
        observers=above.runtime.observers,
        clock=above.clock,
        price=above.runtime.price,
    )
    with joining():
        agent: Agent = Agent(runtime=runtime, output_type=output_type, **options)
    own = agent._service
    agent._declared = set()
    agent._serve(
        runtime,
        own.machine,
        own.data,
        live=above.live,
        control=above.control,
        watching=(ChildWaitObserver(),),
    )
    return agent


async def run_child(
    agent: Agent,
    parent_id: str,
    key: str,
    prompt: str,
    *,
    lender: Callable[[Limits], Limits] = lambda limits: limits,
    follower: Callable[[Result], None] = lambda _: None,
) -> Result:
    """Start or resume the child run `key` of the run `parent_id`, and return its result.

    `follower` is called with the result even if the parent run was stopped meanwhile. Raises ConfigError if that run is
    not the current one.
    """
    above = current_scope()
    if above is None or above.run.run_id != parent_id:
        raise ConfigError("a model as a port works only inside a run of its graph")
    leash = ChildRunGuard(parent_id)
    work = asyncio.ensure_future(
        agent_tool.drive_child(agent, above.run, key, prompt, lender, leash.claim_child)
    )
    try:
        return await child_result(work, leash, above)
    finally:
        if work.done() and not work.cancelled() and work.exception() is None:
            follower(work.result())
