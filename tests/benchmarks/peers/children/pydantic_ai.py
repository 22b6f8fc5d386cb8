"""pydantic-ai: an Agent with a plain tool, its model a FunctionModel that says the script.

The model gives its usage itself: FunctionModel would otherwise count the words of the whole conversation each time.
"""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, UsageLimits  # type: ignore[import-not-found, unused-ignore]
from pydantic_ai.messages import (  # type: ignore[import-not-found, unused-ignore]
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel  # type: ignore[import-not-found, unused-ignore]
from pydantic_ai.usage import RequestUsage  # type: ignore[import-not-found, unused-ignore]

from tests.benchmarks import child
from tests.benchmarks.script import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, PROMPT, TOOL, Script

_LIMITS = UsageLimits(request_limit=None)


class Agents:
    """One agent."""

    def __init__(self, script: Script) -> None:
        async def answer(messages: list[Any], info: AgentInfo) -> Any:
            """A turn is the model's message and one message with the results of all its tools."""
            calls = await script.calls(len(messages) // 2)
            parts = [ToolCallPart(TOOL, call.arguments, call.id) for call in calls] or [TextPart(ANSWER)]
            usage = RequestUsage(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)
            return ModelResponse(parts=parts, usage=usage)

        async def look_up(key: str, depth: int = 1) -> str:
            """Look something up."""
            return script.look_up(key, depth)

        self._agent = Agent(FunctionModel(answer), tools=[look_up])

    async def run(self, name: str) -> str:
        """Run a conversation to its end."""
        del name
        result = await self._agent.run(PROMPT, usage_limits=_LIMITS)
        return str(result.output)


if __name__ == "__main__":
    why = "it has no store: for durable runs it names engines of others"
    child.serve(child.Side(("pydantic-ai-slim", "pydantic"), Agents, storeless=why))
