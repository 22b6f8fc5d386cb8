"""`Agent`, the facade of the LLM loop: graph, guards, hooks and handles."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.errors import ConfigError, RunExists, RunUnknown
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Journal, Record, RunHead
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.outcome import Ending
from orchestrator.kernel.record import Follower, Observer, Transition
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Message
from orchestrator.llm.port import LLM, Clock, Memory, Price
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.ending import ending
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.providers.model_guard import refuse_real
from orchestrator.runtime.llm_loop import agent_tool as subagent
from orchestrator.runtime.llm_loop import composition as compose
from orchestrator.runtime.llm_loop.codec import history_of, loop_codec, restored
from orchestrator.runtime.llm_loop.conversation import Conversations, Prompt, opening
from orchestrator.runtime.llm_loop.result import ANSWERED, Result, result_of
from orchestrator.runtime.llm_loop.stored_results import StoredResults
from orchestrator.runtime.llm_loop.summary import summary
from orchestrator.runtime.service import argument_check as arguments
from orchestrator.runtime.service.hosting import LoopHosting
from orchestrator.runtime.service.human_input import HumanInput
from orchestrator.runtime.service.recovery import Migration
from orchestrator.runtime.service.run_data import SHARED, agent_data, run_data, stored_data
from orchestrator.runtime.service.run_service import new_id, outside_loop
from orchestrator.runtime.service.stream import RunStream
from orchestrator.tools.spec import ToolSpec
from orchestrator_callbacks.llm_loop import admission
from orchestrator_callbacks.llm_loop import memory as memory_hooks
from orchestrator_callbacks.llm_loop.deps import LoopRun, ToolProvider, open_account
from orchestrator_callbacks.llm_loop.request_usage import lost, refuse_unpriced


class Agent(HumanInput[Result]):
    """Run the LLM loop: one agent for any number of runs, also concurrent ones.

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
        instructions: System message of each run.
        deps: Handles of the host, for tools.
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

    def __init__(
        self,
        llm: LLM,
        *,
        tools: Iterable[ToolSpec | Callable[..., Any]] | ToolProvider = (),
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        journal: Journal | None = None,
        memory: Memory | None = None,
        output_type: object = None,
        observers: Iterable[Observer] | None = None,
        hooks: Iterable[object] = (),
        graph: Graph = LLM_LOOP,
        instructions: str | None = None,
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
        given = {"memory": memory, "price": price, "points": points, "host": deps, "agent": self.name}
        self._deps = compose.handles(llm, tools, clock, output_type, retry, params, **given)
        self._set_up(self._deps.clock, journal, observers, migrations, self._deps.tools)
        self._conversations = Conversations()
        self._codec: ContextCodec[LoopContext] = loop_codec(launch)
        self._wire()
        self.hosting = LoopHosting(
            self._journal, self._driver, self._deps, self._live, self._recovery, launch
        )
        """Engine-only interface of this agent."""
        self._members: dict[Agent, Agent] = {}  # agents of tools -> copies with our journal
        refuse_unpriced(self._limits, subagent.prices(self))

    def _wire(self, *watching: Observer, owner: str | None = None) -> None:
        self._deps.stored_result = StoredResults(self._journal).read
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
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Result:
        """Run one prompt, or a conversation given as messages, to its end and return the Result.

        While a person is asked or has paused the run, this call waits, and the time does not count. If the caller is
        cancelled, it gets its CancelledError, and the run is left where it was and can be resumed.

        Args:
            prompt: Text, a message, or a conversation as messages or in OpenAI form.
            run_id: Id of the run; random by default.
            conversation_id: Conversation that the run continues.
            limits: Limits of this run instead of the agent's.
            deadline: Seconds from now, in addition to `limits`; 0 has passed already.
            metadata: JSON data of the host, stored with the run and its child runs, never logged; at most 16 kB.
            tags: Text by name, likewise; at most 32.

        Returns:
            The Result. Its `outcome` says how the run ended.

        Raises:
            RunExists: `run_id` is in use.
            ConfigError: The prompt is invalid, or the conversation has an active run.
        """
        arguments.check_run(run_id, conversation_id, limits, deadline)
        data = run_data(metadata, tags)
        return await self.begin(prompt, run_id or new_id(), conversation_id, limits, deadline, data=data)

    async def deposit(
        self,
        prompt: Prompt,
        *,
        run_id: str | None = None,
        conversation_id: str | None = None,
        limits: Limits | None = None,
        tenant: str = "",
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Store a run in the journal for a worker, and return its id; the model is not called here.

        Requires a journal that other processes share. `tenant` names the owner of the run, for limits per tenant.
        Raises the errors of `run`.
        """
        arguments.check_run(run_id, conversation_id, limits)
        data = run_data(metadata, tags)
        history = await self._conversations.before(conversation_id, self._journal, self._said_in)
        name = run_id or new_id()
        run = self._new(prompt, history, name, conversation_id, limits or self._limits, data)
        return await self._deposit(run, tenant)

    def run_sync(self, prompt: Prompt, **options: Any) -> Result:
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
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RunStream:
        """Run one prompt as `run` does and stream its facts: `async for fact in agent.stream(...)`.

        Yields every fact about the run and its child runs, and the model's text as TokenDelta; the last fact is
        RunCompleted. `await stream.result()` returns the Result. A slow reader does not delay the run. If the reader
        stops early, the run is left where it was and can be resumed (see `runtime.service.stream`). The run and its
        `deadline` start when the first fact is requested. Raises ConfigError; iterating raises the errors of `run`.
        """
        arguments.check_run(run_id, conversation_id, limits, deadline)
        data, name = run_data(metadata, tags), run_id or new_id()
        work = functools.partial(self.begin, prompt, name, conversation_id, limits, deadline, data=data)
        return RunStream(name, self._machine.graph.name, work)

    async def resume(
        self, run_id: str, *, limits: Limits | None = None, by: str = "", from_agent: str | None = None
    ) -> Result:
        """Resume a run of the journal from its last record and return its Result.

        For an ended run the Result is only read.

        A paused run is resumed, also if it lives in this process.

        `limits` replace the run's own from now on; `by` is who resumes the run. `from_agent` is the name of the agent
        that started the run ("" for an agent without a name), if that is not this one: it transfers the run.

        Raises:
            RunUnknown: The journal does not have the run.
            OtherAgent: The run belongs to an agent of another name.
            Held: Another process owns the run.
            OtherGraph: The run has another version of the graph and there is no migration.
            Suspended: The run failed to make progress too often.
            Corrupt: The run is damaged.
            ConfigError: The run is a child of an open run, which resumes it.
        """
        arguments.check_run(limits=limits)
        return await self._resume(run_id, limits, by, from_agent=from_agent)

    def as_tool(self, name: str, description: str, **options: Any) -> ToolSpec:
        """Return a tool with which the model of another agent runs this one; options as for `agent_tool`."""
        return subagent.agent_tool(self, name, description, **options)

    # ---- called by an engine ----

    def check(self, run_id: object, conversation_id: object, limits: object, deadline: object) -> None:
        """Check the arguments of one run. Raises ConfigError."""
        arguments.check_run(run_id, conversation_id, limits, deadline)

    async def begin(  # noqa: PLR0917 - the arguments of `run`
        self,
        prompt: Prompt,
        run_id: str,
        conversation_id: str | None,
        limits: Limits | None,
        deadline: float | None,
        follower: Follower | None = None,
        *,
        data: Mapping[str, Any] | None = None,
    ) -> Result:
        """Start a run with checked arguments and drive it to its end."""
        history = await self._conversations.before(conversation_id, self._journal, self._said_in)
        run = self._new(prompt, history, run_id, conversation_id, limits or self._limits, data)
        run.follow(follower)
        self._limit_time(run, deadline)
        return await self._drive_run(run, park=self.parks)

    # ---- called by RunService ----

    def _declare(self) -> None:
        compose.declare(self._observers, self._machine, self._deps, self._journal, self._limits)

    def _ending(self, run: LoopRun) -> Ending:
        return ending(run)

    def _summary(self, run: LoopRun) -> Mapping[str, Any]:
        return summary(run)

    def _result(self, run: LoopRun, path: Iterable[Transition], end: Ending) -> Result:
        return result_of(run, path, end)

    def _with_recorded_output(self, result: Result, ended: Mapping[str, Any]) -> Result:
        if self._deps.output is None and "output" in ended and result.outcome in ANSWERED:
            return replace(result, output=ended["output"])
        return result

    def _restore(self, stored: StoredRun, records: Iterable[Record]) -> LoopRun:  # noqa: ARG002 - `stored` has all
        return restored(stored, self._machine, self._deps, self._codec)

    def _check_model(self, limits: Limits | None) -> None:
        refuse_real(self._deps.llm)
        if limits is not None:
            refuse_unpriced(limits, subagent.prices(self))

    async def _check_resume(self, head: RunHead, *, again: bool) -> None:  # noqa: ARG002 - the ledger has everything
        root = await subagent.open_root(self._journal, head)
        if root not in (None, head.run_id):
            raise ConfigError(
                f"run {head.run_id!r} is part of run {root!r}, which resumes it; resume that run"
            )

    async def _update(
        self, run: LoopRun, stored: StoredRun, records: Sequence[Record], limits: Limits | None
    ) -> None:
        """Count the usage of its child runs, set other limits, and charge a lost answer."""
        below = await subagent.recount(self, run, stored)
        if below:
            open_account(run, dormant=below)
        await super()._update(run, stored, records, limits)
        if limits is not None:
            run.ctx.context.limit = self._context_limit(limits)
        if subagent.asks(run, stored):
            run.ctx.spent.usage = run.ctx.spent.usage + lost(run)

    async def _drive(self, run: LoopRun, path: Iterable[Transition]) -> Result:
        if run.parent_run_id is not None:  # otherwise `_check_resume` has refused: its parent run has ended
            why = f"run {run.parent_run_id!r} above it has ended"
            run.mailbox.post(Signal(kind="cancel", id=new_id(), by="caller", why=why))
        return await super()._drive(run, path)

    def _out_of_hand(self, run: LoopRun) -> None:
        admission.close_turn(run.ctx)  # an interrupted turn is answered, so the history stays valid

    def _over(self, run: LoopRun) -> None:
        self._conversations.keep(run.ctx.conversation_id, run.run_id, memory_hooks.conversation(run.ctx))

    # ---- private ----

    async def _run_child(
        self,
        parent: Run[Any, Any],
        run_id: str,
        prompt: str,
        lender: Callable[[Limits], Limits],
        adopt: Callable[[LoopRun], None],
    ) -> Result:
        """Start or resume a child run and drive it to its end; for an ended one the Result is only read.

        `lender` makes the limits of a new run from the agent's own; `adopt` gets the run before it is driven. Raises
        RunExists if `run_id` is not a child of `parent`.
        """
        path: Iterable[Transition] = ()
        try:
            head = await self._journal.head(run_id)
        except RunUnknown:
            data = stored_data(parent.data or {}, SHARED)
            run = self._new(prompt, (), run_id, None, lender(self._limits), data)
            run.parent_run_id = parent.run_id
            self._limit_time(run, None)
        else:
            if head.parent_run_id != parent.run_id:
                raise RunExists(run_id)
            if head.status == "ended":
                return await self._ended_result(run_id)
            run, path = await self._claim(run_id, None, f"run {parent.run_id}")
        adopt(run)
        return await self._drive_run(run, path)

    async def _said_in(self, run_id: str) -> Sequence[Message]:
        """Return the messages of a stored run up to its end or its last record."""
        stored, _ = await self._recovery.read(run_id)
        return history_of(stored, self._codec)

    def _new(  # noqa: PLR0917 - the arguments of `run`
        self,
        prompt: Prompt,
        history: Sequence[Message],
        run_id: str,
        conversation_id: str | None,
        limits: Limits,
        data: Mapping[str, Any] | None = None,
    ) -> LoopRun:
        self._check_model(None if limits is self._limits else limits)
        messages = opening(prompt, history, self._instructions)
        ctx = LoopContext(messages, limits, len(messages), conversation_id=conversation_id)
        ctx.context.limit = self._context_limit(limits)
        return Run(self._machine, run_id, ctx, self._deps, data={**self._data, **(data or {})} or None)

    def _context_limit(self, limits: Limits) -> int:
        return limits.context_limit or int(getattr(self._deps.llm, "context_window", 0) or 0)


Orchestrator = Agent
"""The same class under the name of the specification."""
