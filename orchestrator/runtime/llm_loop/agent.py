"""`Agent`, the facade of the LLM loop: graph, guards, hooks and handles."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Unpack, overload

from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.record import Follower, Observer
from orchestrator.llm.port import LLM, Clock, Memory, Price
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
from orchestrator.runtime.service.recovery import Migration
from orchestrator.runtime.service.run_data import agent_data
from orchestrator.runtime.service.run_service import new_id
from orchestrator.runtime.service.stream import RunStream
from orchestrator.runtime.service.synchronous import outside_loop, with_arguments_of
from orchestrator.tools.context import DepsT_contra
from orchestrator.tools.spec import ToolSource, ToolSpec
from orchestrator_callbacks.llm_loop.deps import ToolProvider
from orchestrator_callbacks.llm_loop.output_validation import V, as_validator
from orchestrator_callbacks.llm_loop.request_usage import refuse_unpriced


class Agent(LoopService[OutputT], Generic[DepsT_contra, OutputT]):
    """Run the LLM loop: one agent for any number of runs, also concurrent ones.

    `Agent[Bank, Report]` gives a Bank to its tools and has a Report as its output; a type checker infers both.

    The constructor starts nothing.

    Args:
        llm: The model.
        tools: Functions, tool specifications or a tool set.
        limits: Default limits of a run.
        retry: Retry policy of model requests.
        journal: Stores the records of the runs; in memory if None.
        memory: Long-term memory before and after a run.
        output_type: A pydantic model, a type, or a JSON schema; `str` and None mean free text.
        observers: Observers of all runs. None means `TransitionLog()` and `Metrics()` on the default registry, `()`
            none.
        hooks: Modules or objects with `enter_/leave_/before_/after_` functions, which run after the loop's own, and
            with functions for the five middleware points.
        graph: The graph; extend `LLM_LOOP` for another one.
        instructions: System message of each run: text, or a function of its RunContext, evaluated once for each run.
        deps: Handles of the host, for tools, or a factory: a function that makes them from the RunContext of each run,
            also when it is resumed. Functions may be sync (called in a thread) or async.
        clock: Clock, for tests.
        price: Price table of the models.
        params: Parameters of every model request.
        migrations: Functions that migrate runs of older graphs to this one.
        launch: Plain data that is stored with each run, for the process that resumes it.
        name: Name of the agent, stored with each of its runs.
        version: Version of the agent, stored with each of its runs.
        check_purity: If True, a guard that changes its context fails the run with a GraphError that names guard and
            field. None means off, except in tests (see `kernel.purity`).

    Raises:
        ConfigError: An argument is invalid.
        GraphError: The graph is invalid or does not fit the hooks.

    Example:
        agent = Agent(llm, tools=[search], limits=Limits(max_iterations=20))
        result = await agent.run("Summarise the open incidents.")
    """

    @overload
    def __init__(
        self: Agent[DepsT_contra, str],
        llm: LLM,
        *,
        output_type: None = None,
        **arguments: Unpack[AgentArguments[DepsT_contra]],
    ) -> None: ...
    @overload
    def __init__(
        self, llm: LLM, *, output_type: type[OutputT], **arguments: Unpack[AgentArguments[DepsT_contra]]
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[DepsT_contra, Any],
        llm: LLM,
        *,
        output_type: Mapping[str, Any] | TypeForm,
        **arguments: Unpack[AgentArguments[DepsT_contra]],
    ) -> None: ...
    def __init__(
        self,
        llm: LLM,
        *,
        tools: Iterable[ToolSource[Any]] | ToolProvider = (),
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        journal: Journal | None = None,
        memory: Memory | None = None,
        output_type: object = None,
        observers: Iterable[Observer] | None = None,
        hooks: Iterable[object] = (),
        graph: Graph = LLM_LOOP,
        instructions: str | per_run.RunFunction | None = None,
        deps: Any = None,
        clock: Clock | None = None,
        price: Price | None = None,
        params: Mapping[str, Any] | None = None,
        migrations: Iterable[Migration] = (),
        launch: Mapping[str, Any] | None = None,
        name: str | None = None,
        version: str | None = None,
        check_purity: bool | None = None,
    ) -> None:
        arguments.check_agent(locals())
        self._data = agent_data(name, version)
        self._limits, self._instructions = limits or Limits(), instructions
        self._machine, points = compose.machine(graph, hooks, check_purity=check_purity)
        self._source = per_run.DepsSource(deps)
        given = {"memory": memory, "price": price, "points": points, "host": self._source.host}
        self._deps = compose.handles(llm, tools, clock, output_type, retry, params, agent=self.name, **given)
        self._set_up(self._deps.clock, journal, observers, migrations, self._deps.tools)
        self._conversations = Conversations()
        self._codec, self._launch = loop_codec(launch), launch
        self._identify(self._deps.tools.offers, instructions, self._deps.output, launched=bool(launch))
        self._wire()
        self.hosting = self._make_hosting()
        """Engine-only interface of this agent."""
        self._members = {}  # agents of tools -> copies with our journal
        refuse_unpriced(self._limits, subagent.prices(self))

    def _wire(self, *watching: Observer, owner: str | None = None) -> None:
        self._deps.stored_result = StoredResults(self._journal).read
        self._declared: set[object] = set()
        super()._wire(*watching, owner=owner)

    # ---- run ----

    async def run(
        self,
        prompt: Prompt,
        *,
        run_id: str | None = None,
        conversation_id: str | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
        **options: Unpack[per_run.RunArguments],
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
        arguments.check_run(run_id, conversation_id, limits, deadline)
        checked = self.check_options(**options)
        return await self.begin(
            prompt, run_id or new_id(), conversation_id, limits, deadline, options=checked
        )

    async def deposit(
        self,
        prompt: Prompt,
        *,
        run_id: str | None = None,
        conversation_id: str | None = None,
        limits: Limits | None = None,
        tenant: str = "",
        **options: Unpack[per_run.RunArguments],
    ) -> str:
        """Store a run in the journal for a worker, and return its id; the model is not called here.

        Requires a journal that other processes share. `tenant` names the owner of the run, for limits per tenant.
        Options as for `run`, without `deps`: the agent of the worker makes them. Raises the errors of `run`.
        """
        arguments.check_run(run_id, conversation_id, limits)
        if options.get("deps") is not None:
            raise ConfigError(
                "deps of a deposited run cannot be stored; give the worker's agent a factory for them"
            )
        checked, name = self.check_options(**options), run_id or new_id()
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
        **options: Unpack[per_run.RunArguments],
    ) -> RunStream[OutputT]:
        """Run one prompt as `run` does and stream its events: `async for event in agent.stream(...)`.

        Yields every event of the run and its child runs (`orchestrator.events`), also the pieces of the model's
        answers; the last event is RunFinished. `await stream.result()` returns the Result. A slow reader does not
        delay the run. If the reader stops early, the run is left where it was and can be resumed (see
        `runtime.service.stream`). The run and its `deadline` start when the first event is requested. Raises
        ConfigError; iterating raises the errors of `run`.
        """
        arguments.check_run(run_id, conversation_id, limits, deadline)
        checked, name = self.check_options(**options), run_id or new_id()
        work = functools.partial(self.begin, prompt, name, conversation_id, limits, deadline, options=checked)
        return RunStream(name, work)

    async def resume(
        self,
        run_id: str,
        *,
        limits: Limits | None = None,
        by: str = "",
        from_agent: str | None = None,
        deps: Any = None,
    ) -> Result[OutputT]:
        """Resume a run of the journal from its last record and return its Result.

        For an ended run the Result is only read.

        A paused run is resumed, also if it lives in this process.

        `limits` replace the run's own from now on; `by` is who resumes the run; `deps` are live handles for its tools.
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
            return await self._resume(run_id, limits, by, from_agent=from_agent)

    def replace(self, **changes: Unpack[AgentChanges]) -> Agent:
        """Return a variant of this agent: another `model`, `tools`, `limits`, `instructions`, `name`, and so on.

        It shares machine, journal and observers, and costs below 100 µs. See `AgentChanges`. Raises ConfigError.
        """
        return variant(self, changes)

    def as_tool(self, name: str, description: str, **options: Any) -> ToolSpec:
        """Return a tool with which the model of another agent runs this one; options as for `agent_tool`."""
        return subagent.agent_tool(self, name, description, **options)

    def output_validator(self, function: V) -> V:
        """Check each final answer with a function of (output, context), sync or async; a decorator.

        It may return a changed output, or raise ModelRetry: the model reads the text and answers again. Several
        functions run in the order of their decoration.
        """
        self._deps.validators += (as_validator(function),)
        return function

    # ---- called by an engine ----

    def check(self, run_id: object, conversation_id: object, limits: object, deadline: object) -> None:
        """Check the arguments of one run. Raises ConfigError."""
        arguments.check_run(run_id, conversation_id, limits, deadline)

    def check_options(self, **options: Unpack[per_run.RunArguments]) -> per_run.RunSettings:
        """Check the options of one run. Raises ConfigError."""
        return per_run.run_options(self._deps, **options) if options else per_run.NO_OPTIONS

    async def begin(  # noqa: PLR0917 - the arguments of `run`
        self,
        prompt: Prompt,
        run_id: str,
        conversation_id: str | None,
        limits: Limits | None,
        deadline: float | None,
        follower: Follower | None = None,
        *,
        options: per_run.RunSettings = per_run.NO_OPTIONS,
    ) -> Result[OutputT]:
        """Start a run with checked arguments and drive it to its end."""
        history = await self._conversations.before(conversation_id, self._journal, self._said_in)
        run = await self._new(prompt, history, run_id, conversation_id, limits, options)
        run.follow(follower)
        self._limit_time(run, deadline)
        return await self._drive_run(run, park=self.parks)


Orchestrator = Agent
"""The same class under the name of the specification."""
