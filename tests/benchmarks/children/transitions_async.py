"""Plain `transitions`: an AsyncMachine with the four states of a turn, one machine for all models, driven from outside.

Chained triggers inside callbacks would keep a task more for each turn, so a loop outside fires the next event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from transitions.extensions.asyncio import AsyncMachine

from tests.benchmarks import child
from tests.benchmarks.script import ANSWER, PROMPT, TOOL, Call, Script

_STATES = ("idle", "await_llm", "evaluate_response", "process_tools", "update_budgets", "done")
_ROWS: tuple[dict[str, Any], ...] = (
    {"trigger": "ask", "source": "idle", "dest": "await_llm"},
    {"trigger": "answered", "source": "await_llm", "dest": "evaluate_response"},
    {
        "trigger": "decide",
        "source": "evaluate_response",
        "dest": "process_tools",
        "conditions": "calls_a_tool",
    },
    {"trigger": "decide", "source": "evaluate_response", "dest": "done"},
    {"trigger": "counted", "source": "process_tools", "dest": "update_budgets"},
    {"trigger": "ask", "source": "update_budgets", "dest": "await_llm", "conditions": "is_within_budget"},
)
_NEXT = {
    "idle": "ask",
    "await_llm": "answered",
    "evaluate_response": "decide",
    "process_tools": "counted",
    "update_budgets": "ask",
}


class Conversation:
    """What the machine moves: messages, and the work of each state."""

    state: str

    def __init__(self, script: Script) -> None:
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


class Plain:
    """One machine; a model of its own for each run, as its README advises for many models."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._machine = AsyncMachine(
            model=None,
            states=list(_STATES),
            transitions=list(_ROWS),
            initial="idle",
            auto_transitions=False,
        )

    async def run(self, name: str) -> str:
        """Run a conversation to its end."""
        del name
        conversation = Conversation(self._script)
        self._machine.add_model(conversation)
        while conversation.state != "done":
            await getattr(conversation, _NEXT[conversation.state])()
        self._machine.remove_model(conversation)
        return str(conversation.messages[-1]["content"])


if __name__ == "__main__":
    child.serve(child.Side(("transitions",), Plain, storeless="it has no store: a model is kept by its user"))
