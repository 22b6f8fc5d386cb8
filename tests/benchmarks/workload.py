"""The scripted work that every contestant does: so many turns, so many tools in each, a model of a given latency."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.tools.spec import tool

_USAGE = Usage(900, 60)
_DONE = Response("done", usage=_USAGE)


@tool(effect="pure")
async def look_up(key: str, depth: int = 1) -> str:
    """Look something up."""
    return f"{key}:{depth}"


@dataclass(slots=True)
class PacedLLM:
    """Calls `tools` tools in each of `turns` turns, then answers; notes when each request came in."""

    turns: int
    tools: int
    latency: float
    model: str = "paced"
    asked_at: list[float] = field(default_factory=list)

    async def complete(self, request: Request) -> Response:
        """Wait as long as the model would, then go on with the script."""
        del request
        turn = len(self.asked_at)
        self.asked_at.append(time.perf_counter())
        if self.latency:
            await asyncio.sleep(self.latency)
        if turn >= self.turns or not self.tools:
            return _DONE
        calls = tuple(
            ToolCall(f"call_{turn}_{n}", "look_up", f'{{"key": "{turn}-{n}", "depth": {n}}}')
            for n in range(self.tools)
        )
        return Response(None, calls, "tool_calls", _USAGE)

    def iterations(self) -> list[float]:
        """Return seconds from each request to the next."""
        return [after - before for before, after in zip(self.asked_at, self.asked_at[1:], strict=False)]
