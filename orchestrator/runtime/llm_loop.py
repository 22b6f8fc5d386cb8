"""The LLM loop put together: table, guards, hooks and handles meet here. `Orchestrator` is the door to it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from orchestrator.completion import OutputSpec
from orchestrator.errors import ConfigError, DeadlineExceeded
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.journal import JournalWriter
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.kernel.record import Observer, Transition
from orchestrator.kernel.run import Run
from orchestrator.machines.llm_loop.ending import ending, refusal
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.ports import LLM, Clock, Memory, Price, SystemClock
from orchestrator.retry import RetryPolicy
from orchestrator.runtime.conversation import Conversations, LiveRuns, Prompt, opening
from orchestrator.runtime.result import Result
from orchestrator.runtime.summary import summary
from orchestrator.scope import scope
from orchestrator.switch import real_models_refused
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator.toolset import ToolSet
from orchestrator.toolspec import ToolSpec
from orchestrator_callbacks.llm_loop import admission, after, before, enter, leave, recall
from orchestrator_callbacks.llm_loop.deps import POINTS, LoopDeps, LoopRun, Tools, split


class Orchestrator:
    """Runs the LLM loop: one agent, any number of runs, also at once.

    `journal=None` keeps records in memory. `observers=None` is `TransitionLog()` and `Metrics()` on the default
    registry; `()` is silent. `hooks` are modules or objects with `enter_/leave_/before_/after_` functions, run after
    ours, and with the five middleware points. `output_type` is a pydantic model, a type, or a JSON schema; `str`,
    like None, is free text. Raises ConfigError or GraphError when this cannot work; nothing is started here.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        tools: Iterable[ToolSpec | Callable[..., Any]] | Tools = (),
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        journal: JournalWriter | None = None,
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
    ) -> None:
        self._limits = limits or Limits()
        self._instructions = instructions
        bound, points = split(collect(graph, enter, leave, before, after, extra=tuple(hooks), points=POINTS))
        self._machine = Machine(graph, bound)
        self._deps = LoopDeps(
            llm=llm,
            tools=_tools(tools, clock or SystemClock()),
            retry=retry or RetryPolicy(),
            clock=clock or SystemClock(),
            model=_model_name(llm),
            memory=memory,
            output=_output_spec(output_type),
            price=price,
            points=points,
            params=dict(params or {}),
            host=deps,
        )
        self._observers = (TransitionLog(), Metrics()) if observers is None else tuple(observers)
        self._live = LiveRuns()
        self._conversations = Conversations()
        self._driver, self._forget = self._wired(journal)

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

        `deadline` is in seconds from now and comes on top of `limits`; 0 has passed already. Raises RunExists for a
        known run_id and ConfigError for a prompt that is none or a conversation with a run under way; how the run
        itself ends is `result.outcome`. A cancelled caller gets its CancelledError; the run is then left where it was.
        """
        run = self._new(prompt, run_id or _new_id(), conversation_id, limits or self._limits)
        self._set_deadline(run, deadline)
        self._live.open(run)
        try:
            with scope(run.ctx.limits, self._logger(run)):
                await self._driver.drive(run)
        finally:
            path = self._live.close(run)
            admission.close_turn(run.ctx)  # an interrupted turn is answered, so that the history stays valid
            if run.started_at is not None:  # a run that was refused said nothing
                self._conversations.keep(conversation_id, recall.conversation(run.ctx))
                if not run.ended:
                    self._forget(run.run_id)
        return _result(run, path)

    def run_sync(self, prompt: Prompt, **options: Any) -> Result:
        """Run from code without an event loop; options as for `run`. Raises ConfigError inside a running loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(prompt, **options))
        raise ConfigError("run_sync was called inside a running event loop; use `await agent.run(...)` there")

    def cancel(self, run_id: str, *, reason: str = "caller", why: str = "") -> None:
        """Ask a live run to stop: it starts nothing more and ends as `cancelled`.

        `reason` is `caller` or `shutdown` (the process goes down). Raises RunUnknown, and ConfigError for another
        reason.
        """
        if reason not in REASONS[Outcome.CANCELLED]:
            raise ConfigError(
                f"unknown reason {reason!r}; known: {', '.join(sorted(REASONS[Outcome.CANCELLED]))}"
            )
        self._live.get(run_id).cancel(reason, why)

    def _set_deadline(self, run: LoopRun, deadline: float | None) -> None:
        if deadline is not None and deadline <= 0:
            run.stop(DeadlineExceeded(0.0))
        seconds = [limit for limit in (run.ctx.limits.max_seconds, deadline) if limit]
        run.expires_at = self._deps.clock.monotonic() + min(seconds) if seconds else None

    def _new(self, prompt: Prompt, run_id: str, conversation_id: str | None, limits: Limits) -> LoopRun:
        llm = self._deps.llm
        if real_models_refused() and not getattr(type(llm), "double", False):
            raise ConfigError(
                f"real model calls are switched off, and {type(llm).__name__} is no test double"
            )
        history = self._conversations.history(conversation_id)
        messages = opening(prompt, history, self._instructions)
        ctx = LoopContext(messages, limits, len(messages), conversation_id=conversation_id)
        ctx.context.limit = limits.context_limit or int(getattr(llm, "context_window", 0) or 0)
        return Run(self._machine, run_id, ctx, self._deps)

    def _wired(self, journal: JournalWriter | None) -> tuple[Driver, Callable[[str], object]]:
        """Return the driver, and what to do with the records of a run that was left before its end.

        A journal of the host's keeps them. Nobody else can reach those of our own, and nobody would free them.
        """
        own = MemoryJournal()
        store = own if journal is None else journal
        self._declare(store.backend)
        driver = Driver(
            self._machine,
            observers=(self._live, *self._observers),
            journal=store,
            clock=self._deps.clock,
            ending=ending,
            summary=summary,
        )
        return driver, own.forget

    def _declare(self, backend: str) -> None:
        """Tell observers what names will come, so that every series exists at 0 before the first run."""
        for observer in self._observers:
            declare = getattr(observer, "declare", None)
            if declare is not None:
                declare(
                    self._machine.graph,
                    tools=[spec.name for spec in self._deps.tools.offers],
                    model=self._deps.model,
                    provider=str(getattr(self._deps.llm, "provider", "_unknown")),
                    backends=[backend],
                )

    def _logger(self, run: LoopRun) -> Any:
        for observer in self._observers:
            if isinstance(observer, TransitionLog):
                return observer.bound(run.run_id, run.graph.name)
        return None


