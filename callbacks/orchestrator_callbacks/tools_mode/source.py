"""The event source of tools mode: asks the model, runs the tools that it calls. Seed 004 and systems.md 7.3.

Tools run as in the LLM loop: those of one turn at once, an error or an unknown name as a result that the model reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from orchestrator.errors import LimitReached
from orchestrator.llm.message import Message, ToolCall
from orchestrator.llm.port import LLM
from orchestrator.machines.rlm.model import LLMResponseReceived, MaxIterationsReached, PolicyStop
from orchestrator.machines.rlm.policy import ContextCompressor, StoppingPolicy
from orchestrator.machines.tools_mode.model import (
    NoToolCalls,
    ToolCallsFound,
    ToolsExecuted,
    ToolsModeContext,
    ToolsModeEvent,
    ToolsModeState,
)
from orchestrator.tools.result import ToolResult
from orchestrator.tools.spec import ToolContext, ToolSpec
from orchestrator.tools.tool_set import Before, ToolSet
from orchestrator_callbacks.rlm import prompt
from orchestrator_callbacks.rlm.blocking_source import BlockingSource
from orchestrator_callbacks.rlm.conversation import Conversation, at_last_turn, text_of


def _context(call: ToolCall, position: int) -> ToolContext:
    return ToolContext("", f"{call.id}:{position}")


class ToolsModeSource:
    """`await source(state, context)` for the machine of tools mode; `blocking()` is the same for its sync `run`.

    `context_for` makes the ToolContext of a call; `before` may answer one in place of its tool; `told` hears of each
    result. The rest is as for CodeModeSource.
    """

    def __init__(
        self,
        llm: LLM,
        tools: Iterable[ToolSpec | Callable[..., Any]] | ToolSet = (),
        *,
        stopping: StoppingPolicy | None = None,
        compressor: ContextCompressor | None = None,
        params: Mapping[str, Any] | None = None,
        instructions: str | None = None,
        context_for: Callable[[ToolCall, int], ToolContext] = _context,
        before: Before | None = None,
        told: Callable[[ToolResult], None] = lambda _: None,
    ) -> None:
        self._tools = tools if isinstance(tools, ToolSet) else ToolSet(tools)
        self._instructions = prompt.TOOLS if instructions is None else instructions
        self._context_for = context_for
        self._before = before
        self._hear = told
        offers = self._tools.offers
        self._talk = Conversation(
            llm, "tools", stopping=stopping, compressor=compressor, params=params, tools=offers
        )

    async def __call__(self, state: ToolsModeState, ctx: ToolsModeContext) -> ToolsModeEvent | None:
        """Return the event that leaves a state; None in DONE."""
        match state:
            case ToolsModeState.INIT:
                prompt.begin(ctx, self._instructions)
                response = await self._talk.ask(ctx)
                return LLMResponseReceived(text_of(response), response.tool_calls)
            case ToolsModeState.PROMPTING:
                return await self._read(ctx)
            case ToolsModeState.EXECUTING_TOOLS:
                return await self._execute(ctx)
            case _:
                return None

    def blocking(self) -> BlockingSource[ToolsModeState, ToolsModeEvent, ToolsModeContext]:
        """Return this source for `machine.run`; close it, or use it as a context manager."""
        return BlockingSource(self)

    async def _read(self, ctx: ToolsModeContext) -> ToolsModeEvent:
        """Tell calls from an answer; the policy is asked first."""
        if await self._talk.should_stop(ctx):
            return PolicyStop()
        return ToolCallsFound(ctx.calls) if ctx.calls else NoToolCalls(ctx.last_response or "")

    async def _execute(self, ctx: ToolsModeContext) -> ToolsModeEvent:
        """Run the calls, tell the model, and let it say what comes next."""
        results = [result.message() for result in await self._run(ctx)]
        await self._talk.complete_turn(ctx, "\n".join(result.text for result in results))
        if await self._talk.should_stop(ctx):  # before the limit, which asks once more (L6)
            return PolicyStop()
        if at_last_turn(ctx):
            return await self._ask_last(ctx, results)
        notice = [Message("user", ctx.notice)] if ctx.notice else []
        response = await self._talk.ask(ctx, [*results, *notice])
        return ToolsExecuted((*results, *notice), text_of(response), response.tool_calls)

    async def _run(self, ctx: ToolsModeContext) -> list[ToolResult]:
        async def finished(result: ToolResult) -> None:
            self._hear(result)

        most = ctx.limits.max_concurrent_tools
        return await self._tools.execute_all(
            ctx.calls, self._context_for, max_concurrent=most, before=self._before, after=finished
        )

    async def _ask_last(self, ctx: ToolsModeContext, results: list[Message]) -> MaxIterationsReached:
        """Ask for the answer, tools out of reach; no answer where a budget refuses (L8)."""
        try:
            response = await self._talk.ask(
                ctx, [*results, Message("user", prompt.LIMIT)], tool_choice="none"
            )
        except LimitReached:
            return MaxIterationsReached()
        return MaxIterationsReached(text_of(response) or None)
