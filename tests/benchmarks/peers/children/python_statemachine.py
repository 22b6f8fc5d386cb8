"""python-statemachine: a StateChart with the four states of a turn and async entry actions, driven from outside."""

from __future__ import annotations

from statemachine import (  # type: ignore[import-not-found, unused-ignore]
    State,
    StateChart,
)

from tests.benchmarks import child
from tests.benchmarks.peers.children.conversation import NEXT, Conversation
from tests.benchmarks.script import Script


class Chart(Conversation, StateChart):  # type: ignore[misc, unused-ignore]
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
        self.begin(script)
        super().__init__()


class Charts:
    """A chart of its own for each run."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def run(self, name: str) -> str:
        """Run a conversation to its end."""
        del name
        conversation = Chart(self._script)
        await conversation.activate_initial_state()
        while not conversation.is_terminated:
            (state,) = conversation.configuration_values
            await conversation.send(NEXT[state])
        return str(conversation.messages[-1]["content"])


if __name__ == "__main__":
    why = "it has no store: the state is a field of its user's model"
    child.serve(child.Side(("python-statemachine",), Charts, storeless=why))
