"""Results of tool calls and their text for the model: capped, encodable, errors as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import field
from typing import Any, Literal, TypeAlias

from pydantic_core import to_json

from orchestrator.errors import ModelRetry
from orchestrator.kernel.time_limit import TimeLimitPassed
from orchestrator.kernel.value import value
from orchestrator.llm.content_part import described, returned_parts
from orchestrator.llm.message import Message, ToolCall, encodable
from orchestrator.tools.argument import BadArguments, DuplicateKeys, UnstableArguments
from orchestrator.tools.input_request import PersonNeeded

ToolOutcome: TypeAlias = Literal[
    "ok",
    "error",
    "timeout",
    "retry",
    "denied",
    "invalid_args",
    "duplicate_keys",
    "unstable_args",
    "cancelled",
]

READ_RESULT = "read_result"
"""Name of the tool that reads stored results (`tools.stored_result`): with it, whole results are stored."""
_ERROR_CHARS = 2_000
_ABANDONED = "; it did not stop when it was cancelled, was abandoned and may still be running"
_TRY_AGAIN = "; correct the call and try again"
_SHOWN_LEAVES = 5


@value(frozen=True, slots=True)
class ToolResult:
    """The result of one call. Times are seconds; `seconds` excludes `queued`, the wait for a slot."""

    call: ToolCall
    position: int
    content: str
    outcome: ToolOutcome = "ok"
    seconds: float = 0.0
    queued: float = 0.0
    cut: bool = False
    """True if the tool returned more than its `max_result_chars`."""
    at: float = field(default=0.0, compare=False)
    """Start of the tool (epoch seconds); 0 if none ran or the time is unknown."""
    abandoned: bool = field(default=False, compare=False)
    """True if the tool timed out and did not stop when it was cancelled: it may still be running."""
    whole: str | None = field(default=None, compare=False, repr=False)
    """The text before it was cut, until it is stored; None if nothing was cut or the agent has no `read_result`."""
    needs: PersonNeeded | None = field(default=None, compare=False, repr=False)
    """Why the call cannot continue without a person; `content` is for a caller that cannot ask one."""
    parts: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """Content parts for the model if the tool returned any; `content` then describes them."""

    @property
    def is_error(self) -> bool:
        return self.outcome != "ok"

    def message(self) -> Message:
        """Return the tool message that answers the call."""
        said = list(self.parts) or self.content
        return Message("tool", said, (), self.call.id, self.call.name, None, None, self.is_error)

    def is_said_by(self, message: Message) -> bool:
        """Return whether a tool message equals `message()`, without building that message."""
        return (
            message.tool_call_id == self.call.id
            and message.content == (list(self.parts) or self.content)
            and message.name == self.call.name
            and message.is_error == self.is_error
            and message.role == "tool"
            and message.tool_calls == ()
            and message.refusal is None is message.reasoning
        )

    @classmethod
    def failure(cls, call: ToolCall, position: int, outcome: ToolOutcome, why: str, kind: str) -> ToolResult:
        """Answer a call with JSON for the model, `{"error": why, "type": kind}`; `why` is capped."""
        return cls(call, position, error_text(why, kind), outcome)

    @classmethod
    def denied(cls, call: ToolCall, why: str) -> ToolResult:
        """Refuse a call in a `before_tool_execution` hook: the tool does not run, and the model reads the reason.

        Example:
            >>> ToolResult.denied(ToolCall("1", "pay", "{}"), "not on Sundays").content
            '{"error":"not on Sundays","type":"Denied"}'
        """
        return cls.failure(call, 0, "denied", why, kind="Denied")  # the caller of the hook knows the position


def error_text(why: str, kind: str) -> str:
    """Return JSON for the model, `{"error": why, "type": kind}`; `why` is capped."""
    text: str = encodable(why if len(why) <= _ERROR_CHARS else f"{why[: _ERROR_CHARS - 1]}…")
    return to_json({"error": text, "type": kind}).decode()


def failure_of(error: BaseException, *, may_retry: bool = False) -> tuple[ToolOutcome, str]:
    """Return the outcome and the result text of a call that raised. Without `may_retry` a ModelRetry is any error.

    The text of a ModelRetry is the same each time, so that the progress guard recognizes a repetition.
    """
    if may_retry and isinstance(error, ModelRetry):
        return "retry", error_text(f"{why_of(error)}{_TRY_AGAIN}", "ModelRetry")
    if isinstance(error, BadArguments):
        return _REASONS.get(type(error), "invalid_args"), error_text(str(error), type(error).__name__)
    if isinstance(error, TimeLimitPassed):
        return "timeout", error_text(
            f"the tool gave {error}{_ABANDONED if error.abandoned else ''}", "Timeout"
        )
    return "error", error_text(why_of(error), type(error).__name__)


_REASONS: dict[type[BadArguments], ToolOutcome] = {
    DuplicateKeys: "duplicate_keys",
    UnstableArguments: "unstable_args",
}


def why_of(error: BaseException) -> str:
    """Return the message of an exception; for a group, the messages of its first leaves."""
    try:
        if not isinstance(error, BaseExceptionGroup):
            return str(error) or type(error).__name__
        leaves = itertools.islice(_leaves(error), _SHOWN_LEAVES)
        return f"{error.message}: {'; '.join(map(explain, leaves))}"
    except Exception:  # noqa: BLE001  an exception with a broken __str__ is still an answer
        return type(error).__name__


def explain(error: BaseException) -> str:
    """Return the type and message of an exception."""
    return f"{type(error).__name__}: {why_of(error)}"


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        yield from _leaves(error) if isinstance(error, BaseExceptionGroup) else (error,)


def shortened(value: object, limit: int, *, keep: bool) -> tuple[str, bool, str | None]:
    """Return the returned value of a tool as text, whether it was cut, and with `keep` the whole text if it was.

    Raises TypeError or ValueError if the value has no text form.
    """
    whole = value if type(value) is str else _serialised(value)
    shown, was_cut = cut(whole, limit)
    return _encodable(shown), was_cut, _encodable(whole) if was_cut and keep else None


def _encodable(text: str) -> str:
    return text if text.isascii() else str(encodable(text))


def _serialised(value: object) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if parts := returned_parts(value):
        return "\n".join(map(described, parts))
    if isinstance(value, bytes | bytearray | memoryview | Iterator):
        raise TypeError(f"the tool returned {type(value).__name__}; a result is text or a JSON value")
    return to_json(value, inf_nan_mode="strings").decode()


def cut(text: str, limit: int, more: str = "") -> tuple[str, bool]:
    """Return at most `limit` characters (0 = all), including the mark, and whether any are missing.

    The mark states the length: `… [cut: 12,345 of 98,765 characters]`. `more` is added to it; `{kept}` in it becomes
    the number of characters that are kept.
    """
    if not limit or len(text) <= limit:
        return text, False
    kept = max(0, limit - len(_mark(limit, len(text), more)))
    return f"{text[:kept]}{_mark(kept, len(text), more)}"[:limit], True


def _mark(kept: int, length: int, more: str) -> str:
    return f"… [cut: {kept:,} of {length:,} characters{more.replace('{kept}', str(kept))}]"
