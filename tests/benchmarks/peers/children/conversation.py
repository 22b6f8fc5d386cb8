"""What the two plain state machines run: the four states of a turn as a conversation, and the event that leaves each.

The state machine calls `on_enter_<state>` and the guards by name; a loop outside fires the next event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.script import ANSWER, PROMPT, TOOL, Call, Script

NEXT = {
    "idle": "ask",
    "await_llm": "answered",
    "evaluate_response": "decide",
    "process_tools": "counted",
    "update_budgets": "ask",
}
"""State -> the event that leaves it."""


class Conversation:
    """Messages, and the work of each state."""

    _script: Script

    def begin(self, script: Script) -> None:
        """Start with the prompt."""
        self._script = script
        self._calls: Sequence[Call] = ()
        self._turn = 0
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]

    async def on_enter_await_llm(self) -> None:
        """Ask the model."""
        self._calls = calls = await self._script.calls(self._turn)
        named = [{"id": call.id, "name": TOOL, "arguments": call.arguments} for call in calls]
        self.messages.append({"role": "assistant", "content": None if calls else ANSWER, "tool_calls": named})

    def calls_a_tool(self) -> bool:
        """Guard."""
        return bool(self._calls)

    def is_within_budget(self) -> bool:
        """Guard."""
        return self._turn < 1_000_000

    async def on_enter_process_tools(self) -> None:
        """Run the tools at once."""
        self.messages += await asyncio.gather(*map(self._look_up, self._calls))

    async def _look_up(self, call: Call) -> dict[str, Any]:
        content = self._script.look_up(**call.arguments)  # type: ignore[arg-type]
        return {"role": "tool", "tool_call_id": call.id, "content": content}

    async def on_enter_update_budgets(self) -> None:
        """Count the turn."""
        self._turn += 1
