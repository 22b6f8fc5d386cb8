"""Sampling: a request of a tool to the model of its run, paid by the budgets of that run.

The tool awaits `context.sample`. The request becomes a child run of one turn without tools: it is in the journal, in
the usage and in the limits of the run. Its name is the key of the call and the digest of the request, so a call that
runs again after a crash reads the recorded answer and pays nothing. The time of the model does not count for the
timeout of the tool. A plain call of the model was rejected: no budget counts it, and a crash pays it twice.

    @tool(effect="idempotent")
    async def headline(context: ToolContext, article: str) -> str:
        "Write a headline."
        answer = await context.sample(SamplingRequest([Message("user", article)], "Write a headline.", max_tokens=50))
        return answer.message().text
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.kernel.cancellation import TimeLimit
from orchestrator.llm.message import Message, Response


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """One request of a tool to the model of its run.

    Example:
        SamplingRequest([Message("user", "Summarise: ...")], max_tokens=200)
    """

    messages: Sequence[Message]
    """The whole conversation that the model sees; nothing of the run is added."""
    instructions: str | None = None
    """The system message."""
    max_tokens: int = 0
    """Maximum tokens of the answer; 0 is the limit of the model. The parameters of the run may set a lower one."""
    temperature: float | None = None
    """Ignored if the run or its agent sets one, or if the model has no such parameter; None is the model's own."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer, if the model has such a parameter."""
    key: str = ""
    """Distinguishes equal requests of a call, over all its attempts. Within an attempt they are counted."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the request: equal requests have the same one."""
        parts: list[Any] = [self.instructions, self.max_tokens, self.temperature, list(self.stop), self.key]
        parts += [message.to_openai() for message in self.messages]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class Sampler(Protocol):
    """Asks the model of a run for one call of a tool: `ToolContext.sample`."""

    async def __call__(self, request: SamplingRequest, /) -> Response:
        """Return the answer of the model: its content, finish reason, usage and model.

        Raises RunStopped if there is none: BudgetExceeded if a limit of the run is used up, RunCancelled if the run
        was stopped, RunFailed if the model failed. Raises ConfigError outside the run of the call.
        """
        ...


class UntimedSampler:
    """A sampler whose time does not count for the timeout of its tool."""

    __slots__ = ("_limit", "_sample")

    def __init__(self, limit: TimeLimit, sample: Sampler) -> None:
        self._limit = limit
        self._sample = sample

    async def __call__(self, request: SamplingRequest, /) -> Response:
        """Ask the model while the timeout stands still."""
        return await self._limit.outside(self._sample(request))
