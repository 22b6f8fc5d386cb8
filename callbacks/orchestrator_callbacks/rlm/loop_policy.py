"""The policies of the modes for the LLM loop: hooks that a host gives an Orchestrator."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Message, Request, ToolCall
from orchestrator.machines.rlm.policy import ContextCompressor, NestedCallPolicy, StoppingPolicy, estimate
from orchestrator.tools.result import ToolResult
from orchestrator_callbacks.llm_loop import turn
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_callbacks.llm_loop.request_usage import priced
from orchestrator_callbacks.rlm.conversation import settled
from orchestrator_guards import Verdict

_RUNS = 10_000
"""Runs whose policies are remembered; the one unused for longest is forgotten."""


class PolicyHooks:
    """`Orchestrator(hooks=[PolicyHooks(stopping=..., compressor=..., nested=...)])`.

    `stopping` is asked after each turn with tools; a run that it stops ends as failed (policy_stop), as by every guard
    of a host's own. `compressor` shortens what the model is shown where that is more than `history_tokens`; the history
    stays whole. `nested` is asked about each call of the tools named in `agents`, which are agents of their own: where
    it says no, the model of this run is asked once instead.
    """

    def __init__(
        self,
        *,
        stopping: StoppingPolicy | None = None,
        compressor: ContextCompressor | None = None,
        history_tokens: int = 0,
        nested: NestedCallPolicy | None = None,
        agents: Collection[str] = (),
    ) -> None:
        if (compressor is None) is bool(history_tokens):
            raise ConfigError("a compressor and history_tokens, above which it is asked, go together")
        if (nested is None) is bool(agents):
            raise ConfigError(
                "a policy for sub-calls and agents, the names of the tools it is for, go together"
            )
        self._stopping = stopping
        self._compressor = compressor
        self._history_tokens = history_tokens
        self._nested = nested
        self._agents = frozenset(agents)
        self._shared: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def before_llm_request(self, _run: LoopRun, request: Request) -> Request | None:
        """Shorten what the model is shown."""
        if self._compressor is None or estimate(request.messages) <= self._history_tokens:
            return None
        kept = await settled(self._compressor.compress(request.messages, limit=self._history_tokens))
        return None if kept is request.messages else replace(request, messages=tuple(kept))

    async def leave_process_tools(self, run: LoopRun) -> None:
        """Close a turn for the policy, and ask it whether there is another one."""
        if self._stopping is None:
            return
        ctx, told = run.ctx, self._told(run)
        told["last_result"] = "\n".join(result.content for result in ctx.results if result is not None)
        await settled(self._stopping.on_iteration_complete(told))
        if ctx.verdict is None and await settled(self._stopping.should_stop(told)):
            why = "a policy of the host stopped the run"
            ctx.verdict = Verdict(
                ok=False, guard="stopping_policy", observed=ctx.iteration, limit=ctx.iteration, detail=why
            )

    async def before_tool_execution(self, run: LoopRun, call: ToolCall) -> ToolResult | None:
        """Ask the model once in place of an agent, where the policy says so."""
        task = self._task(call)
        if self._nested is None or task is None:
            return None
        depth = 1 if run.parent_run_id is None else 2
        if await settled(self._nested.should_orchestrate(task, depth)):
            return None
        response = await turn.ask(run, Request((Message("user", task),), params=run.deps.params))
        run.ctx.spent.usage = run.ctx.spent.usage + priced(run, response)
        return ToolResult(call, 0, response.message().text)

    def _task(self, call: ToolCall) -> str | None:
        if call.name not in self._agents:
            return None
        try:
            task = json.loads(call.arguments).get("task")
        except (ValueError, AttributeError):
            return None  # the tool says what is wrong with its arguments
        return task if isinstance(task, str) else None

    def _told(self, run: LoopRun) -> dict[str, Any]:
        """Bring up to date what the policy is told: one mapping for the whole run."""
        told = self._shared.setdefault(run.run_id, {})
        self._shared.move_to_end(run.run_id)
        if len(self._shared) > _RUNS:
            self._shared.popitem(last=False)
        told.update(
            iteration=run.ctx.iteration,
            max_iterations=run.ctx.limits.max_iterations,
            agent_mode="llm_loop",
            depth=0 if run.parent_run_id is None else 1,
            history=[message.to_openai() for message in run.ctx.messages],
        )
        return told