def _tools(tools: Iterable[ToolSpec | Callable[..., Any]] | Tools, clock: Clock) -> Tools:
    return ToolSet(tools, clock=clock) if isinstance(tools, Iterable) else tools


def _model_name(llm: LLM) -> str:
    if not callable(getattr(llm, "complete", None)):
        raise ConfigError(f"llm must have `async complete(request)`; {type(llm).__name__} has not")
    return str(getattr(llm, "model", None) or "unknown")


def _output_spec(output_type: object) -> OutputSpec | None:
    return None if output_type is None or output_type is str else OutputSpec.of(output_type)


def _new_id() -> str:
    return secrets.token_hex(16)


def _result(run: LoopRun, path: tuple[Transition, ...]) -> Result:
    ctx, end = run.ctx, ending(run)
    ended_well = end.outcome in (Outcome.COMPLETED, Outcome.PARTIAL)
    said = next(
        (m.text for m in reversed(ctx.messages[ctx.base :]) if m.role == "assistant" and m.text), None
    )
    return Result(
        run_id=run.run_id,
        outcome=end.outcome,
        reason=end.reason,
        output=ctx.output if ended_well else said,
        messages=tuple(recall.conversation(ctx)),
        usage=ctx.spent.usage,
        transitions=path,
        verdict=refusal(run) if ctx.verdict is None else ctx.verdict,
        error=run.error,
    )
