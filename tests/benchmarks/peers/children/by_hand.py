"""The yardstick: the loop a good engineer writes by hand in an afternoon, as `hand_loop` has it."""

from __future__ import annotations

from tests.benchmarks import child
from tests.benchmarks.hand_loop import hand_loop
from tests.benchmarks.peers.children.ours import ScriptedLLM
from tests.benchmarks.script import PROMPT, TOOL, Script


class ByHand:
    """One function, called with a model and a table of tools."""

    def __init__(self, script: Script) -> None:
        async def look_up(key: str, depth: int = 1) -> str:
            return script.look_up(key, depth)

        self._llm = ScriptedLLM(script)
        self._tools = {TOOL: look_up}

    async def run(self, name: str) -> str:
        """Run a conversation to its end."""
        del name
        messages = await hand_loop(self._llm, self._tools, (), PROMPT, 1_000_000)
        return str(messages[-1].content)


if __name__ == "__main__":
    child.serve(child.Side((), ByHand, storeless="it keeps nothing"))
