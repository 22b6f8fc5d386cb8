"""What the model says and the tool answers in the cases beside peers, and when the model waits.

The same words for every contestant. Standard library only: a peer's interpreter imports this too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

PROMPT = "go"
ANSWER = "done"
TOOL = "look_up"
ABOUT_TOOL = "Look something up."
INPUT_TOKENS = 900
OUTPUT_TOKENS = 60


class Call(NamedTuple):
    """A call of the tool: other arguments in each turn, so that no guard sees a loop."""

    id: str
    key: str
    depth: int

    @property
    def arguments(self) -> dict[str, str | int]:
        """The arguments of a contestant whose model speaks Python."""
        return {"key": self.key, "depth": self.depth}

    @property
    def text(self) -> str:
        """The arguments of a contestant whose model speaks JSON."""
        return json.dumps(self.arguments)


@dataclass(slots=True)
class Script:
    """A model that calls `tools` tools in each of `turns` turns and then answers; with no tools it answers at once.

    It is told only how far the conversation is, so one serves any number of runs. With `held` so many runs wait for
    each other at their last request, until somebody sets `released`.
    """

    turns: int
    tools: int = 1
    latency: float = 0.0
    """Seconds that each answer takes."""
    held: int = 0
    asked_at: list[float] = field(default_factory=list)
    effects: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: int = 0

    @property
    def requests(self) -> int:
        """How often one run asks the model."""
        return self.turns + 1 if self.tools else 1

    async def calls(self, turn: int) -> Sequence[Call]:
        """Return the calls of a turn, counted from 0; none means that the model answers."""
        self.asked_at.append(time.perf_counter())
        if self.latency:
            await asyncio.sleep(self.latency)
        if turn < self.turns and self.tools:
            return [Call(f"call_{turn}_{number}", f"{turn}-{number}", number) for number in range(self.tools)]
        if self.held:
            await self._hold()
        return ()

    def look_up(self, key: str, depth: int) -> str:
        """Answer a call of the tool, and count it."""
        self.effects += 1
        return f"{key}:{depth}"

    async def _hold(self) -> None:
        self._waiting += 1
        if self._waiting == self.held:
            self.reached.set()
        await self.released.wait()

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

    def iterations(self) -> list[float]:
        """Return the seconds from each request to the next: of one run alone."""
        return [after - before for before, after in pairwise(self.asked_at)]
