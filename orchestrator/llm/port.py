"""The roles a host may fill: what we call, never what we are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.kernel.clock import Cancellable, Clock, SystemClock

if TYPE_CHECKING:
    from orchestrator.llm.message import Message, Request, Response


__all__ = ["LLM", "Cancellable", "Clock", "Deps", "FailureEpisode", "Memory", "Price", "SystemClock"]


class LLM(Protocol):
    """A model. Raises `errors.LLMError` (or a type that `RetryPolicy` classifies) when it has no answer.

    It may have further attributes: `model` and `provider` (names), `context_window` (tokens it reads at once),
    `max_output_tokens` (the most that an answer has where the request does not limit it), and `reports_cost` (True:
    the usage of every answer has its cost, so that no price is needed).
    """

    async def complete(self, request: Request) -> Response:
        """Answer one request."""
        ...


@dataclass(frozen=True, slots=True)
class FailureEpisode:
    """What went wrong in a run, short enough to remember: text is cut at 2,048 characters, calls at four."""

    run_id: str
    reason: str
    error: str
    iteration: int
    calls: tuple[tuple[str, str], ...] = ()
    """The last calls, as (tool, arguments)."""


class Memory(Protocol):
    """What outlives a run. Each method may raise; only `prepare` can fail a run, the rest degrade its outcome."""

    async def prepare(self, key: str, messages: Sequence[Message]) -> Sequence[Message]:
        """Return what to put before the conversation, in order."""
        ...

    async def store(self, key: str, messages: Sequence[Message]) -> None:
        """Keep the last exchange (user and assistant)."""
        ...

    async def store_failure(self, key: str, episode: FailureEpisode) -> None:
        """Keep what went wrong."""
        ...

    async def compact(self, key: str, summary: Message) -> None:
        """Keep the summary that replaced older messages."""
        ...


Price = Callable[[str | None, Mapping[str, int]], float | None]
"""(model, {"input_tokens": …, "output_tokens": …, "cached_input_tokens": …}) -> cost, or None where unknown.

Asked by the name of the model in the answer and, where that is unknown, by the configured one. Must not raise."""

Deps = Any
"""The host's own handles, passed through to tools and hooks untouched."""
