"""The LLM loop put together: table, guards, hooks and handles meet here. `Orchestrator` is the door to it."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from orchestrator.errors import ConfigError, DeadlineExceeded, Held, OrchestratorError, Suspended
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.record import Follower, Observer, Transition
from orchestrator.kernel.run import Run, Signal
from orchestrator.machines.llm_loop.ending import ending
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext, Question
from orchestrator.messages import Message
from orchestrator.ports import LLM, Clock, Memory, Price
from orchestrator.retry import RetryPolicy
from orchestrator.runtime import arguments, compose, resuming, subagent
from orchestrator.runtime.control import Control
from orchestrator.runtime.conversation import Conversations, LiveRuns, Prompt, opening
from orchestrator.runtime.hosting import Hosting
from orchestrator.runtime.recovery import EndedMeanwhile, Migration, OpenRun, Recovery
from orchestrator.runtime.restore import history_of, loop_codec, told
from orchestrator.runtime.result import Result, result_of
from orchestrator.runtime.stream import RunStream
from orchestrator.runtime.summary import summary
from orchestrator.runtime.underway import UnderWay
from orchestrator.scope import scope
from orchestrator.switch import real_models_refused
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator.toolspec import ToolSpec
from orchestrator_callbacks.llm_loop import admission, recall
from orchestrator_callbacks.llm_loop.deps import LoopRun, Tools


class Orchestrator:
    """Runs the LLM loop: one agent, any number of runs, also at once.

    `journal=None` keeps records in memory. `observers=None` is `TransitionLog()` and `Metrics()` on the default
    registry; `()` is silent. `hooks` are modules or objects with `enter_/leave_/before_/after_` functions, run after
    ours, and with the five middleware points. `output_type` is a pydantic model, a type, or a JSON schema; `str`,
    like None, is free text. `migrations` let runs of older graphs go on in this one; `launch` is plain data kept
    with each run, for whoever resumes it. Raises ConfigError or GraphError when this cannot work; nothing is started
    here.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        tools: Iterable[ToolSpec | Callable[..., Any]] | Tools = (),
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
    ) -> None:
        arguments.check_agent(locals())
        self._limits = limits or Limits()
        self._instructions = instructions
        self._machine, points = compose.machine(graph, hooks)
        given = {"memory": memory, "price": price, "points": points, "host": deps}
        self._deps = compose.handles(llm, tools, clock, output_type, retry, params, **given)
        self._observers = (TransitionLog(), Metrics()) if observers is None else tuple(observers)
        self._journal, self._retire = compose.records(journal)
        self._live, self._conversations = LiveRuns(), Conversations()
        self._codec = loop_codec(launch)
        self._migrations = tuple(migrations)
        self._driver, self._recovery = self._wired()
        self._control = Control(self._live, self._journal, self._deps.clock)
        self.hosting = Hosting(self._journal, self._driver, self._deps, self._live, self._recovery, launch)
        """For the engine that runs this agent."""
        self._members: dict[Orchestrator, Orchestrator] = {}  # agents among the tools -> with our journal

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
        return await self._run(prompt, run_id or _new_id(), conversation_id, limits, deadline)

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
        name = run_id or _new_id()
        work = functools.partial(self._run, prompt, name, conversation_id, limits, deadline)
        return RunStream(name, self._machine.graph.name, work)

    async def resume(self, run_id: str, *, limits: Limits | None = None, by: str = "") -> Result:
        """Go on with a run of the journal where it stands, and return its Result; an ended one is only told.

        `limits` replace those it was started with. A run that was paused goes on, also one that lives here. Raises
        RunUnknown, Held while another process has it, OtherGraph for another version of the graph without a
        migration, Suspended for a run that failed to get on too often, Corrupt for one that was damaged, ConfigError
        for one that goes on with an open run above it.
        """
        arguments.check_run(limits=limits)
        live = self._live.find(run_id)
        if live is not None:
            return await self._resume_here(live, limits, by)
        self._refuse_real_models()
        head = await self._journal.head(run_id)
        if head.status == "ended":
            return await self._tell(run_id)
        root = await subagent.open_root(self._journal, head)
        if root not in (None, run_id):
            raise ConfigError(f"run {run_id!r} is part of run {root!r} and goes on with it; resume that one")
        try:
            with self._live.taking(run_id):
                run, path = await self._restore(run_id, limits, by)
        except EndedMeanwhile:
            return await self._tell(run_id)
        if root is None:
            why = f"run {head.parent_run_id!r} above it has ended"
            run.mailbox.post(Signal(kind="cancel", id=_new_id(), by="caller", why=why))
        return await self._carry(run, path)

    async def open_runs(self) -> list[OpenRun]:
        """List the runs of this graph in the journal that have not ended, and what `resume` would do with each."""
        return await self._recovery.open_runs()

    def as_tool(self, name: str, description: str, **options: Any) -> ToolSpec:
        """Return a tool by which the model of another agent runs this one; options as for `subagent.agent_tool`."""
        return subagent.agent_tool(self, name, description, **options)

    async def _tell(self, run_id: str) -> Result:
        """Return the Result of a run that has ended."""
        stored, records = await self._recovery.read(run_id)
        return told(stored, records, self._machine, self._deps, self._codec)

    async def _restore(
        self, run_id: str, limits: Limits | None, by: str
    ) -> tuple[LoopRun, Iterable[Transition]]:
        """Claim a run of the journal and announce that it goes on; return it with the path it has taken."""
        return await resuming.restore(self, run_id, limits, by)

    async def _carry(self, run: LoopRun, path: Iterable[Transition] = ()) -> Result:
        """Drive a run to its end."""
        try:
            self._live.open(run, path)
        except OrchestratorError:
            await self._driver.release(run)
            raise
        end: Result | None = None
        try:
            async with self._control.listening():
                try:
                    logger = compose.logger_of(self._observers, run)
                    with scope(run.ctx.limits, logger), UnderWay(self, run):
                        await self._control.deliver(run.run_id)
                        await self._driver.drive(run, park=False)
                finally:
                    kept = self._live.close(run)
                    admission.close_turn(run.ctx)  # a turn cut short is answered: the history stays valid
            end = result_of(run, kept)
            return end
        finally:
            if run.started_at is not None:  # a run that was refused said nothing
                self._conversations.keep(run.ctx.conversation_id, run.run_id, recall.conversation(run.ctx))
                if not run.ended:
                    await self._let_go(run)
            self._live.ended(run.run_id, end or Suspended(run.run_id, "interrupted"))

    async def _let_go(self, run: LoopRun) -> None:
        """Leave a run to whoever resumes it."""
        await self._driver.release(run)
        self._retire(run.run_id)

    async def _resume_here(self, run: LoopRun, limits: Limits | None, by: str) -> Result:
        if run.held is None or limits is not None:
            raise Held(run.run_id, "this process: it is under way here")
        self._control.go_on(run.run_id, by)
        end: Result = await asyncio.shield(self._live.end_of(run.run_id))
        return end

    def run_sync(self, prompt: Prompt, **options: Any) -> Result:
        """Run from code without an event loop; options as for `run`. Raises ConfigError inside a running loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(prompt, **options))
        raise ConfigError("run_sync was called inside a running event loop; use `await agent.run(...)` there")

    # ---- people ----

    def cancel(
        self, run_id: str, *, reason: str = "caller", by: str = "caller", why: str = ""
    ) -> Awaitable[None]:
        """Ask a run to stop: it starts nothing more and ends as `cancelled`.

        A run that lives here has heard of it when this returns. For one of another process, await this: the request
        is in the journal then. `reason` is `caller` or `shutdown` (the process goes down). Raises RunUnknown, and
        ConfigError for another reason.
        """
        return self._control.stop(run_id, reason, by, why)

    def pause(self, run_id: str, *, by: str = "", why: str = "") -> Awaitable[None]:
        """Ask a run to park before its next step, after what is in flight; `resume` lets it go on. As `cancel`."""
        return self._control.hold(run_id, by, why)

    def approve(
        self,
        run_id: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        arguments: str | None = None,
        by: str = "",
        why: str = "",
    ) -> Awaitable[None]:
        """Let a call run that waits for a person; `arguments` (JSON text) replace the model's. As `cancel`.

        `call` is its key as in `pending`, needed where several wait; with `digest` the answer counts for exactly
        those arguments. Raises AnswerRefused where it would not count.
        """
        return self._control.answer(run_id, "approve", by, why, call=call, digest=digest, arguments=arguments)

    def reject(
        self,
        run_id: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        by: str = "",
        why: str = "",
        end: bool = False,
    ) -> Awaitable[None]:
        """Let a call not run: the model reads that, and why. With `end` the run ends as `rejected`. As `approve`."""
        return self._control.answer(run_id, "reject", by, why, call=call, digest=digest, end=end or None)

    def respond(
        self,
        run_id: str,
        content: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        by: str = "",
        why: str = "",
    ) -> Awaitable[None]:
        """Answer a call in place of its tool: the model reads `content` as its result. As `approve`."""
        return self._control.answer(run_id, "respond", by, why, call=call, digest=digest, content=content)

    async def pending(self, run_id: str) -> list[Question]:
        """Return what people are asked about a run, here or in another process. Raises RunUnknown."""
        return await self._control.pending(run_id)

    # ---- inside ----

    async def _run(  # noqa: PLR0917 - the arguments of `run`
        self,
        prompt: Prompt,
        run_id: str,
        conversation_id: str | None,
        limits: Limits | None,
        deadline: float | None,
        follower: Follower | None = None,
    ) -> Result:
        """Begin a run and drive it to its end."""
        history = await self._history(conversation_id)
        run = self._new(prompt, history, run_id, conversation_id, limits or self._limits)
        run.follower = follower
        if deadline is not None:
            run.ctx.deadline = max(0.0, deadline)
            if deadline <= 0:
                run.stop(DeadlineExceeded(0.0))
        self._set_end(run, self._deps.clock.monotonic())
        return await self._carry(run)

    def _set_end(self, run: LoopRun, began: float) -> None:
        """Set the time (monotonic) by which the run must have ended, from when it began."""
        seconds = [limit for limit in (run.ctx.limits.max_seconds, run.ctx.deadline) if limit]
        run.expires_at = began + min(seconds) if seconds else None

    def _refuse_real_models(self) -> None:
        llm = self._deps.llm
        if real_models_refused() and getattr(llm, "double", False) is not True:
            raise ConfigError(
                f"real model calls are switched off, and {type(llm).__name__} is no test double"
            )

    def _new(
        self,
        prompt: Prompt,
        history: Sequence[Message],
        run_id: str,
        conversation_id: str | None,
        limits: Limits,
    ) -> LoopRun:
        self._refuse_real_models()
        messages = opening(prompt, history, self._instructions)
        ctx = LoopContext(messages, limits, len(messages), conversation_id=conversation_id)
        ctx.context.limit = self._context_limit(limits)
        return Run(self._machine, run_id, ctx, self._deps)

    def _context_limit(self, limits: Limits) -> int:
        return limits.context_limit or int(getattr(self._deps.llm, "context_window", 0) or 0)

    async def _history(self, conversation_id: str | None) -> Sequence[Message]:
        """Return what was said in a conversation, by whichever process. Raises ConfigError while a run is under way."""
        if conversation_id is None:
            return ()
        newest = await self._journal.newest(conversation_id)
        if newest is not None and newest.owner is not None:
            raise ConfigError(
                f"conversation {conversation_id!r} has a run under way ({newest.run_id}); wait for its end"
            )
        known = self._conversations.history(conversation_id, None if newest is None else newest.run_id)
        if known is not None or newest is None:
            return known or ()
        stored, _ = await self._recovery.read(newest.run_id)
        return history_of(stored, self._codec)

    def _wired(self, *watching: Observer, owner: str | None = None) -> tuple[Driver, Recovery]:
        """Return the driver and the recovery of this agent's runs, in its journal."""
        compose.declare(self._observers, self._machine, self._deps, self._journal, self._limits)
        driver = Driver(
            self._machine,
            observers=(self._live, *watching, *self._observers),
            journal=self._journal,
            owner=owner,
            clock=self._deps.clock,
            ending=ending,
            summary=summary,
            codec=self._codec,
        )
        graph, moves, now = self._machine.graph, self._migrations, self._deps.clock.time
        return driver, Recovery(self._journal, graph, self._codec, driver.owner, moves, now=now)


def _new_id() -> str:
    return secrets.token_hex(16)
