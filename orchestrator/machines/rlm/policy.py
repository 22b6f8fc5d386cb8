"""What a host may decide about a run: when to stop it, how to shorten its history, what to do with a sub-call.

Each method may be async. Nothing here is asked where no policy was given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Message

AgentMode = Literal["code", "tools"]


class StoppingPolicy(Protocol):
    """Decides after each turn whether there is another one.

    `context` has iteration, max_iterations, agent_mode (`code`, `tools` or `llm_loop`), depth, history (the messages in
    OpenAI form) and last_result. It is one mapping for the whole run: what a policy puts there is there the next time,
    and in a run that is resumed where it is JSON.
    """

    def should_stop(self, context: MutableMapping[str, Any], /) -> bool | Awaitable[bool]:
        """Tell whether the run ends here."""
        ...

    def on_iteration_complete(self, context: MutableMapping[str, Any], /) -> Awaitable[None] | None:
        """Take note of a turn that is over."""
        ...


class ContextCompressor(Protocol):
    """Shortens what the model is shown."""

    def compress(
        self, messages: Sequence[Message], /, *, limit: int
    ) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Return messages of at most about `limit` tokens; the same ones where nothing is to be done."""
        ...


@dataclass(frozen=True, slots=True)
class NestedConfig:
    """How a sub-call is run that is orchestrated. Raises ConfigError for another mode."""

    agent_mode: AgentMode = "code"
    tools: tuple[Any, ...] = ()
    max_iterations: int = 10
    max_depth: int | None = None
    """None: that of the run above."""

    def __post_init__(self) -> None:
        if self.agent_mode not in get_args(AgentMode):
            known = ", ".join(get_args(AgentMode))
            raise ConfigError(f"agent_mode is {self.agent_mode!r}; known: {known}")


class NestedCallPolicy(Protocol):
    """Decides what becomes of a question that code or a tool asks a model."""

    def should_orchestrate(self, prompt: str, depth: int, /) -> bool | Awaitable[bool]:
        """Tell whether it gets a run of its own, at `depth`; else the model is asked once."""
        ...

    def get_nested_config(self) -> NestedConfig:
        """Return how such a run is made."""
        ...


# ---- the defaults, and simple ones ----


class NeverStop:
    """Lets every run go on to its end."""

    def should_stop(self, _context: Mapping[str, Any], /) -> bool:
        """Say no."""
        return False

    def on_iteration_complete(self, _context: Mapping[str, Any], /) -> None:
        """Take no note."""


@dataclass
class StopAfter:
    """Stops after so many turns that came to the same `last_result`, or after `iterations` turns; 0 is off."""

    iterations: int = 0
    repeats: int = 0

    def should_stop(self, context: Mapping[str, Any], /) -> bool:
        """Tell whether either number is reached."""
        turns = self.iterations and context["iteration"] >= self.iterations
        return bool(turns or (self.repeats and context.get("same_results", 0) >= self.repeats))

    def on_iteration_complete(self, context: MutableMapping[str, Any], /) -> None:
        """Count how often in a row the result was the same; the count is kept with the run."""
        same = context.get("result_before") == context["last_result"]
        context["same_results"] = context.get("same_results", 0) + 1 if same else 1
        context["result_before"] = context["last_result"]


class NoCompression:
    """Leaves messages as they are."""

    def compress(self, messages: Sequence[Message], /, *, limit: int) -> Sequence[Message]:
        """Return them."""
        del limit
        return messages


@dataclass(frozen=True)
class KeepEnds:
    """Keeps the first messages and the last, and says how many were left out between them.

    Nothing is left out below `least` messages, nor below `share` of the limit (seed 004: 0.92, 6 kept, 8 at least).
    """

    last: int = 6
    least: int = 8
    share: float = 0.92

    def compress(self, messages: Sequence[Message], /, *, limit: int) -> Sequence[Message]:
        """Return the ends where all of it is too long."""
        if len(messages) < self.least or estimate(messages) < self.share * limit:
            return messages
        opening = next((at for at, one in enumerate(messages) if one.role == "assistant"), len(messages))
        start = max(opening, len(messages) - self.last)
        while start < len(messages) and messages[start].role != "assistant":
            start += 1  # a turn begins with what the model says: a result without its call is no conversation
        if start == opening:  # nothing between, or no turn yet
            return messages
        return [*_noted(messages[:opening], start - opening), *messages[start:]]


_NOTE = re.compile(r"\n\n\[(\d+) earlier messages were left out here to save room\.\]\Z")


def _noted(head: Sequence[Message], left_out: int) -> list[Message]:
    """Return the opening with a note about how many messages are missing behind it, those of earlier notes included."""
    *before, last = head or (Message("user", ""),)
    said = _NOTE.search(last.text)
    count = left_out + (int(said[1]) if said else 0)
    text = f"{_NOTE.sub('', last.text)}\n\n[{count} earlier messages were left out here to save room.]"
    return [*before, replace(last, content=text)]


def estimate(messages: Sequence[Message]) -> int:
    """Return the tokens of messages, by four characters a token."""
    said = sum(len(one.text) + sum(len(call.arguments) for call in one.tool_calls) for one in messages)
    return math.ceil(said / 4)


@dataclass(frozen=True)
class NoNesting:
    """Asks the model once for every sub-call."""

    def should_orchestrate(self, _prompt: str, _depth: int, /) -> bool:
        """Say no."""
        return False

    def get_nested_config(self) -> NestedConfig:
        """Return the defaults."""
        return NestedConfig()


@dataclass(frozen=True)
class SimpleNestedCallPolicy:
    """Gives a sub-call a run of its own where its prompt is at least `min_chars` long, above depth `max_depth`."""

    min_chars: int = 10_000
    max_depth: int = 3
    config: NestedConfig = NestedConfig()

    def should_orchestrate(self, prompt: str, depth: int, /) -> bool:
        """Tell whether the prompt is that long."""
        return len(prompt) >= self.min_chars and depth < self.max_depth

    def get_nested_config(self) -> NestedConfig:
        """Return the configuration."""
        return self.config
