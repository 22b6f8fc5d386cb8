"""What the tests of the running loop share: an agent, a memory, a list of facts, and what a valid history is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from orchestrator.kernel.fact import Fact, Transition
from orchestrator.llm.message import Message
from orchestrator.llm.port import LLM, FailureEpisode
from orchestrator.llm.retry import RetryPolicy
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.testing.clock import FakeClock
from tests.with_runtime import with_runtime

F = TypeVar("F")

NO_WAIT = RetryPolicy(base=0.0, jitter=0.0)


class Facts:
    """An observer that keeps everything it is told."""

    def __init__(self) -> None:
        self.all: list[Fact] = []

    def observe(self, fact: Fact) -> None:
        self.all.append(fact)

    def of(self, kind: type[F]) -> list[F]:
        return [fact for fact in self.all if isinstance(fact, kind)]


class Notebook:
    """A memory that writes everything down; what is in `broken` raises, what is in `slow` never returns."""

    def __init__(
        self,
        *known: Message,
        broken: Iterable[str] = (),
        slow: Iterable[str] = (),
        clock: FakeClock | None = None,
    ) -> None:
        self.known = known
        self.broken = frozenset(broken)
        self.slow = frozenset(slow)
        self.clock = clock or FakeClock()
        self.asked: list[tuple[str, tuple[Message, ...]]] = []
        self.stored: list[tuple[str, tuple[Message, ...]]] = []
        self.episodes: list[tuple[str, FailureEpisode]] = []
        self.summaries: list[tuple[str, Message]] = []

    async def _reach(self, what: str) -> None:
        if what in self.slow:
            await self.clock.sleep(1e9)
        if what in self.broken:
            raise OSError(f"{what}: the store is gone")

    async def prepare(self, key: str, messages: Sequence[Message]) -> Sequence[Message]:
        await self._reach("prepare")
        self.asked.append((key, tuple(messages)))
        return self.known

    async def store(self, key: str, messages: Sequence[Message]) -> None:
        await self._reach("store")
        self.stored.append((key, tuple(messages)))

    async def store_failure(self, key: str, episode: FailureEpisode) -> None:
        await self._reach("store_failure")
        self.episodes.append((key, episode))

    async def compact(self, key: str, summary: Message) -> None:
        await self._reach("compact")
        self.summaries.append((key, summary))


def agent(script: Any, /, tools: Any = (), **options: Any) -> Agent:
    """An agent that answers by script (or by any model) and is silent."""
    llm: LLM = script if hasattr(script, "complete") else ScriptedLLM(script)
    return Agent(llm, tools=tools, **with_runtime(**{"observers": (), "retry": NO_WAIT, **options}))


def path(transitions: Iterable[Transition]) -> list[str]:
    """The events of a run, in order."""
    return [transition.event for transition in transitions]


def states(transitions: Iterable[Transition]) -> list[str]:
    """The states that a run entered, in order."""
    return [transition.dest for transition in transitions]


def faults(messages: Sequence[Message]) -> list[str]:
    """Say what a provider would refuse: each call needs exactly one result right after it, in call order."""
    found: list[str] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        if message.role == "tool":
            found.append(f"{position - 1}: a result without its call")
        for call in message.tool_calls:
            answer = messages[position] if position < len(messages) else None
            if answer is None or (answer.role, answer.tool_call_id, answer.name) != (
                "tool",
                call.id,
                call.name,
            ):
                found.append(f"{position}: no result for {call.name}")
                break
            position += 1
    return found


async def until(ready: Callable[[], Any]) -> Any:
    """Wait for a condition, not for a time."""
    async with asyncio.timeout(60):
        while True:
            found = ready()
            found = await found if asyncio.iscoroutine(found) else found
            if found:
                return found
            await asyncio.sleep(0.005)
