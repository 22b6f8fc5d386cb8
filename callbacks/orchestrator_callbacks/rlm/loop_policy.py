"""The policies of the modes for the LLM loop, as hooks for an Agent."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.llm.message import INCOMPLETE, Message, Request, ToolCall
from orchestrator.machines.rlm.policy import ContextCompressor, NestedCallPolicy, StoppingPolicy, estimate
from orchestrator.tools.result import ToolResult
from orchestrator_callbacks.llm_loop import turn
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_callbacks.llm_loop.request_usage import usage_with_cost
from orchestrator_callbacks.rlm.conversation import settled
from orchestrator_guards import Verdict

_RUNS = 10_000
"""Runs whose policies are remembered; the least recently used one is dropped."""


class PolicyHooks:
    """Apply policies of the modes to the LLM loop.

    Args:
        stopping: Called after each turn with tools. A run that it stops ends as failed (policy_stop), as with every
            guard of a host.
        compressor: Shortens the messages for the model if they exceed `history_tokens`; the history does not change.
        history_tokens: Estimated tokens above which the compressor is called.
        nested: Called for each call of the tools named in `agents`. If it returns False, this run's model is called
            once instead of the agent.
        agents: Names of tools that are agents.

    Raises:
        ConfigError: `compressor` is given without `history_tokens`, or `nested` without `agents`, or vice versa.

    Example:
        Agent(llm, hooks=[PolicyHooks(stopping=StopAfter(repeats=3))])
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
            raise ConfigError("compressor and history_tokens must be given together")
        if (nested is None) is bool(agents):
            raise ConfigError("nested and agents, the names of its tools, must be given together")
        self._stopping = stopping
        self._compressor = compressor
        self._history_tokens = history_tokens
        self._nested = nested
        self._agents = frozenset(agents)
        self._shared: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def before_llm_request(self, _run: LoopRun, request: Request) -> Request | None:
        """Shorten the messages for the model."""
        if self._compressor is None or estimate(request.messages) <= self._history_tokens:
            return None
        kept = await settled(self._compressor.compress(request.messages, limit=self._history_tokens))
        return None if kept is request.messages else replace(request, messages=tuple(kept))

    async def leave_process_tools(self, run: LoopRun) -> None:
        """Complete a turn for the policy, and check whether it stops the run."""
        if self._stopping is None:
            return
        ctx, told = run.ctx, self._policy_view(run)
        told["last_result"] = "\n".join(result.content for result in ctx.results if result is not None)
        await settled(self._stopping.on_iteration_complete(told))
        if ctx.verdict is None and await settled(self._stopping.should_stop(told)):
            why = "a policy of the host stopped the run"
            ctx.verdict = Verdict(
                ok=False, guard="stopping_policy", observed=ctx.iteration, limit=ctx.iteration, detail=why
            )

    async def before_tool_execution(self, run: LoopRun, call: ToolCall) -> ToolResult | None:
        """Call the model once instead of an agent if the policy decides so."""
        task = self._task(call)
        if self._nested is None or task is None:
            return None
        depth = 1 if run.parent_run_id is None else 2
        if await settled(self._nested.should_orchestrate(task, depth)):
            return None
        response = await turn.ask(run, Request((Message("user", task),), params=run.deps.params))
        run.ctx.spent.usage = run.ctx.spent.usage + usage_with_cost(run, response)
        text = response.message().text
        if (reason := INCOMPLETE.get(response.finish)) is not None:  # an agent says the same of a partial run
            why = f"the answer is incomplete ({reason}); it said: {text or response.refusal or 'nothing'}"
            return ToolResult.failure(call, 0, "error", why, "RunPartial")
        return ToolResult(call, 0, text)

    def _task(self, call: ToolCall) -> str | None:
        if call.name not in self._agents:
            return None
        try:
            task = json.loads(call.arguments).get("task")
        except (ValueError, AttributeError):
            return None  # the tool reports the fault in its arguments
        return task if isinstance(task, str) else None

    def _policy_view(self, run: LoopRun) -> dict[str, Any]:
        """Update the policy's mapping, one for the whole run."""
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
