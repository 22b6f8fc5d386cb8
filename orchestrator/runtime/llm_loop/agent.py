"""The LLM loop put together: table, guards, hooks and handles meet here. `Orchestrator` is the door to it."""

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
from orchestrator.runtime.llm_loop.summary import summary
from orchestrator.runtime.service import argument_check as arguments
from orchestrator.runtime.service.hosting import LoopHosting
from orchestrator.runtime.service.human_input import HumanInput
from orchestrator.runtime.service.recovery import Migration
from orchestrator.runtime.service.run_service import new_id, outside_loop
from orchestrator.runtime.service.stream import RunStream
from orchestrator.tools.spec import ToolSpec
from orchestrator_callbacks.llm_loop import admission
from orchestrator_callbacks.llm_loop import memory as recall
from orchestrator_callbacks.llm_loop.deps import LoopRun, ToolProvider, open_account
from orchestrator_callbacks.llm_loop.request_usage import lost, refuse_unpriced


class Orchestrator(HumanInput[Result]):
    """Runs the LLM loop: one agent, any number of runs, also at once.

    `journal=None` keeps records in memory. `observers=None` is `TransitionLog()` and `Metrics()` on the default
    registry; `()` is silent. `hooks` are modules or objects with `enter_/leave_/before_/after_` functions, run after
    ours, and with the five middleware points. `output_type` is a pydantic model, a type, or a JSON schema; `str`,
    like None, is free text. `migrations` let runs of older graphs go on in this one; `launch` is plain data kept
    with each run, for whoever resumes it. With `check_purity=True` a guard that changes its context fails the run with
    a GraphError that names guard and field; None is off, but in tests (see `kernel.purity`). Raises ConfigError or
    GraphError when this cannot work; nothing is started here.
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
        check_purity: bool | None = None,
    ) -> None:
        arguments.check_agent(locals())
        self._limits = limits or Limits()
        self._instructions = instructions
        self._machine, points = compose.machine(graph, hooks, check_purity=check_purity)
        given = {"memory": memory, "price": price, "points": points, "host": deps}
        self._deps = compose.handles(llm, tools, clock, output_type, retry, params, **given)
        self._set_up(self._deps.clock, journal, observers, migrations, self._deps.tools)
        self._conversations = Conversations()
        self._codec: ContextCodec[LoopContext] = loop_codec(launch)
        self._wire()
        self.hosting = LoopHosting(
            self._journal, self._driver, self._deps, self._live, self._recovery, launch
        )
        """For the engine that runs this agent."""
        self._members: dict[Orchestrator, Orchestrator] = {}  # agents among the tools -> with our journal
        refuse_unpriced(self._limits, subagent.prices(self))

    # ---- running ----

    async def run(
        self,
        prompt: Prompt,
        *,
        run_id: str | None = None,
        conversation_id: str | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
    ) -> Result:
        """Run one prompt, or a whole conversation as messages, to its end and return the Result.

        While a person is asked, or has paused the run, it waits here; that time does not count. `deadline` is in
        seconds from now and comes on top of `limits`; 0 has passed already. Raises RunExists for a known run_id and
        ConfigError for a prompt that is none or a conversation with a run under way; how the run itself ends is
        `result.outcome`. A cancelled caller gets its CancelledError; the run is then left where it was, for `resume`.
        """
        arguments.check_run(run_id, conversation_id, limits, deadline)
        return await self.begin(prompt, run_id or new_id(), conversation_id, limits, deadline)

    async def deposit(
        self,
        prompt: Prompt,
        *,
        run_id: str | None = None,
        conversation_id: str | None = None,
        limits: Limits | None = None,
        tenant: str = "",
    ) -> str:
        """Put a run into the journal for a worker to carry, and return its id; the model is not asked here.

        For a journal that other processes share. `tenant` is whose it is, for limits of each. Raises as `run` does.
        """
        arguments.check_run(run_id, conversation_id, limits)
        history = await self._conversations.before(conversation_id, self._journal, self._said_in)
        return await self._deposit(
            self._new(prompt, history, run_id or new_id(), conversation_id, limits or self._limits), tenant
        )

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
    ) -> RunStream:
        """Run one prompt as `run` does, and tell of it while it goes: `async for fact in agent.stream(...)`.

        Yields every fact about the run and those below it, and the model's words as TokenDelta; it ends after
        RunCompleted. `await stream.result()` is what `run` returns. A slow reader holds up nothing; one who leaves
        gives the run up, which is then left where it was, for `resume` (`runtime.stream` says how exactly). The run
        and its `deadline` begin when the first fact is asked for. Raises ConfigError; the loop raises the rest.
        """
        arguments.check_run(run_id, conversation_id, limits, deadline)
        name = run_id or new_id()
        work = functools.partial(self.begin, prompt, name, conversation_id, limits, deadline)
        return RunStream(name, self._machine.graph.name, work)

    async def resume(self, run_id: str, *, limits: Limits | None = None, by: str = "") -> Result:
        """Go on with a run of the journal where it stands, and return its Result; an ended one is only told.

        `limits` replace those it was started with. A run that was paused goes on, also one that lives here. Raises
        RunUnknown, Held while another process has it, OtherGraph for another version of the graph without a
        migration, Suspended for a run that failed to get on too often, Corrupt for one that was damaged, ConfigError
        for one that goes on with an open run above it.
        """
        arguments.check_run(limits=limits)
        return await self._resume(run_id, limits, by)

    def as_tool(self, name: str, description: str, **options: Any) -> ToolSpec:
        """Return a tool by which the model of another agent runs this one; options as for `subagent.agent_tool`."""
        return subagent.agent_tool(self, name, description, **options)

    # ---- what an engine asks of an agent ----

    def check(self, run_id: object, conversation_id: object, limits: object, deadline: object) -> None:
        """Look at the arguments of one run. Raises ConfigError."""
        arguments.check_run(run_id, conversation_id, limits, deadline)

    async def begin(  # noqa: PLR0917 - the arguments of `run`
        self,
        prompt: Prompt,
        run_id: str,
        conversation_id: str | None,
        limits: Limits | None,
        deadline: float | None,
        follower: Follower | None = None,
    ) -> Result:
        """Begin a run and drive it to its end; arguments as `check` has seen them."""
        history = await self._conversations.before(conversation_id, self._journal, self._said_in)
        run = self._new(prompt, history, run_id, conversation_id, limits or self._limits)
        run.follow(follower)
        self._limit_time(run, deadline)
        return await self._carry(run, park=self.parks)

    # ---- what RunService asks of a composition ----

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

    async def _check_resume(self, head: RunHead, *, again: bool) -> None:  # noqa: ARG002 - the ledger knows
        root = await subagent.open_root(self._journal, head)
        if root not in (None, head.run_id):
            raise ConfigError(
                f"run {head.run_id!r} is part of run {root!r} and goes on with it; resume that one"
            )

    async def _update(
        self, run: LoopRun, stored: StoredRun, records: Sequence[Record], limits: Limits | None
    ) -> None:
        """Count what the runs below it have used, set other limits, and charge an answer that was lost."""
        below = await subagent.recount(self, run, stored)
        if below:
            open_account(run, dormant=below)
        await super()._update(run, stored, records, limits)
        if limits is not None:
            run.ctx.context.limit = self._context_limit(limits)
        if subagent.asks(run, stored):
            run.ctx.spent.usage = run.ctx.spent.usage + lost(run)

    async def _drive(self, run: LoopRun, path: Iterable[Transition]) -> Result:
        if run.parent_run_id is not None:  # else `_check_resume` had refused: the run above it has ended
            why = f"run {run.parent_run_id!r} above it has ended"
            run.mailbox.post(Signal(kind="cancel", id=new_id(), by="caller", why=why))
        return await super()._drive(run, path)

    def _out_of_hand(self, run: LoopRun) -> None:
        admission.close_turn(run.ctx)  # a turn cut short is answered: the history stays valid

    def _over(self, run: LoopRun) -> None:
        self._conversations.keep(run.ctx.conversation_id, run.run_id, recall.conversation(run.ctx))

    # ---- inside ----

    async def _run_below(
        self,
        above: Run[Any, Any],
        run_id: str,
        prompt: str,
        lent: Callable[[Limits], Limits],
        adopt: Callable[[LoopRun], None],
    ) -> Result:
        """Begin a run below another one, or go on with it, and drive it to its end; one that has ended is only told.

        `lent` makes the limits of a new run out of the agent's own; `adopt` sees the run before it is driven. Raises
        RunExists for the id of a run that is not below `above`.
        """
        path: Iterable[Transition] = ()
        try:
            head = await self._journal.head(run_id)
        except RunUnknown:
            run = self._new(prompt, (), run_id, None, lent(self._limits))
            run.parent_run_id = above.run_id
            self._limit_time(run, None)
        else:
            if head.parent_run_id != above.run_id:
                raise RunExists(run_id)
            if head.status == "ended":
                return await self._ended_result(run_id)
            run, path = await self._claim(run_id, None, f"run {above.run_id}")
        adopt(run)
        return await self._carry(run, path)

    async def _said_in(self, run_id: str) -> Sequence[Message]:
        """Return what was said up to the end of a stored run, or up to where it stands."""
        stored, _ = await self._recovery.read(run_id)
        return history_of(stored, self._codec)

    def _new(
        self,
        prompt: Prompt,
        history: Sequence[Message],
        run_id: str,
        conversation_id: str | None,
        limits: Limits,
    ) -> LoopRun:
        self._check_model(None if limits is self._limits else limits)
        messages = opening(prompt, history, self._instructions)
        ctx = LoopContext(messages, limits, len(messages), conversation_id=conversation_id)
        ctx.context.limit = self._context_limit(limits)
        return Run(self._machine, run_id, ctx, self._deps)

    def _context_limit(self, limits: Limits) -> int:
        return limits.context_limit or int(getattr(self._deps.llm, "context_window", 0) or 0)
