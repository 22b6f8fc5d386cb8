"""Conversations: the messages that a run starts with, and those of the last ones, as an agent keeps them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Message

Prompt: TypeAlias = str | Message | Sequence[Message | Mapping[str, Any]]
"""Text of the user, one message, or a whole conversation as messages or in OpenAI chat form."""


class Conversations:
    """The messages of the last `kept` conversations, by id, as their last run left them; the journal has all."""

    def __init__(self, kept: int = 1_000) -> None:
        self._kept = kept
        self._said: OrderedDict[str, tuple[str, tuple[Message, ...]]] = OrderedDict()

    def history(self, conversation_id: str, run_id: str | None) -> tuple[Message, ...] | None:
        """Return what was said up to a run; None when that is not kept here. No run: what is kept."""
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
        """Return what was said in a conversation before, by whichever process; `read` reads a stored run of it.

        Raises ConfigError while a run of it is under way.
        """
        if conversation_id is None:
            return ()
        newest = await journal.newest(conversation_id)
        if newest is not None and newest.owner is not None:
            raise ConfigError(
                f"conversation {conversation_id!r} has a run under way ({newest.run_id}); wait for its end"
            )
        known = self.history(conversation_id, None if newest is None else newest.run_id)
        if known is not None or newest is None:
            return known or ()
        return await read(newest.run_id)

    def keep(self, conversation_id: str | None, run_id: str, messages: Sequence[Message]) -> None:
        """Remember the conversation as a run left it; the one unused for longest is forgotten beyond `kept`."""
        if conversation_id is None:
            return
        self._said[conversation_id] = run_id, tuple(messages)
        self._said.move_to_end(conversation_id)
        if len(self._said) > self._kept:
            self._said.popitem(last=False)


def opening(prompt: Prompt, history: Sequence[Message], instructions: str | None) -> list[Message]:
    """Return the messages a run starts with. Raises ConfigError for a prompt that is none."""
    given = _as_messages(prompt)
    messages = [*history, *given]
    if not messages:
        raise ConfigError("the prompt is empty; give text or at least one message")
    if not all(_is_text(message.content) for message in given if isinstance(message.content, str)):
        raise ConfigError("the prompt is not text: it holds half a character (a lone surrogate)")
    if instructions is not None and messages[0] != (system := Message("system", instructions)):
        messages.insert(0, system)
    return messages


def _is_text(said: str) -> bool:
    """Tell whether it could be stored and sent."""
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
