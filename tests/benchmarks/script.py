"""What the model says and the tool answers in the journalled cases, and when the model blocks.

The same words for every contestant. Standard library only: a peer's interpreter imports this too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field

PROMPT = "go"
RUN_ID = "bench"
"""Of the one run that is stopped and resumed."""
ANSWER = "done"
INPUT_TOKENS = 900
OUTPUT_TOKENS = 60


@dataclass(slots=True)
class Script:
    """A model of `turns` turns with one call each, then an answer; told only how long the conversation is.

    With `blocks` it never gives the answer, so that the run can be stopped there.
    """

    turns: int
    blocks: bool = False
    asked_at: list[float] = field(default_factory=list)
    effects: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def turn(self, messages: int) -> int | None:
        """Return the number of the turn to call the tool in, or None to answer. A turn is two messages."""
        self.asked_at.append(time.perf_counter())
        turn = messages // 2
        if turn < self.turns:
            return turn
        if self.blocks:
            self.reached.set()
            await asyncio.Event().wait()
        return None

    def look_up(self, key: str, depth: int) -> str:
        """Answer a call of the tool, and count it."""
        self.effects += 1
        return f"{key}:{depth}"

    async def stop(self, run: Awaitable[object]) -> None:
        """Let a run come to its last request and cancel it there, as a caller does that gives up."""
        task = asyncio.ensure_future(run)
        reached = asyncio.ensure_future(self.reached.wait())
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        if task.done():
            raise RuntimeError(f"the run ended before it could be stopped: {task.result()!r}")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def proved(self, *, effects: int, asked: int) -> None:
        """Raise RuntimeError unless the tool ran and the model was asked so many times."""
        if (self.effects, len(self.asked_at)) != (effects, asked):
            raise RuntimeError(
                f"the tool ran {self.effects} times and the model was asked {len(self.asked_at)} times;"
                f" the work is {effects} and {asked}"
            )


def arguments(turn: int) -> dict[str, object]:
    """Return the arguments of a turn's call: others in each, so that no guard sees a loop."""
    return {"key": str(turn), "depth": turn}
