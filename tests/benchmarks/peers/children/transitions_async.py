"""Plain `transitions`: an AsyncMachine with the four states of a turn, one machine for all models, driven from outside.

Chained triggers inside callbacks would keep a task more for each turn, so a loop outside fires the next event.
"""

from __future__ import annotations

from typing import Any

from transitions.extensions.asyncio import AsyncMachine

from tests.benchmarks import child
from tests.benchmarks.peers.children.conversation import NEXT, Conversation
from tests.benchmarks.script import Script

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


class Model(Conversation):
    """What the machine moves."""

    state: str


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
        conversation = Model()
        conversation.begin(self._script)
        self._machine.add_model(conversation)
        while conversation.state != "done":
            await getattr(conversation, NEXT[conversation.state])()
        self._machine.remove_model(conversation)
        return str(conversation.messages[-1]["content"])


if __name__ == "__main__":
    child.serve(child.Side(("transitions",), Plain, storeless="it has no store: a model is kept by its user"))
