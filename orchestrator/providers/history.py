"""Repair conversations, so that every vendor accepts them: names and ids of calls, and the order of their results.

Models call tools with names that no API accepts (`functions.add`, `add two`, an empty one), servers send empty and
repeated ids, and the history of a host can lack results or have too many. An API answers the next request with such a
history with HTTP 400, and the run fails. `VendorModel.complete` repairs the messages of each request, for every
adapter; the journal and `Result.messages` keep what the model wrote, because a person who reads them must see it.

- Every call has an id that the vendor accepts and that no earlier call has; its result has the same one.
- Names of tools that are not offered have at most 64 of the characters that every vendor accepts.
- The results of a turn follow its calls at once, in their order. A call without a result gets one that says so; a
  result without a call, and a second result of a call, become text of the user.

The repair depends only on the messages before, so a longer conversation starts with the same repaired messages, as
prompt caches need it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from hashlib import sha256
from typing import Final

from orchestrator.llm.message import Message, ToolCall

PLAIN_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Ids of calls that every vendor but Mistral accepts."""
NO_RESULT: Final = "No result of this call was recorded."
BEGINNING: Final = "(The conversation begins with the assistant.)"
"""The first message of the user, for vendors that require one."""
_ODD: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
_AUTHOR: Final = re.compile(r"[^\s<|\\/>]{1,64}")
_NAME_CHARS: Final = 64
_ID_CHARS: Final = 32
"""Characters of an invalid id that its replacement keeps; the limits of vendors are 40 and above."""


def repaired(
    messages: Iterable[Message], tools: Collection[str] = (), call_id: re.Pattern[str] = PLAIN_ID
) -> list[Message]:
    """Return the messages as a conversation that a vendor accepts.

    Args:
        messages: The conversation.
        tools: Names of the offered tools; they stay as they are.
        call_id: Pattern of the ids of calls that the vendor accepts.

    Returns:
        The same messages where they are valid, repaired ones elsewhere.
    """
    history = _History(frozenset(tools), call_id)
    for message in messages:
        history.add(message)
    return history.finished()


class _History:
    def __init__(self, tools: Collection[str], call_id: re.Pattern[str]) -> None:
        self._tools = tools
        self._call_id = call_id
        self._messages: list[Message] = []
        self._ids: set[str] = set()
        self._numbers: defaultdict[str, int] = defaultdict(lambda: 1)
        """Id -> number of its last replacement."""
        self._calls: tuple[ToolCall, ...] = ()
        """The calls of the last answer, as sent."""
        self._open: dict[int, str] = {}
        """Position of a call without a result -> its id in the conversation."""
        self._results: dict[int, Message] = {}
        self._others: list[Message] = []
        """Messages since the last answer that are not results of its calls."""

    def add(self, message: Message) -> None:
        if message.role == "tool":
            self._add_result(message)
            return
        if message.name is not None and not _AUTHOR.fullmatch(message.name):
            message = replace(message, name=_ODD.sub("_", message.name)[:_NAME_CHARS] or None)
        if message.role == "assistant":
            self._settle()
            self._messages.append(self._answer(message))
        else:
            self._others.append(replace(message, tool_calls=()) if message.tool_calls else message)

    def finished(self) -> list[Message]:
        self._settle()
        return self._messages

    def _answer(self, message: Message) -> Message:
        if not message.tool_calls:
            return message
        calls = []
        for call in message.tool_calls:
            id_, name = self._new_id(call.id), self._name(call.name)
            calls.append(call if (id_, name) == (call.id, call.name) else replace(call, id=id_, name=name))
        self._calls = tuple(calls)
        self._open = {position: call.id for position, call in enumerate(message.tool_calls)}
        return message if self._calls == message.tool_calls else replace(message, tool_calls=self._calls)

    def _new_id(self, id_: str) -> str:
        sent = id_
        short = _ODD.sub("_", id_)[:_ID_CHARS] or "call"
        while sent in self._ids or not self._call_id.fullmatch(sent):
            number = self._numbers[id_]
            self._numbers[id_] += 1
            sent = short if number == 1 else f"{short}_{number}"
            if not self._call_id.fullmatch(sent):  # Mistral: nine letters and digits
                sent = sha256(sent.encode()).hexdigest()[:9]
        self._ids.add(sent)
        return sent

    def _name(self, name: str) -> str:
        if name in self._tools or _NAME.fullmatch(name):
            return name
        name = _ODD.sub("_", name)
        return (name if _NAME.match(name) else f"_{name}" if name else "unnamed")[:_NAME_CHARS]

    def _add_result(self, message: Message) -> None:
        """Assign a result to the first open call with its id, else to the first open call if either id is empty."""
        id_ = message.tool_call_id or ""
        same = (position for position, known in self._open.items() if known == id_)
        unnamed = (position for position, known in self._open.items() if not (known and id_))
        position = next(same, next(unnamed, None))
        if position is None:
            self._others.append(_as_text(message))
            return
        del self._open[position]
        call = self._calls[position]
        name = None if message.name is None else call.name
        if (message.tool_call_id, message.name) != (call.id, name):
            message = replace(message, tool_call_id=call.id, name=name)
        self._results[position] = message

    def _settle(self) -> None:
        """Write the results of the last answer, then the other messages since."""
        for position, call in enumerate(self._calls):
            missing = Message("tool", NO_RESULT, tool_call_id=call.id, name=call.name, is_error=True)
            self._messages.append(self._results.get(position, missing))
        self._messages += self._others
        self._calls, self._open, self._results, self._others = (), {}, {}, []


def _as_text(result: Message) -> Message:
    """Return a result without a call as text of the user."""
    about = f"[result of {result.name}]" if result.name else "[result]"
    if isinstance(result.content, list):
        return Message("user", [{"type": "text", "text": about}, *result.content])
    return Message("user", f"{about}\n{result.content or ''}".rstrip())
