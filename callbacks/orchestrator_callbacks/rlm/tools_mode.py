"""Tools mode: its event source, which calls the model and runs its tool calls, and its hooks.

Each hook gets the event that leaves its state from the run's event source. Tools run as in the LLM loop: concurrently
within a turn; an error or an unknown name becomes a result for the model, unless `@tool(errors=…)` ends the run by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from orchestrator.errors import LimitReached
from orchestrator.llm.message import Message, ToolCall
from orchestrator.llm.port import LLM
from orchestrator.machines.rlm.model import LLMResponseReceived, MaxIterationsReached, PolicyStop
from orchestrator.machines.rlm.policy import ContextCompressor, StoppingPolicy
from orchestrator.machines.rlm.tools_mode import (
    NoToolCalls,
    ToolCallsFound,
    ToolsExecuted,
    ToolsModeContext,
    ToolsModeEvent,
    ToolsModeState,
)
from orchestrator.tools.result import ToolResult
from orchestrator.tools.spec import ToolContext, ToolSpec
from orchestrator.tools.tool_error import raise_tool_error
from orchestrator.tools.tool_set import Around, Before, ToolSet
from orchestrator_callbacks.llm_loop.admission import cut_off
from orchestrator_callbacks.rlm import conversation
from orchestrator_callbacks.rlm.conversation import (
    BlockingSource,
    Conversation,
    at_last_turn,
    incomplete_of,
    text_of,
)
from orchestrator_callbacks.rlm.model_call import ModeRun, next_event


def _context(call: ToolCall, position: int) -> ToolContext:
    return ToolContext("", f"{call.id}:{position}")


class ToolsModeSource:
    """Event source for the machine of tools mode: `await source(state, context)`.

    Args:
        llm: The model. It belongs to the caller.
        tools: The tools of the model.
        stopping: Decides after each turn whether another one follows.
        compressor: Shortens the history for the model.
        params: Parameters of the model requests.
        instructions: Replaces the instructions about tools mode.
        context_for: Makes the ToolContext of a call.
        before: May return the result of a call in place of its tool.
        on_result: Called with each result.

    Example:
        with ToolsModeSource(llm, [search]).blocking() as source:
            machine.run(ToolsModeState.INIT, ToolsModeContext(prompt="Find it."), source)
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
        around: Around | None = None,
        on_result: Callable[[ToolResult], None] = lambda _: None,
    ) -> None:
        self._tools = tools if isinstance(tools, ToolSet) else ToolSet(tools)
        self._instructions = conversation.TOOLS if instructions is None else instructions
        self._context_for = context_for
        self._before, self._around = before, around
        self._on_result = on_result
        offers = self._tools.offers
        self._conversation = Conversation(
            llm, "tools", stopping=stopping, compressor=compressor, params=params, tools=offers
        )

    async def __call__(self, state: ToolsModeState, ctx: ToolsModeContext) -> ToolsModeEvent | None:
        """Return the event that leaves a state; None in DONE."""
        match state:
            case ToolsModeState.INIT:
                conversation.begin(ctx, self._instructions)
                response = await self._conversation.ask(ctx)
                return LLMResponseReceived(text_of(response), response.tool_calls, incomplete_of(response))
            case ToolsModeState.PROMPTING:
                return await self._read(ctx)
            case ToolsModeState.EXECUTING_TOOLS:
                # Run the calls, and call the model with the results.
                results = [result.message() for result in await self._run(ctx)]
                await self._conversation.complete_turn(ctx, "\n".join(result.text for result in results))
                if await self._conversation.should_stop(
                    ctx
                ):  # before the limit check, which calls the model once more
                    return PolicyStop()
                if at_last_turn(ctx):
                    return await self._ask_last(ctx, results)
                notice = [Message("user", ctx.notice)] if ctx.notice else []
                response = await self._conversation.ask(ctx, [*results, *notice])
                said = text_of(response), response.tool_calls, incomplete_of(response)
                return ToolsExecuted((*results, *notice), *said)
            case _:
                return None

    def blocking(self) -> BlockingSource[ToolsModeState, ToolsModeEvent, ToolsModeContext]:
        """Return a synchronous source for `machine.run`. Close it, or use it as a context manager."""
        return BlockingSource(self)

    async def _read(self, ctx: ToolsModeContext) -> ToolsModeEvent:
        """Distinguish calls from an answer, after the policy was checked."""
        if await self._conversation.should_stop(ctx):
            return PolicyStop()
        return ToolCallsFound(ctx.calls) if ctx.calls else NoToolCalls(ctx.last_response or "")

    async def _run(self, ctx: ToolsModeContext) -> list[ToolResult]:
        async def finished(result: ToolResult) -> None:
            self._on_result(result)

        done: list[ToolResult | None] = [
            cut_off(ctx.calls, position, self._tools.find(call.name), ctx.incomplete)
            for position, call in enumerate(ctx.calls)
        ]
        for result in filter(None, done):
            self._on_result(result)
        most = ctx.limits.max_concurrent_tools
        results = await self._tools.execute_all(
            ctx.calls,
            self._context_for,
            max_concurrent=most,
            before=self._before,
            after=finished,
            done=done,
            around=self._around,
        )
        raise_tool_error(results, self._tools.find)
        return results

    async def _ask_last(self, ctx: ToolsModeContext, results: list[Message]) -> MaxIterationsReached:
        """Request the final answer without tools. Returns no answer if a budget refuses the request."""
        try:
            response = await self._conversation.ask(
                ctx, [*results, Message("user", conversation.LIMIT)], tool_choice="none"
            )
        except LimitReached:
            return MaxIterationsReached()
        return MaxIterationsReached(text_of(response) or None)


# ---- hooks ----


async def enter_init(run: ModeRun) -> Any:
    """Call the model with the tools."""
    return await next_event(run)


async def enter_prompting(run: ModeRun) -> Any:
    """Check the model's reply for calls."""
    return await next_event(run)


async def enter_executing_tools(run: ModeRun) -> Any:
    """Run the calls, and call the model with the results."""
    return await next_event(run)
