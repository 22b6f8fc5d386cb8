"""The loop a good engineer writes by hand in an afternoon: the yardstick. No log, no metric, no guard but a cap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from orchestrator.llm.message import Message, Request, ToolCall
from orchestrator.llm.port import LLM

Tool = Callable[..., Awaitable[Any]]


async def hand_loop(
    llm: LLM, tools: Mapping[str, Tool], offers: tuple[Any, ...], prompt: str, max_iterations: int
) -> list[Message]:
    """Ask, run the tools, ask again, until the model answers without a call."""
    messages = [Message("user", prompt)]
    for _ in range(max_iterations):
        response = await llm.complete(Request(messages, offers))
        messages.append(response.message())
        calls = response.tool_calls
        if not calls:
            return messages
        if len(calls) == 1:
            messages.append(await run_tool(tools, calls[0]))
        else:
            messages += await asyncio.gather(*(run_tool(tools, call) for call in calls))
    raise RuntimeError("max iterations without final response")


async def run_tool(tools: Mapping[str, Tool], call: ToolCall) -> Message:
    try:
        result = await tools[call.name](**json.loads(call.arguments or "{}"))
        content = result if isinstance(result, str) else json.dumps(result)
    except Exception as error:  # noqa: BLE001 - the model reads it
        content = json.dumps({"error": str(error)})
    return Message("tool", content, (), call.id, call.name)
