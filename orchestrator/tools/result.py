"""Results of tool calls and their text for the model: capped, encodable, errors as JSON.

An agent that has the tool `read_result` stores the whole text of each result that is cut at `max_result_chars`, beside
its records. The text is not part of the messages, so neither requests nor context records grow with it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import orjson
from pydantic_core import to_json, to_jsonable_python

from orchestrator.errors import ModelRetry, ResultUnreadable, RunError
from orchestrator.kernel.cancellation import TimeLimitPassed
from orchestrator.kernel.fact import ToolError
from orchestrator.kernel.redaction import scrub
from orchestrator.kernel.value import value
from orchestrator.llm.message import Message, ToolCall, described, encodable, returned_parts
from orchestrator.tools.argument import BadArguments, DuplicateKeys, UnstableArguments
from orchestrator.tools.input_request import PersonNeeded

ToolOutcome: TypeAlias = Literal[
    "ok",
    "result_unreadable",
    "error",
    "timeout",
    "retry",
    "denied",
    "invalid_args",
    "duplicate_keys",
    "unstable_args",
    "cancelled",
]

RETURNED: Final = frozenset(("ok", "result_unreadable"))
"""Outcomes of calls whose tool returned: none of them is a failure, also if the result cannot be shown."""
READ_RESULT = "read_result"
"""Name of the tool that reads stored results below: with it, whole results are stored."""
_ERROR_CHARS = 2_000
_REPR_CHARS = 1_000
_TYPE_CHARS = 200
_ABANDONED = "; it did not stop when it was cancelled, was abandoned and may still be running"
_EFFECT_UNKNOWN = "; whether it took effect is not known"
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
    returned: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    """`description_of` a value that cannot be shown (`result_unreadable`)."""
    error: ToolError | None = field(default=None, compare=False, repr=False)
    """The exception that the tool raised (`error`)."""

    @property
    def is_error(self) -> bool:
        return self.outcome not in RETURNED

    def message(self) -> Message:
        """Return the tool message that answers the call."""
        said = list(self.parts) or self.content
        is_error = self.outcome not in RETURNED
        return Message("tool", said, (), self.call.id, self.call.name, None, None, is_error)

    def is_said_by(self, message: Message) -> bool:
        """Return whether a tool message equals `message()`, without building that message."""
        return (
            message.tool_call_id == self.call.id
            and message.content == (list(self.parts) or self.content)
            and message.name == self.call.name
            and message.is_error == (self.outcome not in RETURNED)
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


def failure_of(
    error: BaseException, *, may_retry: bool = False, may_repeat: bool = True
) -> tuple[ToolOutcome, str]:
    """Return the outcome and the result text of a call that raised. Without `may_retry` a ModelRetry is any error.

    Without `may_repeat`, a second run has another effect: of a call that had no time to answer, the model reads that it
    may have had its effect, because it would otherwise make a payment again.

    The text of a ModelRetry is the same each time, so that the progress guard recognizes a repetition.
    """
    if may_retry and isinstance(error, ModelRetry):
        return "retry", error_text(f"{why_of(error)}{_TRY_AGAIN}", "ModelRetry")
    if isinstance(error, ResultUnreadable):
        return "result_unreadable", unreadable_text(why_of(error))
    if isinstance(error, BadArguments):
        return _REASONS.get(type(error), "invalid_args"), error_text(str(error), type(error).__name__)
    if isinstance(error, TimeLimitPassed):
        unknown = _ABANDONED if error.abandoned else "" if may_repeat else _EFFECT_UNKNOWN
        return "timeout", error_text(f"the tool gave {error}{unknown}", "Timeout")
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


def unreadable_text(why: str) -> str:
    """Return JSON for the model about a call that ran and whose result cannot be shown; `why` is capped."""
    return to_json(unreadable_notice("tool", "call", why)).decode()


def unreadable_notice(what: str, repeated: str, why: str) -> dict[str, Any]:
    """Return the data for a model about a tool or stage that ran and whose result cannot be shown; `why` is capped."""
    said = why if len(why) <= _ERROR_CHARS else f"{why[: _ERROR_CHARS - 1]}…"
    notice = f"the {what} ran, but its result cannot be shown: {said}. Do not repeat the {repeated} for that reason."
    return {"ran": True, "notice": str(encodable(notice))}


def description_of(value: object) -> dict[str, str]:
    """Return `type` and start of the `repr` of a value without probable secrets, whatever its `repr` does."""
    try:
        # Scrubbed before it is cut, because half a secret is not recognized.
        text = scrub(repr(value))[:_REPR_CHARS]
    except Exception as error:  # noqa: BLE001 - a broken __repr__ is part of the value
        text = f"<no repr: {type(error).__name__}>"
    return {"type": _type_name(value), "repr": str(encodable(text))}


def _type_name(value: object) -> str:
    return str(encodable(type(value).__name__[:_TYPE_CHARS]))


class ShownResult(NamedTuple):
    """A returned value as the model reads it."""

    content: str
    cut: bool
    whole: str | None
    """The whole text if it was cut and is kept."""
    parts: tuple[dict[str, Any], ...]
    """Content parts, if the tool returned any."""


_shown: Callable[[tuple[Any, ...]], ShownResult] = partial(tuple.__new__, ShownResult)


def shown_result(value: object, limit: int, *, keep: bool) -> ShownResult:
    """Return the returned value of a tool as text of at most `limit` characters, and its content parts.

    Raises any error if the value has no text form: its own code can take part in the conversion.
    """
    parts: tuple[dict[str, Any], ...] = ()
    if type(value) is str:
        if value.isascii() and (not limit or len(value) <= limit):
            return _shown((value, False, None, ()))
        whole = value
    elif returned := returned_parts(value):
        whole = "\n".join(map(described, returned))
        parts = tuple(_shown_part(part, limit) for part in returned)
        orjson.dumps(parts)
    else:
        whole = _serialised(value)
    content, was_cut = cut(whole, limit)
    return ShownResult(_encodable(content), was_cut, _encodable(whole) if was_cut and keep else None, parts)


def _shown_part(part: Mapping[str, Any], limit: int) -> dict[str, Any]:
    shown = dict(part)
    if shown.get("type") == "text":
        shown["text"] = cut(str(shown["text"]), limit)[0]
    copied: dict[str, Any] = encodable(shown)
    return copied


def _encodable(text: str) -> str:
    return text if text.isascii() else str(encodable(text))


def _serialised(value: object) -> str:
    """Return a value as text. Text in nested data is made encodable, as a result that is text."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"the tool returned {type(value).__name__}; a result is text or a JSON value")
    try:
        orjson.dumps(value)
    except TypeError:  # a value of another kind, or text with lone surrogates
        value = json_data(value)
    return to_json(value, inf_nan_mode="strings").decode()


