"""What becomes of a tool call, and its text: what the model reads, capped, encodable, errors as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import field
from typing import Any, Literal, TypeAlias

from pydantic_core import to_json

from orchestrator.kernel.value import value
from orchestrator.llm.message import Message, ToolCall, encodable

ToolOutcome: TypeAlias = Literal[
    "ok", "error", "timeout", "denied", "invalid_args", "duplicate_keys", "unstable_args", "cancelled"
]

_ERROR_CHARS = 2_000
_SHOWN_LEAVES = 5


@value(frozen=True, slots=True)
class ToolResult:
    """What became of one call. Times are seconds; `seconds` leaves out `queued`, the wait for a slot."""

    call: ToolCall
    position: int
    content: str
    outcome: ToolOutcome = "ok"
    seconds: float = 0.0
    queued: float = 0.0
    cut: bool = False
    """The tool said more than its `max_result_chars`."""
    at: float = field(default=0.0, compare=False)
    """When the tool began (epoch seconds); 0 where none ran, or nobody knows."""
    abandoned: bool = field(default=False, compare=False)
    """Its time passed, and it did not end when it was cancelled: it may still be running."""

    @property
    def is_error(self) -> bool:
        return self.outcome != "ok"

    def message(self) -> Message:
        """Return the tool message that answers the call."""
        return Message("tool", self.content, (), self.call.id, self.call.name, None, None, self.is_error)

    def is_said_by(self, message: Message) -> bool:
        """Tell whether a tool message is `message()`, without making that."""
        return (
            message.tool_call_id == self.call.id
            and message.content == self.content
            and message.name == self.call.name
            and message.is_error == self.is_error
            and message.role == "tool"
            and message.tool_calls == ()
            and message.refusal is None is message.reasoning
        )

    @classmethod
    def failure(cls, call: ToolCall, position: int, outcome: ToolOutcome, why: str, kind: str) -> ToolResult:
        """Answer a call with JSON the model can read, `{"error": why, "type": kind}`; `why` is capped."""
        return cls(call, position, error_text(why, kind), outcome)

    @classmethod
    def denied(cls, call: ToolCall, why: str) -> ToolResult:
        """Refuse a call, for a `before_tool_execution` hook: the tool does not run, and the model reads why.

        Example:
            >>> ToolResult.denied(ToolCall("1", "pay", "{}"), "not on Sundays").content
            '{"error":"not on Sundays","type":"Denied"}'
        """
        return cls.failure(call, 0, "denied", why, kind="Denied")  # whoever asked the hook knows the position


def error_text(why: str, kind: str) -> str:
    """Return JSON that the model can read, `{"error": why, "type": kind}`; `why` is capped."""
    text: str = encodable(why if len(why) <= _ERROR_CHARS else f"{why[: _ERROR_CHARS - 1]}…")
    return to_json({"error": text, "type": kind}).decode()


def why_of(error: BaseException) -> str:
    """Say what an exception says; of a group, its first leaves."""
    try:
        if not isinstance(error, BaseExceptionGroup):
            return str(error) or type(error).__name__
        leaves = itertools.islice(_leaves(error), _SHOWN_LEAVES)
        return f"{error.message}: {'; '.join(map(told_of, leaves))}"
    except Exception:  # noqa: BLE001  an exception that cannot say what it is still is an answer
        return type(error).__name__


def told_of(error: BaseException) -> str:
    """Name an exception and say what it says."""
    return f"{type(error).__name__}: {why_of(error)}"


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        yield from _leaves(error) if isinstance(error, BaseExceptionGroup) else (error,)


def content_of(value: object, limit: int) -> tuple[str, bool]:
    """Return the text of what a tool returned, and whether it was cut. Raises for what has no text."""
    text, was_cut = cut(value if type(value) is str else _serialised(value), limit)
    return str(encodable(text)), was_cut


def _serialised(value: object) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview | Iterator):
        raise TypeError(f"the tool returned {type(value).__name__}; a result is text or a JSON value")
    return to_json(value, inf_nan_mode="strings").decode()


def cut(text: str, limit: int) -> tuple[str, bool]:
    """Return at most `limit` characters (0 = all), the mark included, and whether any are missing.

    The mark says how many are kept: `… [cut: 12,345 of 98,765 characters]`.
    """
    if not limit or len(text) <= limit:
        return text, False
    longest = len(f"… [cut: {limit:,} of {len(text):,} characters]")
    kept = max(0, limit - longest)
    return f"{text[:kept]}… [cut: {kept:,} of {len(text):,} characters]"[:limit], True
