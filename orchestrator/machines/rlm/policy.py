"""The policies of a host: when to stop a run, how to shorten its history, how to handle a sub-call.

Each method may be async.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Message
from orchestrator.llm.usage import approximate_tokens

AgentMode = Literal["code", "tools"]


class StoppingPolicy(Protocol):
    """Decides after each turn whether another one follows.

    `context` has iteration, max_iterations, agent_mode (`code`, `tools` or `llm_loop`), depth, history (the messages
    in OpenAI form) and last_result. It is one mapping for the whole run: a policy may store values in it and finds
    them at the next call, and JSON values also in a resumed run.
    """

    def should_stop(self, context: MutableMapping[str, Any], /) -> bool | Awaitable[bool]:
        """Return whether the run ends here."""
        ...

    def on_iteration_complete(self, context: MutableMapping[str, Any], /) -> Awaitable[None] | None:
        """Handle a completed turn."""
        ...


class ContextCompressor(Protocol):
    """Shortens the messages for the model."""

    def compress(
        self, messages: Sequence[Message], /, *, limit: int
    ) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Return messages of at most about `limit` tokens; the same messages if they are short enough."""
        ...


@dataclass(frozen=True, slots=True)
class NestedConfig:
    """Configuration of the child run of a sub-call. Raises ConfigError for an unknown mode."""

    agent_mode: AgentMode = "code"
    tools: tuple[Any, ...] = ()
    max_iterations: int = 10
    max_depth: int | None = None
    """None uses the depth limit of the parent run."""

    def __post_init__(self) -> None:
        if self.agent_mode not in get_args(AgentMode):
            known = ", ".join(get_args(AgentMode))
            raise ConfigError(f"agent_mode is {self.agent_mode!r}; allowed: {known}")


class NestedCallPolicy(Protocol):
    """Decides how a model query of code or a tool is answered."""

    def should_orchestrate(self, prompt: str, depth: int, /) -> bool | Awaitable[bool]:
        """Return whether the query gets a child run at `depth`; otherwise the model is called once."""
        ...

    def get_nested_config(self) -> NestedConfig:
        """Return the configuration of such a child run."""
        ...


# ---- defaults and simple policies ----


class NeverStop:
    """Never stops a run."""

    def should_stop(self, _context: Mapping[str, Any], /) -> bool:
        """Return False."""
        return False

    def on_iteration_complete(self, _context: Mapping[str, Any], /) -> None:
        """Do nothing."""


@dataclass
class StopAfter:
    """Stops after `repeats` consecutive turns with the same `last_result`, or after `iterations` turns; 0 is off."""

    iterations: int = 0
    repeats: int = 0

    def should_stop(self, context: Mapping[str, Any], /) -> bool:
        """Return whether either number is reached."""
        turns = self.iterations and context["iteration"] >= self.iterations
        return bool(turns or (self.repeats and context.get("same_results", 0) >= self.repeats))

    def on_iteration_complete(self, context: MutableMapping[str, Any], /) -> None:
        """Count consecutive equal results; the count is stored with the run."""
        same = context.get("result_before") == context["last_result"]
        context["same_results"] = context.get("same_results", 0) + 1 if same else 1
        context["result_before"] = context["last_result"]


class NoCompression:
    """Returns messages unchanged."""

    def compress(self, messages: Sequence[Message], /, *, limit: int) -> Sequence[Message]:
        """Return the same messages."""
        del limit
        return messages


@dataclass(frozen=True)
class KeepEnds:
    """Keeps the first and the last messages, and notes how many were omitted between them.

    Messages are omitted only from `least` messages and from `share` of the limit on.
    """

    last: int = 6
    least: int = 8
    share: float = 0.92

    def compress(self, messages: Sequence[Message], /, *, limit: int) -> Sequence[Message]:
        """Return the first and last messages if all messages are too long."""
        if len(messages) < self.least or estimate(messages) < self.share * limit:
            return messages
        opening = next((at for at, one in enumerate(messages) if one.role == "assistant"), len(messages))
        start = max(opening, len(messages) - self.last)
        while start < len(messages) and messages[start].role != "assistant":
            start += 1  # a turn starts with the model's message: a result without its call is invalid
        if start == opening:  # nothing between them, or no turn yet
            return messages
        # The note counts all omitted messages, including those of earlier notes.
        *before, last = messages[:opening] or (Message("user", ""),)
        said = _NOTE.search(last.text)
        count = start - opening + (int(said[1]) if said else 0)
        text = f"{_NOTE.sub('', last.text)}\n\n[{count} earlier messages were left out here to save room.]"
        return [*before, replace(last, content=text), *messages[start:]]


_NOTE = re.compile(r"\n\n\[(\d+) earlier messages were left out here to save room\.\]\Z")


def estimate(messages: Sequence[Message]) -> int:
    """Return the approximate tokens of messages."""
    said = sum(len(one.text) + sum(len(call.arguments) for call in one.tool_calls) for one in messages)
    return approximate_tokens(said)


@dataclass(frozen=True)
class NoNesting:
    """Calls the model once for every sub-call."""

    def should_orchestrate(self, _prompt: str, _depth: int, /) -> bool:
        """Return False."""
        return False

    def get_nested_config(self) -> NestedConfig:
        """Return the defaults."""
        return NestedConfig()


@dataclass(frozen=True)
class SimpleNestedCallPolicy:
    """Gives a sub-call a child run if its prompt has at least `min_chars` characters and it is above `max_depth`."""

    min_chars: int = 10_000
    max_depth: int = 3
    config: NestedConfig = NestedConfig()

    def should_orchestrate(self, prompt: str, depth: int, /) -> bool:
        """Return whether the prompt is long enough and the depth allows a child run."""
        return len(prompt) >= self.min_chars and depth < self.max_depth

    def get_nested_config(self) -> NestedConfig:
        """Return the configuration."""
        return self.config
