"""Read the answers of providers: their JSON, their streams of events, and how each server ends, breaks or fails one.

Answers are read as JSON, not as the SDK's types: those describe one vendor's answers, and compatible servers send
more members, fewer and different ones. If a required member is missing, `malformed` gives the error.

The SDK has a decoder too, but it does not distinguish the end of a stream (`[DONE]`) from a connection that closed
without an error, and it raises error objects itself, without their status. Lines are split on bytes: text has more
line ends than the format, and they may occur inside JSON.

Two lines that the format does not know are read, because servers report errors in them: a field `error` is an event
of that name, and JSON without a field name (a line that begins with a brace or a bracket, up to the empty line) is the
data of an event. An event without data is a keep-alive and is dropped.

| family | servers |
|---|---|
| CHAT | OpenAI's chat completions, and every server and gateway that implements them |
| RESPONSES | OpenAI's Responses API and its implementations |
| MESSAGES | Anthropic's Messages API and its implementations |
| LIBRARY | models of pydantic-ai: their libraries read the stream, the reasons of their vendors arrive unchanged |

Gateways translate the answer of any vendor into any family, and often pass on the words of the vendor. Therefore each
row has the words of all vendors, and its own forms.

A finish reason of `broken` is not an answer, whatever came with it: the model or the server failed, and the request is
retried or refused by the kind of the failure. An unknown reason is kept; if the answer has no content, it is
retried too, because servers invent reasons for failures and not for success. An empty reason, and the text `null`,
are none: some servers send one of them with each chunk.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
from pydantic_core import from_json

from orchestrator.errors import LLMError
from orchestrator.llm.message import Response, ToolCall, Usage, encodable, finish_word, kind_of
from orchestrator.llm.usage import is_amount

# ---- members of JSON from outside ----


class MalformedConversation(ValueError):
    """JSON that is not a conversation; the message is a sentence without the name of the file."""


def objects_in(raw: Mapping[str, Any], member: str) -> list[Mapping[str, Any]]:
    """Return a member that is a list of objects, or an empty list. Raises MalformedConversation for anything else."""
    value = raw.get(member) or []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise MalformedConversation(f"member {member!r} is not a list of objects")
    return value


def object_in(raw: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    """Return a member that is an object, or an empty one. Raises MalformedConversation for anything else."""
    value = raw.get(member) or {}
    if not isinstance(value, Mapping):
        raise MalformedConversation(f"member {member!r} is {json_type(value)}, not an object")
    return value


def check_text(raw: Mapping[str, Any], member: str, *, needed: bool = False) -> None:
    """Raise MalformedConversation unless a member is text, or null or absent if it is not `needed`."""
    value = raw.get(member)
    if not isinstance(value, str) and (needed or value is not None):
        raise MalformedConversation(f"member {member!r} is {json_type(value)}, not text")


def number_in(raw: Mapping[str, Any], member: str) -> float | None:
    """Return a member that is a number, or None if absent. Raises MalformedConversation for anything else."""
    value = raw.get(member)
    if not isinstance(value, int | float | None):
        raise MalformedConversation(f"member {member!r} is {json_type(value)}, not a number")
    return value


def token_count(value: object) -> int | None:
    """Return a number of tokens: a whole number, also as a float or as digits. None for anything else.

    Example:
        >>> token_count(12), token_count(12.0), token_count("12"), token_count(12.5), token_count(True)
        (12, 12, 12, None, None)
    """
    if isinstance(value, str):
        value = (
            int(value) if value.isascii() and value.isdecimal() and len(value) <= _MOST_TOKEN_DIGITS else None
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_TOKENS:
        return None
    return int(value) if value == int(value) else None


_MOST_TOKENS = 2**53
"""No token count is larger."""
_MOST_TOKEN_DIGITS = len(str(_MOST_TOKENS))


def json_type(value: object) -> str:
    """Return the name of a JSON value's type."""
    if value is None:
        return "null"
    names = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "an object")


