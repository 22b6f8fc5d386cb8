"""LlamaIndex Workflows: the steps of its own function-calling agent, the conversation in the context's store.

Its example runs the calls of a turn one after the other; here they run at once, as everybody's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from workflows import Context, Workflow, step  # type: ignore[import-not-found, unused-ignore]
from workflows.events import Event, StartEvent, StopEvent  # type: ignore[import-not-found, unused-ignore]

from tests.benchmarks import child
from tests.benchmarks.script import ANSWER, PROMPT, TOOL, Script


class InputEvent(Event):  # type: ignore[misc, unused-ignore]
    """The conversation is ready for the model."""


class ToolCallEvent(Event):  # type: ignore[misc, unused-ignore]
    """The model calls tools."""

    tool_calls: list[dict[str, Any]]


class FunctionCallingAgent(Workflow):  # type: ignore[misc, unused-ignore]
    """Three steps."""

    def __init__(self, script: Script) -> None:
        super().__init__(timeout=None)
        self._script = script

    @step  # type: ignore[untyped-decorator, unused-ignore]
    async def prepare_chat_history(self, ctx: Context, ev: StartEvent) -> InputEvent:
        """Begin the conversation."""
        await ctx.store.set("messages", [{"role": "user", "content": ev.input}])
        return InputEvent()

    @step  # type: ignore[untyped-decorator, unused-ignore]
    async def handle_llm_input(self, ctx: Context, ev: InputEvent) -> ToolCallEvent | StopEvent:
        """Ask the model."""
        messages = await ctx.store.get("messages")
        calls = await self._script.calls(len(messages) // (1 + self._script.tools))
        named = [{"id": call.id, "name": TOOL, "arguments": call.arguments} for call in calls]
        messages.append({"role": "assistant", "content": None if calls else ANSWER, "tool_calls": named})
        await ctx.store.set("messages", messages)
        return ToolCallEvent(tool_calls=named) if named else StopEvent(result=ANSWER)

    @step  # type: ignore[untyped-decorator, unused-ignore]
    async def handle_tool_calls(self, ctx: Context, ev: ToolCallEvent) -> InputEvent:
        """Run the tools at once."""
        messages = await ctx.store.get("messages")
        messages.extend(await asyncio.gather(*map(self._look_up, ev.tool_calls)))
        await ctx.store.set("messages", messages)
        return InputEvent()

    async def _look_up(self, call: dict[str, Any]) -> dict[str, Any]:
        content = self._script.look_up(**call["arguments"])
        return {"role": "tool", "tool_call_id": call["id"], "content": content}


class Workflows:
    """One workflow."""

    def __init__(self, script: Script) -> None:
        self._workflow = FunctionCallingAgent(script)

    async def run(self, name: str) -> str:
        """Run a conversation to its end."""
        del name
        return str(await self._workflow.run(input=PROMPT))


if __name__ == "__main__":
    why = "it has no store without a server: a context is serialised and kept by its user"
    child.serve(child.Side(("llama-index-workflows", "pydantic"), Workflows, storeless=why))
