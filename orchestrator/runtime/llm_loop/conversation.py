"""Conversations: the first messages of a run, and a cache of the latest conversations of an agent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Message

Prompt: TypeAlias = str | Message | Sequence[Message | Mapping[str, Any]]
"""Text of the user, one message, or a conversation as messages or in OpenAI chat form."""


class Conversations:
    """Cache of the last `kept` conversations by id, as of their last run; the journal has all conversations."""

    def __init__(self, kept: int = 1_000) -> None:
        self._kept = kept
        self._said: OrderedDict[str, tuple[str, tuple[Message, ...]]] = OrderedDict()

    def history(self, conversation_id: str, run_id: str | None) -> tuple[Message, ...] | None:
        """Return the cached messages up to a run, or None. Without a run id, return the cached messages."""
        known = self._said.get(conversation_id)
        if known is None or run_id not in (None, known[0]):
            return None
        return known[1]

    async def before(
        self,
        conversation_id: str | None,
        journal: Journal,
        read: Callable[[str], Awaitable[Sequence[Message]]],
    ) -> Sequence[Message]:
        """Return the earlier messages of a conversation, from any process; `read` reads a stored run of it.

        Raises ConfigError if the conversation has an active run.
        """
        if conversation_id is None:
            return ()
        newest = await journal.newest(conversation_id)
        if newest is not None and newest.owner is not None:
            raise ConfigError(
                f"conversation {conversation_id!r} has an active run ({newest.run_id}); wait for its end"
            )
        known = self.history(conversation_id, None if newest is None else newest.run_id)
        if known is not None or newest is None:
            return known or ()
        return await read(newest.run_id)

    def keep(self, conversation_id: str | None, run_id: str, messages: Sequence[Message]) -> None:
        """Cache the conversation after a run; above `kept` the least recently used one is dropped."""
        if conversation_id is None:
            return
        self._said[conversation_id] = run_id, tuple(messages)
        self._said.move_to_end(conversation_id)
        if len(self._said) > self._kept:
            self._said.popitem(last=False)


def opening(prompt: Prompt, history: Sequence[Message], instructions: str | None) -> list[Message]:
    """Return the first messages of a run. Raises ConfigError for an invalid prompt."""
    given = _as_messages(prompt)
    if instructions is not None and history and history[0].role == "system":
        history = history[1:]  # the instructions of an earlier run
    messages = [*history, *given]
    if not messages:
        raise ConfigError("the prompt is empty; give text or at least one message")
    if not all(_is_text(message.content) for message in given if isinstance(message.content, str)):
        raise ConfigError("the prompt is not text: it contains half a character (a lone surrogate)")
    if instructions is not None and messages[0] != (system := Message("system", instructions)):
        messages.insert(0, system)
    return messages


def _is_text(said: str) -> bool:
    """Return whether a text can be stored and sent."""
    try:
        said.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_messages(prompt: Prompt) -> list[Message]:
    if isinstance(prompt, str):
        return [Message("user", prompt)]
    if isinstance(prompt, Message):
        return [prompt]
    if not isinstance(prompt, Sequence):
        raise ConfigError(f"the prompt must be text or messages, not {type(prompt).__name__}")
    return [_as_message(item) for item in prompt]


def _as_message(item: object) -> Message:
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping):
        raise ConfigError(f"a message must be a Message or a mapping, not {type(item).__name__}")
    try:
        return Message.from_openai(item)
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"a message of the prompt cannot be read: {error}") from error