# ---- answers ----

_MOST_DIGITS = 9


class RepeatedNames(dict[str, Any]):
    """A JSON object with a duplicate name. As a dict it has the last value; written as JSON it is the original."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        """Return all pairs as received: `json.dumps` writes these."""
        return self._pairs


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else RepeatedNames(pairs)


_DECODER = json.JSONDecoder(parse_constant=lambda _: None, object_pairs_hook=_members)


def parsed(content: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text. NaN and Infinity, which some servers write, become null.

    Some providers send the arguments of a call as an object, not as text. If it has a duplicate name, `arguments`
    writes the duplicate again, and the call is refused like one that arrived as text.

    Raises ValueError for invalid JSON, and for a number with more digits than Python reads; RecursionError for deep
    nesting.
    """
    if not isinstance(content, str):
        content = content.decode(json.detect_encoding(content), "surrogatepass")
    return _DECODER.decode(content.removeprefix("\ufeff"))


def malformed(why: str, partial: str = "", usage: Usage | None = None) -> LLMError:
    """Return the error of an invalid answer."""
    message = f"the provider sent no valid answer: {why}"
    return LLMError(message, kind="malformed", partial=partial, usage=usage)


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Mapping[str, Any]]:
    """Return the JSON objects in a list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def text_or_none(value: object) -> str | None:
    """Return text that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def text(value: object) -> str:
    """Return text, empty for anything else."""
    return value if isinstance(value, str) else ""


def usage(value: object) -> Usage | None:
    """Return the usage of an answer in any form of OpenAI's family; None if it does not have both counts.

    Some servers omit the output tokens of an answer without text, and give the total.
    """
    if not isinstance(value, Mapping) or not value:
        return None
    raw = {
        name: member
        for name, member in value.items()
        if name != "cost" and (not name.endswith("_details") or isinstance(member, Mapping))
    }
    found = usage_from(raw, _cost(value.get("cost")))
    output = (token_count(raw.get(name)) for name in ("completion_tokens", "output_tokens"))
    if any(count is not None for count in output):
        return found
    total = token_count(raw.get("total_tokens"))
    return None if total is None else replace(found, output_tokens=max(0, total - found.input_tokens))


def usage_from(raw: Mapping[str, Any], cost: float | None = None) -> Usage:
    """Read the usage of a reply in any provider's form; missing numbers count as 0.

    OpenAI's input tokens include the cached ones, in both its forms. Anthropic reports them separately from the
    input.
    """
    into = object_in(raw, "prompt_tokens_details") or object_in(raw, "input_tokens_details")
    out = object_in(raw, "completion_tokens_details") or object_in(raw, "output_tokens_details")
    beside = _first(raw, "cache_read_input_tokens", "input_tokens_cache_read")
    written = _first(raw, "cache_creation_input_tokens", "input_tokens_cache_write")
    return Usage(
        _first(raw, "prompt_tokens") or _first(raw, "input_tokens") + beside + written,
        _first(raw, "completion_tokens", "output_tokens"),
        _first(into, "cached_tokens")
        or beside
        or _first(raw, "prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens"),
        _first(out, "reasoning_tokens") or _first(raw, "reasoning_tokens"),
        number_in(raw, "cost") if cost is None else cost,
        cache_write_tokens=written,
    )


def _first(raw: Mapping[str, Any], *members: str) -> int:
    """Return the first of these members that is a count of tokens other than 0, else 0."""
    return next((count for member in members if (count := token_count(raw.get(member)))), 0)


def _cost(value: object) -> float | None:
    """Return the cost that a server reports: a number (OpenRouter), or an object with the total (Perplexity)."""
    cost = value.get("total_cost") if isinstance(value, Mapping) else value
    return cost if is_amount(cost) else None


