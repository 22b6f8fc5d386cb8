"""The work of `Agent` behind its public methods: what RunService calls, and how a run is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic

from orchestrator.errors import ConfigError
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.outcome import Ending
from orchestrator.kernel.record import Follower, Transition
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.ending import ending
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.providers.model_guard import refuse_real
from orchestrator.runtime.llm_loop import agent_tool as subagent
from orchestrator.runtime.llm_loop import child_usage
from orchestrator.runtime.llm_loop import composition as compose
from orchestrator.runtime.llm_loop import run_options as per_run
from orchestrator.runtime.llm_loop.agent_arguments import OutputT
from orchestrator.runtime.llm_loop.codec import history_of, restored
from orchestrator.runtime.llm_loop.conversation import Conversations, Prompt, opening
from orchestrator.runtime.llm_loop.result import ANSWERED, Result, result_of
from orchestrator.runtime.llm_loop.summary import summary
from orchestrator.runtime.service import argument_check as arguments
from orchestrator.runtime.service.hosting import LoopHosting
from orchestrator.runtime.service.human_input import HumanInput
from orchestrator.runtime.service.run_data import OPTIONS, new_id
from orchestrator_callbacks.llm_loop import admission
from orchestrator_callbacks.llm_loop import memory as memory_hooks
from orchestrator_callbacks.llm_loop.admission import refuse_unknown_tools
from orchestrator_callbacks.llm_loop.deps import LoopDeps, LoopRun, open_account
from orchestrator_callbacks.llm_loop.request_usage import lost, refuse_unpriced


class LoopService(HumanInput[Result[OutputT]], Generic[OutputT]):
    """Runs of the LLM loop, from their start or from the journal. Base of `Agent`, which sets its members."""

    _deps: LoopDeps
    _source: per_run.DepsSource
    _conversations: Conversations
    _instructions: str | per_run.RunFunction | None
    _launch: Mapping[str, Any] | None
    _declared: set[object]
    _members: dict[object, LoopService]
    hosting: LoopHosting

    # ---- called by RunService ----

    def _declare(self) -> None:
        names = (
            self._machine.graph.fingerprint,
            self._deps.model,
            *(spec.name for spec in self._deps.tools.offers),
        )
        if names not in self._declared:  # variants share this set
            self._declared.add(names)
            deps, journal, limits = self._deps, self._journal, self._limits
            compose.declare(self._observers, self._machine, deps, journal, limits, self.identity.name)

    def _ending(self, run: LoopRun) -> Ending:
        return ending(run)

    def _summary(self, run: LoopRun) -> Mapping[str, Any]:
        return summary(run)

    def _result(self, run: LoopRun, path: Iterable[Transition], end: Ending) -> Result[OutputT]:
        return result_of(run, path, end)

    def _with_recorded_output(self, result: Result[OutputT], ended: Mapping[str, Any]) -> Result[OutputT]:
        if self._deps.output is None and "output" in ended and result.outcome in ANSWERED:
            return replace(result, output=ended["output"])
        return result

    def _restore(self, stored: StoredRun, records: Iterable[Record]) -> LoopRun:  # noqa: ARG002 - `stored` has all
        handles = per_run.run_deps(self._deps, stored.created.get(OPTIONS) or {})
        return restored(stored, self._machine, handles, self._codec)

    def _lacks_deps(self, stored: StoredRun) -> bool:
        return self._source.lacks(stored)

    def _check_model(self, limits: Limits | None) -> None:
        refuse_real(self._deps.llm)
        if limits is not None:
            refuse_unpriced(limits, subagent.prices(self))
            refuse_unknown_tools(limits, self._deps.tools)

    async def _check_resume(self, head: RunHead, *, again: bool) -> None:  # noqa: ARG002 - the ledger has everything
        root = await subagent.open_root(self._journal, head)
        if root not in (None, head.run_id):
            raise ConfigError(
                f"run {head.run_id!r} is part of run {root!r}, which resumes it; resume that run"
            )

    async def _update(
        self, run: LoopRun, stored: StoredRun, records: Sequence[Record], limits: Limits | None
    ) -> None:
        """Make its deps, count the usage of its child runs, set other limits, and charge a lost answer."""
        await self._source.restore(run)
        below = await child_usage.recount(self, run, stored)
        if below:
            open_account(run, dormant=below)
        await super()._update(run, stored, records, limits)
        if limits is not None:
            run.ctx.context.limit = self._context_limit(limits)
        if child_usage.asks(run, stored):
            run.ctx.spent.usage = run.ctx.spent.usage + lost(run)

    async def _drive(self, run: LoopRun, path: Iterable[Transition]) -> Result[OutputT]:
        if run.parent_run_id is not None:  # otherwise `_check_resume` has refused: its parent run has ended
            why = f"run {run.parent_run_id!r} above it has ended"
            run.mailbox.post(Signal(kind="cancel", id=new_id(), by="caller", why=why))
        return await super()._drive(run, path)

    def _out_of_hand(self, run: LoopRun) -> None:
        admission.close_turn(run.ctx)  # an interrupted turn is answered, so the history stays valid

    def _over(self, run: LoopRun) -> None:
        self._conversations.keep(run.ctx.conversation_id, run.run_id, memory_hooks.conversation(run.ctx))

    def _check_run(
        self,
        run_id: object,
        conversation_id: object,
        limits: object,
        deadline: object,
        /,
        **options: Any,
    ) -> per_run.RunSettings:
        arguments.check_run(run_id, conversation_id, limits, deadline)
        if isinstance(limits, Limits):
            refuse_unknown_tools(limits, self._deps.tools)
        return per_run.run_options(self._deps, **options) if options else per_run.NO_OPTIONS

    async def _begin(  # noqa: PLR0917 - the arguments of a new run
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
        history = await self._conversations.before(conversation_id, self._journal, self._said_in)
        run = await self._new(prompt, history, run_id, conversation_id, limits, settings)
        run.follow(follower)
        self._limit_time(run, deadline)
        return await self._drive_run(run, park=self.parks)

    # ---- private ----

    def _make_hosting(self) -> LoopHosting:
        parts = self._journal, self._driver, self._deps, self._live, self._recovery, self._launch
        return LoopHosting(*parts, check=self._check_run, begin=self._begin)

    async def _said_in(self, run_id: str) -> Sequence[Message]:
        """Return the messages of a stored run up to its end or its last record."""
        stored, _ = await self._recovery.read(run_id)
        return history_of(stored, self._codec)

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
        self._check_model(None if limits is self._limits else limits)
        limits = limits or self._limits
        said = options.instructions or self._instructions
        factory = None if deposited and not callable(said) else self._source.factory
        deps, text = await per_run.prepare_run(self._deps, run_id, options, self._instructions, factory)
        messages = opening(prompt, history, text)
        ctx = LoopContext(messages, limits, len(messages), conversation_id=conversation_id)
        ctx.context.limit = self._context_limit(limits)
        return Run(self._machine, run_id, ctx, deps, data={**self._data, **options.data} or None)

    def _context_limit(self, limits: Limits) -> int:
        return limits.context_limit or int(getattr(self._deps.llm, "context_window", 0) or 0)
