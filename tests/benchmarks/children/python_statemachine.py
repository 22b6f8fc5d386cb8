"""python-statemachine: a StateChart with the four states of a turn and async entry actions, driven from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from statemachine import (  # type: ignore[import-not-found, unused-ignore]
    State,
    StateChart,
)

from tests.benchmarks import child
from tests.benchmarks.script import ANSWER, PROMPT, TOOL, Call, Script

_NEXT = {
    "idle": "ask",
    "await_llm": "answered",
    "evaluate_response": "decide",
    "process_tools": "counted",
    "update_budgets": "ask",
}


class Conversation(StateChart):  # type: ignore[misc, unused-ignore]
    """One run."""

    idle = State(initial=True)
    await_llm = State()
    evaluate_response = State()
    process_tools = State()
    update_budgets = State()
    done = State(final=True)

    ask = idle.to(await_llm) | update_budgets.to(await_llm, cond="is_within_budget")
    answered = await_llm.to(evaluate_response)
    decide = evaluate_response.to(process_tools, cond="calls_a_tool") | evaluate_response.to(done)
    counted = process_tools.to(update_budgets)

    def __init__(self, script: Script) -> None:
        self._script = script
        self._calls: Sequence[Call] = ()
        self._turn = 0
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
        super().__init__()

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


class Charts:
    """A chart of its own for each run."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def run(self, name: str) -> str:
        """Run a conversation to its end."""
        del name
        conversation = Conversation(self._script)
        await conversation.activate_initial_state()
        while not conversation.is_terminated:
            (state,) = conversation.configuration_values
            await conversation.send(_NEXT[state])
        return str(conversation.messages[-1]["content"])


if __name__ == "__main__":
    why = "it has no store: the state is a field of its user's model"
    child.serve(child.Side(("python-statemachine",), Charts, storeless=why))
