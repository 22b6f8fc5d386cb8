"""`Agent`, the facade of the LLM loop: graph, guards, hooks and handles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, Unpack, overload

from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.record import Observer
from orchestrator.llm.port import LLM, Memory
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop import agent_tool as subagent
from orchestrator.runtime.llm_loop import composition as compose
from orchestrator.runtime.llm_loop import run_options as per_run
from orchestrator.runtime.llm_loop.agent_arguments import AgentArguments, OutputT, TypeForm
from orchestrator.runtime.llm_loop.agent_variant import AgentChanges, variant
from orchestrator.runtime.llm_loop.codec import loop_codec
from orchestrator.runtime.llm_loop.conversation import Conversations, Prompt
from orchestrator.runtime.llm_loop.loop_service import LoopService
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.llm_loop.stored_results import StoredResults
from orchestrator.runtime.service import argument_check as arguments
from orchestrator.runtime.service.notebook import agent_bundle
from orchestrator.runtime.service.resumed_stream import resumed_stream
from orchestrator.runtime.service.run_data import agent_data, new_id
from orchestrator.runtime.service.runtime import Runtime, runtime_of
from orchestrator.runtime.service.stream import RunStream
from orchestrator.runtime.service.synchronous import outside_loop, with_arguments_of
from orchestrator.tools.collection import ToolSource
from orchestrator.tools.context import DepsT_contra
from orchestrator.tools.spec import ToolSpec
from orchestrator_callbacks.llm_loop.admission import refuse_unknown_tools
from orchestrator_callbacks.llm_loop.deps import ToolProvider
from orchestrator_callbacks.llm_loop.output_validation import V, as_validator
from orchestrator_callbacks.llm_loop.request_usage import refuse_unpriced


class Agent(LoopService[OutputT], Generic[DepsT_contra, OutputT]):
    """Run the LLM loop: one agent for any number of runs, also concurrent ones.

    `Agent[Bank, Report]` gives a Bank to its tools and has a Report as its output; a type checker infers both.

    The constructor starts nothing.

    Args:
        model: The model.
        name: Name of the agent, stored with each of its runs.
        version: Version of the agent, stored with each of its runs.
        tools: Functions, tool specifications or a tool set.
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
        runtime: How its runs are executed: journal, observers, clock, migrations and prices. Agents can share it.
        journal, observers: A shortcut for a Runtime of its own with this journal and these observers.
        launch: Plain data that is stored with each run, for the process that resumes it.

    Raises:
        ConfigError: An argument is invalid.
        GraphError: The graph is invalid or does not fit the hooks.

    Example:
        agent = Agent(model, name="support", tools=[search], limits=Limits(max_iterations=20))
        result = await agent.run("Summarise the open incidents.")
    """

    @overload
    def __init__(
        self: Agent[DepsT_contra, str],
        model: LLM,
        *,
        output_type: None = None,
        **arguments: Unpack[AgentArguments[DepsT_contra]],
    ) -> None: ...
    @overload
    def __init__(
        self, model: LLM, *, output_type: type[OutputT], **arguments: Unpack[AgentArguments[DepsT_contra]]
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[DepsT_contra, Any],
        model: LLM,
        *,
        output_type: Mapping[str, Any] | TypeForm,
        **arguments: Unpack[AgentArguments[DepsT_contra]],
    ) -> None: ...
    def __init__(
        self,
        model: LLM,
        *,
        name: str | None = None,
        version: str | None = None,
        tools: Iterable[ToolSource[Any]] | ToolProvider = (),
        instructions: str | per_run.RunFunction | None = None,
        output_type: object = None,
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        hooks: Iterable[object] = (),
        graph: Graph = LLM_LOOP,
        memory: Memory | None = None,
        deps: Any = None,
        params: Mapping[str, Any] | None = None,
        runtime: Runtime | None = None,
        journal: Journal | None = None,
        observers: Iterable[Observer] | None = None,
        launch: Mapping[str, Any] | None = None,
    ) -> None:
        arguments.check_agent(locals())
        self._data, runtime = agent_data(name, version), runtime_of(runtime, journal, observers)
        self._limits, self._instructions = limits or Limits(), instructions
        self._machine, points = compose.machine(graph, hooks)
        self._source = per_run.DepsSource(deps)
        given = {"memory": memory, "price": runtime.price, "points": points, "agent": self.name}
        given["host"] = self._source.host
        self._deps = compose.handles(model, tools, runtime.clock, output_type, retry, params, **given)
        self._set_up(runtime, self._deps.tools)
        self._conversations = Conversations()
        self._codec, self._launch = loop_codec(launch), launch
        self._identify(self._deps.tools.offers, instructions, self._deps.output, launched=bool(launch))
        self._wire()
        self.hosting = self._make_hosting()
        """Engine-only interface of this agent."""
        self._members = {}  # agents of tools -> copies with our journal
        refuse_unpriced(self._limits, subagent.prices(self))
        refuse_unknown_tools(self._limits, self._deps.tools)

    def _wire(self, *watching: Observer, owner: str | None = None) -> None:
        self._deps.stored_result = StoredResults(self._journal).read
        self._declared: set[object] = set()
        super()._wire(*watching, owner=owner)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        tools = (spec.name for spec in self._deps.tools.offers)
        return agent_bundle(self.name, self._deps.model, tools, self._machine.valid_graph)

    # ---- run ----

    async def run(
        self,
        prompt: Prompt,
        *,
        run_id: str | None = None,
        conversation_id: str | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
        **options: Unpack[per_run.RunArguments[DepsT_contra]],
    ) -> Result[OutputT]:
        """Run one prompt, or a conversation given as messages, to its end and return the Result.

        While a person is asked or has paused the run, this call waits, and the time does not count. If the caller is
        cancelled, it gets its CancelledError, and the run is left where it was and can be resumed.

        Args:
            prompt: Text, a message, or a conversation as messages or in OpenAI form.
            run_id: Id of the run; random by default.
            conversation_id: Conversation that the run continues.
            limits: Limits of this run instead of the agent's.
            deadline: Seconds from now, in addition to `limits`; 0 has passed already.
            options: `deps`, `metadata`, `tags`, `instructions`, `params`, `output_type` and `tools` of this run, see
                `RunArguments`.

        Returns:
            The Result. Its `outcome` says how the run ended.

        Raises:
            RunExists: `run_id` is in use.
            ConfigError: The prompt or an option is invalid, or the conversation has an active run.
            RunError: The factory of the deps or the function of the instructions failed.
        """
        checked = self._check_run(run_id, conversation_id, limits, deadline, **options)
        return await self._begin(prompt, run_id or new_id(), conversation_id, limits, deadline, checked)

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
        checked, name = self._check_run(run_id, conversation_id, limits, None, **options), run_id or new_id()
        history = await self._conversations.before(conversation_id, self._journal, self._said_in)
        run = await self._new(prompt, history, name, conversation_id, limits, checked, deposited=True)
        return await self._deposit(run, tenant)

    @with_arguments_of(run)
    def run_sync(self, prompt: Prompt, **options: Any) -> Result[OutputT]:
        """Run from code without an event loop; options as for `run`. Raises ConfigError inside a running loop."""
        return outside_loop("run_sync", "agent.run", lambda: self.run(prompt, **options))

    def stream(
        self,
        prompt: Prompt,
        *,
        run_id: str | None = None,
        conversation_id: str | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
        **options: Unpack[per_run.RunArguments[DepsT_contra]],
    ) -> RunStream[OutputT]:
        """Run one prompt as `run` does and stream its events: `async for event in agent.stream(...)`.

        Yields every event of the run and its child runs (`orchestrator.events`), also the pieces of the model's
        answers; the last event is RunFinished. `await stream.result()` returns the Result. A slow reader does not
        delay the run. If the reader stops early, the run is left where it was and can be resumed (see
        `runtime.service.stream`). The run and its `deadline` start when the first event is requested. Raises
        ConfigError; iterating raises the errors of `run`.
        """
        checked = self._check_run(run_id, conversation_id, limits, deadline, **options)
        return self._stream(prompt, run_id, conversation_id, limits, deadline, checked)

    async def resume(
        self,
        run_id: str,
        *,
        limits: Limits | None = None,
        by: str = "",
        again: bool = False,
        from_agent: str | None = None,
        deps: DepsT_contra | None = None,
    ) -> Result[OutputT]:
        """Resume a run of the journal from its last record and return its Result.

        For an ended run the Result is only read. `Runs(journal).result(run_id)` reads that of any agent.

        A paused run is resumed, also if it lives in this process.

        `limits` replace the run's own from now on; `by` is who resumes the run; `deps` are live handles for its tools;
        `again` says that a person has checked that programs of the last owner have ended.
        `from_agent` is the name of the agent that started the run ("" for none), to transfer it from another agent.

        Raises:
            RunUnknown: The journal does not have the run.
            OtherAgent: The run belongs to an agent of another name.
            Held: Another process owns the run.
            OtherGraph: The run has another version of the graph and there is no migration.
            Suspended: The run failed to make progress too often, or needs deps.
            Corrupt: The run is damaged.
            ConfigError: The run is a child of an open run, which resumes it.
        """
        arguments.check_run(limits=limits)
        with self._source.given(run_id, deps):
            return await self._resume(run_id, limits, by, again=again, from_agent=from_agent)

    def stream_resume(
        self,
        run_id: str,
        *,
        limits: Limits | None = None,
        by: str = "",
        again: bool = False,
        from_agent: str | None = None,
        deps: DepsT_contra | None = None,
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
        return resumed_stream(
            run_id,
            self.runs,
            lambda head: self._recovery.refuse_foreign(head, from_agent),
            lambda: self.resume(run_id, limits=limits, by=by, again=again, from_agent=from_agent, deps=deps),
        )

    def replace(self, **changes: Unpack[AgentChanges]) -> Agent:
        """Return a variant of this agent: another `model`, `tools`, `limits`, `instructions`, `name`, and so on.

        It shares machine, journal and observers, and costs below 100 µs. See `AgentChanges`. Raises ConfigError.
        """
        return variant(self, changes)

    def as_tool(self, name: str, description: str, **options: Unpack[subagent.AgentToolOptions]) -> ToolSpec:
        """Return a tool with which the model of another agent runs this one; options as for `agent_tool`."""
        return subagent.agent_tool(self, name, description, **options)

    def output_validator(self, function: V) -> V:
        """Check each final answer with a function of (output, context), sync or async; a decorator.

        It may return a changed output, or raise ModelRetry: the model reads the text and answers again. Several
        functions run in the order of their decoration.
        """
        self._deps.validators += (as_validator(function),)
        return function


Orchestrator = Agent
"""The same class under the name of the specification."""