def is_reported(response: Response) -> bool:
    """Return whether the usage of an answer can be true: every request has input, every text and call is output."""
    reported = response.usage
    if reported is None or not reported.input_tokens:
        return False
    return bool(reported.output_tokens or not (response.content or response.tool_calls or response.reasoning))


def position_of(value: object) -> int | None:
    """Return an index, which some servers write as text; None for anything else."""
    if isinstance(value, str) and value.isdecimal() and value.isascii():
        return int(value) if len(value) <= _MOST_DIGITS else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def arguments(value: object) -> str:
    """Return the arguments of a call as JSON text: as received, empty for null; an object is written as text."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def argument_object(given: str) -> dict[str, Any]:
    """Return the arguments of a call as an object, for any text of the model; `unparsed_arguments` has other text."""
    text = given.strip()
    if text in ("", "null"):
        return {}
    try:
        value = from_json(text, allow_inf_nan=False)
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"unparsed_arguments": given}


def sendable_arguments(given: str) -> str:
    """Return the arguments of a call as the text of an object: as written, if they are one.

    vLLM, SGLang, llama.cpp and Ollama read the arguments of the whole history, and refuse the request for any other.
    """
    try:
        is_object = isinstance(from_json(given, allow_inf_nan=False), dict)
    except (TypeError, ValueError):  # TypeError: text without a UTF-8 form
        is_object = False
    return given if is_object else json.dumps(argument_object(given), ensure_ascii=False)


def tool_call(id_: object, name: object, given: object) -> ToolCall:
    """Return a call from its parts in a provider's answer."""
    return ToolCall(text(id_), text(name), arguments(given))


def parts_of(value: object) -> list[Mapping[str, Any]]:
    """Return the parts of a content. Raises LLMError for a part whose type is not a word."""
    parts = objects(value)
    for part in parts:
        if not isinstance(part.get("type", ""), str):
            raise malformed("a part of its content has a type that is not a word")
    return parts