def stored_json(value: object) -> Any:
    """Return a value as JSON data that a record can hold; an object becomes its `str`, text is made encodable.

    Raises any error if there is no such form.
    """
    plain = json_data(value, str)
    orjson.dumps(plain)  # refuses a number beyond 64 bits
    return plain


def output_text(output: object) -> str:
    """Return the output of a run as text for another model. Raises ResultUnreadable."""
    if isinstance(output, str):
        return _encodable(output)
    try:
        return to_json(json_data(output, str), inf_nan_mode="strings").decode()
    except Exception as error:
        raise ResultUnreadable(no_json_form(output, error), output) from error


def no_json_form(value: object, error: BaseException) -> str:
    """Return why a value has no JSON form, as a clause."""
    return f"its type {_type_name(value)} has no JSON form ({why_of(error)})"


def json_data(value: object, fallback: Callable[[Any], Any] | None = None) -> Any:
    """Return a value as JSON data with encodable text; `fallback` converts an object that has none.

    Raises any error: code of the value can take part in the conversion.
    """
    _refuse_iterators(value)
    try:
        plain = to_jsonable_python(value, fallback=fallback)
    except UnicodeEncodeError:  # in the name of a member
        plain = to_jsonable_python(encodable(value), fallback=fallback)
    return encodable(plain)


def _refuse_iterators(value: object) -> None:
    """Raise TypeError for an iterator at any depth: it can be endless, and to read it runs code of the tool."""
    known: set[int] = set()
    left = [value]
    while left:
        present = left.pop()
        if isinstance(present, Iterator):
            raise TypeError(f"the tool returned {type(present).__name__}; a result is text or a JSON value")
        if isinstance(present, dict | list | tuple | set | frozenset | deque) and id(present) not in known:
            known.add(id(present))
            left += present.values() if isinstance(present, dict) else present


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


class NoSuchResult(RunError):
    """The run has no stored result with this handle."""


def mark_of(handle: str) -> str:
    """Return the hint in the mark of a cut result.

    Example:
        >>> mark_of("3:0")
        '; read_result(handle="3:0", start={kept}) reads on'
    """
    return f'; read_result(handle="{handle}", start={{kept}}) reads on'
