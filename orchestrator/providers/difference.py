"""Compare messages with recorded ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.llm.message import Message
from orchestrator.providers.scripted import shorten

_LEAD = 20
"""Characters shown before the first difference of two texts."""


@dataclass(frozen=True, slots=True)
class RequestDifference:
    """The first difference between a message and the recorded one."""

    index: int
    member: str
    recorded: str
    ours: str

    def __str__(self) -> str:
        return f"message {self.index}: {self.member} differs, recorded {self.recorded}, ours {self.ours}"


def differences(
    expected: Sequence[Message], actual: Sequence[Message], *, start: int = 0
) -> Iterator[RequestDifference]:
    """Yield the differences in role, content, calls, ids and argument text; `start` is the first index."""
    for offset in range(max(len(expected), len(actual))):
        index = start + offset
        if offset >= len(expected):
            yield RequestDifference(index, "message", "nothing", f"a message of {actual[offset].role}")
        elif offset >= len(actual):
            yield RequestDifference(index, "message", f"a message of {expected[offset].role}", "nothing")
        else:
            yield from _message_differences(expected[offset], actual[offset], index)


def compare(expected: Sequence[Message], actual: Sequence[Message]) -> list[str]:
    """Return the differences as sentences; an empty list if the messages are equal.

    It compares role, content, calls (name, id, argument text) and tool_call_id. It ignores names of tools on results,
    reasoning and failure marks: a recording may lack them.
    """
    return [str(difference) for difference in differences(expected, actual)]


def _message_differences(expected: Message, actual: Message, index: int) -> Iterator[RequestDifference]:
    """Yield the differences of two messages."""
    if expected is actual:
        return
    pairs: list[tuple[str, Any, Any]] = [
        ("role", expected.role, actual.role),
        ("content", _content(expected), _content(actual)),
        ("tool_call_id", expected.tool_call_id or "", actual.tool_call_id or ""),
        ("number of calls", len(expected.tool_calls), len(actual.tool_calls)),
    ]
    for position, (theirs, ours) in enumerate(zip(expected.tool_calls, actual.tool_calls, strict=False)):
        where = f"tool_calls[{position}]"
        pairs.append((f"{where}.id", theirs.id, ours.id))
        pairs.append((f"{where}.name", theirs.name, ours.name))
        pairs.append((f"{where}.arguments", theirs.arguments, ours.arguments))
    for member, recorded, mine in pairs:
        if recorded != mine:
            yield RequestDifference(index, member, *_cut_to_difference(recorded, mine))


def _content(message: Message) -> object:
    """Return the content to compare. A result is compared as text, even if it was recorded in parts."""
    return message.text if message.role == "tool" else message.content


def _cut_to_difference(recorded: object, ours: object) -> tuple[str, str]:
    """Return both values in short form, from a little before their first difference."""
    if not (isinstance(recorded, str) and isinstance(ours, str)):
        return shorten(repr(recorded)), shorten(repr(ours))
    limit = min(len(recorded), len(ours))
    parting = next((at for at in range(limit) if recorded[at] != ours[at]), limit)
    begin = max(0, parting - _LEAD)
    mark = "…" if begin else ""
    return mark + shorten(repr(recorded[begin:])), mark + shorten(repr(ours[begin:]))
