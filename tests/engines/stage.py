"""What the tests of engines share: a model that answers when it is let, tools that count, waiting for conditions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from orchestrator.engines.local_engine import SETTLE, LocalEngine
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Request
from orchestrator.providers.scripted import Answer, FunctionLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import tool
from tests.runtime.stage import NO_WAIT
from tests.with_runtime import with_runtime


class Stage:
    """The model answers the first question of a run once its prompt is let.

    `ask …` makes it call `send`, which needs approval, at once; `look …` calls `look`, once it is let.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        """Prompts of the runs that the model was asked about and has to be let for, in order."""
        self.waiting: dict[str, asyncio.Event] = {}
        self.effects: Counter[str] = Counter()
        self.running = 0
        self.most = 0
        """How many runs were in the middle of something at once, at most."""
        self._let: set[str] = set()

    def let(self, *prompts: str) -> None:
        self._let.update(prompts)
        for prompt in prompts:
            if prompt in self.waiting:
                self.waiting[prompt].set()

    async def model(self, request: Request) -> Answer:
        prompt = next(m.text for m in reversed(request.messages) if m.role == "user")
        with self:
            await asyncio.sleep(0)
            if request.messages[-1].role == "tool":
                return f"{prompt}!"
            if prompt.startswith("ask"):
                return call("send", to=prompt)
            await self._permission(prompt)
            return call("look", at=prompt) if prompt.startswith("look") else f"{prompt}!"

    async def _permission(self, prompt: str) -> None:
        self.asked.append(prompt)
        if prompt not in self._let:
            self.waiting[prompt] = asyncio.Event()
            try:
                await self.waiting[prompt].wait()
            finally:
                del self.waiting[prompt]

    def tools(self) -> list[Any]:
        @tool(effect="irreversible", approval=True)
        async def send(to: str) -> str:
            with self:
                await asyncio.sleep(0)
                self.effects["send"] += 1
            return f"sent to {to}"

        @tool(effect="pure")
        async def look(at: str) -> str:
            with self:
                await asyncio.sleep(0)
                self.effects["look"] += 1
            return f"seen {at}"

        return [send, look]

    def __enter__(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)

    def __exit__(self, *_: object) -> None:
        self.running -= 1


def agent(stage: Stage, journal: Journal | None = None, *, model: str = "stage", **options: Any) -> Agent:
    """A silent agent on a stage."""
    options = {"observers": (), "retry": NO_WAIT, "tools": stage.tools(), **options}
    return Agent(
        FunctionLLM(stage.model, model=model),
        **with_runtime(journal=MemoryJournal() if journal is None else journal, **options),
    )


async def until(ready: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return once `ready`; fail when that takes far too long."""
    ends = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < ends, "it never came to that"
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def left(
    runner: Agent, clock: FakeClock, *, meanwhile: Callable[[], None] | None = None, **options: Any
) -> AsyncIterator[LocalEngine]:
    """An engine that is given no time to end; `meanwhile` happens once its runs were asked to pause."""
    engine, others = LocalEngine(runner, **options), clock.pending
    await engine.start()
    yield engine
    draining = asyncio.create_task(engine.drain(0))
    await clock.advance(0)
    if meanwhile is not None:
        meanwhile()
    while not draining.done():
        await clock.advance(SETTLE)
    await draining
    assert others or clock.pending == 0, "a drained engine leaves no timer"