def merged(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts with adjacent texts joined: Anthropic splits a sentence where it cites."""
    found: list[dict[str, Any]] = []
    for is_text, group in itertools.groupby(parts, lambda part: part.get("type") == "text"):
        together = list(group)
        found += [_one_text(together)] if is_text else together
    return found


def _one_text(parts: list[dict[str, Any]]) -> dict[str, Any]:
    if len(parts) == 1:
        return parts[0]
    cited = [citation for part in parts for citation in part.get("citations") or ()]
    members = {name: value for part in reversed(parts) for name, value in part.items()}
    said = "".join(text(part.get("text")) for part in parts)
    return {**members, "text": said, **({"citations": cited} if cited else {})}


def storable(response: Response) -> Response:
    """Return an answer that a journal can store. Raises LLMError for parts with deep nesting or too large numbers.

    Parts are stored unchanged; everything else is text and counts.
    """
    if isinstance(response.content, list):
        try:
            orjson.dumps(encodable(response.content))
        except (TypeError, RecursionError) as error:
            raise malformed(f"its content cannot be stored ({error})") from error
    return response


_LINE_END = re.compile(rb"\r\n|\n|\r")
_FIELDS = frozenset(("data", "event", "error", "id", "retry", ""))
"""The names of fields; the empty one is that of a comment."""
_JSON = (b"{", b"[")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One event. `name` is empty if the stream gives none."""

    name: str
    data: str


class EventTooLarge(ValueError):
    """One event has more bytes than the decoder accepts; `limit` is that number."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"one event of the stream has more than {limit:,} bytes")
        self.limit = limit


class EventDecoder:
    """Decodes bytes as they arrive; each call yields the complete events.

    `limit` is the maximum bytes of one event; 0 is no limit. Raises EventTooLarge and UnicodeDecodeError.
    """

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._line = bytearray()
        """The unfinished line. Each byte is scanned once, when it arrives, and copied into this buffer."""
        self._size = 0
        self._name = ""
        self._data: list[str] = []
        self._unframed = False
        """The lines of the event are JSON without field names."""
        self._begun = False
        self._after_return = False

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events that end in this chunk."""
        if not self._begun:
            chunk = bytes(self._line) + chunk
            if _BYTE_ORDER_MARK.startswith(chunk):
                self._line[:] = chunk
                return
            self._line.clear()
            chunk, self._begun = chunk.removeprefix(_BYTE_ORDER_MARK), True
        if self._after_return and chunk:
            chunk, self._after_return = chunk.removeprefix(b"\n"), False  # the other half of a line end
        *lines, rest = _LINE_END.split(chunk)
        for line in lines:
            self._keep(line)
            yield from self._ended_line()
        self._keep(rest)
        self._after_return = self._after_return or chunk.endswith(b"\r")

    def finish(self) -> Iterator[ServerSentEvent]:
        """Yield an event that lacks only its empty line. Half a line is lost: the connection was cut in it.

        The end mark and JSON without a field name need no line end; JSON that was cut is invalid.
        """
        if (
            self._unframed
            or self._line[:1] in _JSON
            or self._line.removeprefix(b"data:").strip() == b"[DONE]"
        ):
            yield from self._ended_line()
        self._line.clear()
        yield from self._ended_line()

    def _keep(self, piece: bytes) -> None:
        self._line += piece
        self._size += len(piece)
        if 0 < self._limit < self._size:
            raise EventTooLarge(self._limit)

    def _ended_line(self) -> Iterator[ServerSentEvent]:
        size, line = len(self._line), self._line.decode()
        self._line.clear()
        if not line:
            yield from self._ended_event()
            return
        field, _, value = line.partition(":")
        if field not in _FIELDS and (self._unframed or line[0] in "{["):
            if not self._unframed:
                yield from self._ended_event(size)
                self._unframed = True
            self._data.append(line)
            return
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "error":
            yield from self._ended_event(size)
            self._name = field
            self._data.append(value)
        else:
            self._size -= size  # a comment or an id: ignored

    def _ended_event(self, size: int = 0) -> Iterator[ServerSentEvent]:
        """Yield the event unless it has no data; `size` is the bytes of the line that begins another one."""
        data = "\n".join(self._data)
        if data.strip():
            yield ServerSentEvent(self._name, data)
        self._name, self._data, self._size, self._unframed = "", [], size, False


Path: TypeAlias = tuple[str | int, ...]


class AnswerSignals(NamedTuple):
    """The row of a family."""

    end_mark: str
    """Data of an event that ends the answer; empty if the family has no such mark."""
    end_events: frozenset[str]
    """Types of the events that end the answer."""
    members: frozenset[str]
    """An answer, and each event of a stream, has one of these. Any other object with a message is an error."""
    errors: tuple[Path, ...]
    """Where an answer or an event holds an error."""
    broken: Mapping[str, str]
    """Finish reason of an answer that failed, in lower case -> kind of the failure."""


_BROKEN: Final[Mapping[str, str]] = {
    "error": "server_error",  # OpenRouter, Mistral, Cohere, pydantic-ai
    "failed": "server_error",
    "abort": "server_error",  # vLLM, SGLang
    "insufficient_system_resource": "server_error",  # DeepSeek
    "network_error": "server_error",  # Z.ai
    "malformed_function_call": "malformed",  # Gemini, like the next ones
    "unexpected_tool_call": "malformed",
    "too_many_tool_calls": "malformed",
    "malformed_response": "malformed",
    "missing_thought_signature": "client_error",
    "malformed_tool_use": "malformed",  # Bedrock
    "malformed_model_output": "malformed",
}
_ERRORS: Final[tuple[Path, ...]] = (
    ("error",),
    ("errors", 0),  # Cloudflare
    ("base_resp",),  # MiniMax: an error unless its status_code is 0
)

CHAT: Final = AnswerSignals(
    end_mark="[DONE]",
    end_events=frozenset(),
    members=frozenset(("choices", "usage")),
    errors=(*_ERRORS, ("x_groq", "error"), ("choices", 0, "error")),  # the last one of OpenRouter
    broken=_BROKEN,
)
RESPONSES: Final = AnswerSignals(
    end_mark="",  # compatible servers send [DONE] too, also after a failure
    end_events=frozenset(
        ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
    ),
    members=frozenset(("type", "output", "response")),
    errors=(*_ERRORS, ("response", "error")),
    broken=_BROKEN,
)
MESSAGES: Final = AnswerSignals(
    end_mark="[DONE]",  # of proxies, after `message_stop` or in its place
    end_events=frozenset(("message_stop",)),
    members=frozenset(("type", "content")),
    errors=(*_ERRORS, ("message", "error")),
    broken=_BROKEN,
)
LIBRARY: Final = AnswerSignals(
    end_mark="", end_events=frozenset(), members=frozenset(), errors=(), broken=_BROKEN
)

_STATUS_OF_MINIMAX: Final[Mapping[object, str]] = {
    1001: "timeout_error",
    1002: "rate_limit_error",
    1004: "authentication_error",
    1008: "insufficient_quota",
    1026: "content_filter",
    1027: "content_filter",
    1039: "rate_limit_error",
    1041: "rate_limit_error",
    2013: "invalid_request_error",
    2045: "rate_limit_error",
    2049: "invalid_api_key",
    2056: "insufficient_quota",
}
"""`base_resp.status_code` -> the usual word for it; another number is a failure of the server."""


def error_of(body: object, signals: AnswerSignals) -> object:
    """Return the body of an error that an answer, or an event of a stream, holds; None if it holds none."""
    if isinstance(body, list):
        return error_of(body[0], signals) if len(body) == 1 else None
    if not isinstance(body, Mapping):
        return None
    if "error" in (body.get("type"), body.get("object")):
        return body
    for path in signals.errors:
        if problem := _at(body, path):
            if path != ("base_resp",):
                return body if path == ("error",) else {"error": problem}
            if (status := mapping(problem).get("status_code")) not in (0, "0", None):
                said = text(mapping(problem).get("status_msg")) or f"status {status}"
                return {"error": {"code": _STATUS_OF_MINIMAX.get(status), "message": said}}
    says = any(text(body.get(name)) for name in ("message", "detail", "msg"))
    return body if says and signals.members.isdisjoint(body) else None


def _at(body: object, path: Path) -> object:
    for step in path:
        if isinstance(step, int):
            body = body[step] if isinstance(body, list) and len(body) > step else None
        else:
            body = mapping(body).get(step)
    return body


def finish_reason(value: object) -> str | None:
    """Return the finish reason of an answer or a chunk as received; None if there is none yet."""
    return value if isinstance(value, str) and value.strip() not in ("", "null") else None


def checked(response: Response, signals: AnswerSignals) -> Response:
    """Return an answer that ended. Raises LLMError if its finish reason says that it broke off.

    An answer of an unknown reason is one if it has content.
    """
    reason = response.finish_reason
    if reason is None:
        return response
    word = finish_word(reason) or ""
    kind = signals.broken.get(word.lower())
    if kind is not None:
        message = f"the provider aborted its answer (finish reason {reason[:_SHOWN]!r})"
        raise LLMError(message, kind=kind, partial=response.message().text, usage=response.usage)
    if word == "_other" and _is_empty(response):
        empty = f"it is empty, and its finish reason {reason[:_SHOWN]!r} is unknown"
        raise malformed(empty, usage=response.usage)
    return response


_SHOWN: Final = 100


def _is_empty(response: Response) -> bool:
    """Return whether an answer has nothing for a person or a tool; reasoning alone is nothing."""
    if response.tool_calls or response.refusal or response.message().text.strip():
        return False
    parts: list[dict[str, Any]] = response.content if isinstance(response.content, list) else []
    return all(kind_of(part) in (None, "text") for part in parts)
