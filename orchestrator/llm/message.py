"""Values that are sent to a model and returned by it. They are frozen and only translate to OpenAI's chat form.

A content part (text, image, file, audio) has the form of OpenAI's chat API, in which it is journalled; the adapters
translate it. A tool that returns a part, or a list of parts and texts, gives them to the model as they are. Bytes
become base64 within the part.

    message = Message("user", [text_part("What is this?"), image_part(png, "image/png")])

A `Response` keeps the vendor's word for the end of the answer, because logs and spans are compared with the vendor's
own documents. Decisions read the closed vocabulary, which is that of OpenTelemetry's GenAI conventions with a word
for a refusal.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, overload

from orchestrator.errors import ConfigError
from orchestrator.kernel.value import value
from orchestrator.llm.usage import NO_USAGE as NO_USAGE  # noqa: PLC0414 - part of this module
from orchestrator.llm.usage import Usage as Usage  # noqa: PLC0414

if TYPE_CHECKING:
    from orchestrator.kernel.cancellation import TimeLimit


class FinishReason(StrEnum):
    """The closed vocabulary."""

    STOP = "stop"
    """The model ended its answer."""
    TOOL_CALL = "tool_call"
    """The model calls tools."""
    LENGTH = "length"
    """The output limit or the context window cut the answer."""
    CONTENT_FILTER = "content_filter"
    """A filter of the vendor cut or blocked the answer."""
    REFUSAL = "refusal"
    """The model refused."""
    ERROR = "error"
    """The vendor aborted the answer."""
    OTHER = "other"
    """A word that no known vendor uses, or one that says neither that the answer is complete nor that it was cut."""


_WORDS: Mapping[FinishReason, tuple[str, ...]] = {
    FinishReason.STOP: (
        *("stop", "end_turn", "stop_sequence", "completed", "complete", "eos", "eos_token", "end", "normal"),
    ),
    FinishReason.TOOL_CALL: ("tool_calls", "tool_call", "tool_use", "function_call"),
    FinishReason.LENGTH: (
        *("length", "max_tokens", "max_output_tokens", "max_length", "model_length", "incomplete"),
        *("model_context_window_exceeded", "context_length_exceeded"),
    ),
    FinishReason.CONTENT_FILTER: (
        *("content_filter", "content_filtered", "guardrail_intervened", "sensitive", "safety"),
        *("image_safety", "recitation", "blocklist", "prohibited_content", "spii", "language", "model_armor"),
    ),
    FinishReason.REFUSAL: ("refusal",),
    FinishReason.ERROR: (
        *("error", "failed", "abort", "network_error", "insufficient_system_resource"),
        *("malformed_function_call", "unexpected_tool_call", "too_many_tool_calls", "malformed_response"),
        *("missing_thought_signature", "malformed_tool_use", "malformed_model_output"),
    ),
    FinishReason.OTHER: ("pause_turn",),
}
_OF_WORD = {word: reason for reason, words in _WORDS.items() for word in words}

FINISH_REASONS = frozenset(_OF_WORD)
"""The words that known vendors give for the end of an answer, in lower case."""

INCOMPLETE: Mapping[FinishReason | None, str] = {
    FinishReason.LENGTH: "truncated",
    FinishReason.CONTENT_FILTER: "filtered",
    FinishReason.REFUSAL: "refused",
}
"""The finish reasons of an answer that is not complete -> the reason of a run that ends with it."""


def finish_reason_of(word: str | None, refusal: str | None = None) -> FinishReason | None:
    """Return the finish reason of an answer, or None if the vendor gave none.

    Args:
        word: The vendor's word, in any case.
        refusal: The text with which the model refused. Some vendors give `stop` for such an answer.
    """
    if refusal:
        return FinishReason.REFUSAL
    if not word:
        return None
    return _OF_WORD.get(word) or _OF_WORD.get(_plain(word), FinishReason.OTHER)


def finish_word(reason: object) -> str | None:
    """Return the known word in a reason, None for None, and `_other` for any other text from outside."""
    if reason is None or not isinstance(reason, str):
        return None if reason is None else "_other"
    word = reason if reason.lower() in FINISH_REASONS else _plain(reason)
    return word if word.lower() in FINISH_REASONS else "_other"


def _plain(word: str) -> str:
    """Return a word in lower case, without what a gateway writes before it (`filter: SAFETY`)."""
    return word.rpartition(":")[2].strip().lower()


PartKind: TypeAlias = Literal["text", "image", "file", "audio"]
KINDS: Final[tuple[PartKind, ...]] = ("text", "image", "file", "audio")

CITATIONS: Final = frozenset(("reference", "tool_reference"))
"""Types of the parts that Mistral puts inside a sentence, and no other API accepts."""
OPAQUE: Final = frozenset(("reasoning", "thinking", "redacted_thinking", "pydantic_ai", "openai_chat"))
"""Types of the parts that only the API that made them accepts back; the adapters of other vendors leave them out."""

_TYPES: Mapping[str, PartKind] = {
    "text": "text",
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "file": "file",
    "input_file": "file",
    "document": "file",
    "input_audio": "audio",
}
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+")
_SHOWN = 200


class ContentPart(dict[str, Any]):
    """One part, a dict in the form of OpenAI's chat API; made by the functions of this module."""


def text_part(text: str) -> ContentPart:
    """Return a part of text."""
    return ContentPart(type="text", text=text)


def image_part(source: bytes | str, media_type: str | None = None) -> ContentPart:
    """Return an image: bytes with their media type (`image/png`), or its address. Raises ConfigError."""
    return ContentPart(type="image_url", image_url={"url": _url(source, media_type)})


def file_part(source: bytes, media_type: str, filename: str) -> ContentPart:
    """Return a file: its bytes, media type (`application/pdf`) and name. Raises ConfigError."""
    return ContentPart(type="file", file={"file_data": _url(source, media_type), "filename": filename})


def audio_part(source: bytes, encoding: Literal["wav", "mp3"]) -> ContentPart:
    """Return a recording: its bytes and their encoding."""
    return ContentPart(
        type="input_audio", input_audio={"data": b64encode(source).decode(), "format": encoding}
    )


def kind_of(part: Mapping[str, Any]) -> PartKind | None:
    """Return the kind of a part in any vendor's form; None for other parts, such as reasoning."""
    return _TYPES.get(str(part.get("type")))


def data_of(url: str) -> tuple[str, str] | None:
    """Return media type and base64 text of a data URL; None for any other text."""
    found = _DATA_URL.fullmatch(url)
    return None if found is None else (found[1], found[2])


def returned_parts(value: object) -> list[ContentPart]:
    """Return the parts that a tool returned: a part, or a list of texts and at least one part. Else nothing."""
    if isinstance(value, ContentPart):
        return [value]
    if not isinstance(value, list | tuple) or not all(isinstance(one, str | ContentPart) for one in value):
        return []
    if not any(isinstance(one, ContentPart) for one in value):
        return []
    return [text_part(one) if isinstance(one, str) else one for one in value]


def described(part: Mapping[str, Any]) -> str:
    """Return the text of a text part; for another part its kind, type, size and digest, so that changes show."""
    kind = kind_of(part)
    if kind == "text":
        return str(part["text"])
    body = part[part["type"]]
    source = str(body.get("url") or body.get("file_data") or body.get("data") or "")
    data = data_of(source)
    if data is None and kind != "audio":
        return f"[{kind} {source[:_SHOWN]}]"
    media, encoded = data or (f"audio/{body.get('format')}", source)
    content = b64decode(encoded)
    name = f" {body['filename']}" if "filename" in body else ""
    return f"[{kind}{name} {media}, {len(content):,} bytes, sha256 {sha256(content).hexdigest()[:16]}]"


def _url(source: bytes | str, media_type: str | None) -> str:
    if isinstance(source, str):
        return source
    if media_type is None or not _MEDIA_TYPE.fullmatch(media_type):
        raise ConfigError(f"media_type is {media_type!r}; bytes need one, for example 'image/png'")
    return f"data:{media_type};base64,{b64encode(source).decode()}"


Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
Content: TypeAlias = str | list[dict[str, Any]] | None
"""Text, OpenAI content parts that are passed through unchanged, or nothing."""


@value(frozen=True, slots=True)
class ToolCall:
    """One call that a model requested. Ids repeat and can be empty: a call is identified by (turn, position).

    Example:
        >>> ToolCall("call_1", "search", '{"query": "fsm"}').name
        'search'
    """

    id: str
    name: str
    arguments: str = "{}"
    """The JSON text exactly as received; it may be empty, `null`, cut off or not an object."""

    def to_openai(self) -> dict[str, Any]:
        """Return the call in OpenAI chat form."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }

    @classmethod
    def from_openai(cls, raw: Mapping[str, Any]) -> ToolCall:
        """Read a call in OpenAI chat form; missing members become empty text."""
        function = raw.get("function") or {}
        arguments = function.get("arguments")
        return cls(raw.get("id") or "", function.get("name") or "", "" if arguments is None else arguments)


@value(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Example:
        >>> Message("user", "Hello").to_openai()
        {'role': 'user', 'content': 'Hello'}
    """

    role: Role
    content: Content = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    is_error: bool = False
    """A tool message whose call failed."""

    @property
    def text(self) -> str:
        """The content as plain text: text parts joined by line breaks, without the other parts.

        A text after a citation continues its sentence, so that no line break stands between them.
        """
        if isinstance(self.content, str):
            return self.content
        pieces: list[str] = []
        cited = False
        for part in self.content or ():
            if part.get("type") == "text":
                pieces += ("" if cited or not pieces else "\n", str(part["text"]))
            cited = part.get("type") in CITATIONS
        return "".join(pieces)

    def to_openai(self, *, strict: bool = False) -> dict[str, Any]:
        """Return OpenAI chat form. `strict` omits the members that OpenAI itself does not know."""
        raw: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            raw["tool_calls"] = list(map(ToolCall.to_openai, self.tool_calls))
        if self.tool_call_id is not None:
            raw["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            raw["name"] = self.name
        if self.refusal is not None:
            raw["refusal"] = self.refusal
        if strict:
            return raw
        if self.reasoning is not None:
            raw["reasoning_content"] = self.reasoning
        if self.is_error:
            raw["is_error"] = True
        return raw

    @classmethod
    def from_openai(cls, raw: Mapping[str, Any]) -> Message:
        """Read a message in OpenAI chat form. Raises ValueError on an unknown role."""
        role = raw.get("role")
        if role not in _ROLES:
            raise ValueError(f"unknown role {role!r}; known: {', '.join(sorted(_ROLES))}")
        get = raw.get
        return cls(
            role,
            get("content"),
            tuple(map(ToolCall.from_openai, get("tool_calls") or ())),
            get("tool_call_id"),
            get("name"),
            get("refusal"),
            get("reasoning_content"),
            bool(get("is_error", False)),
        )


_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))


class Transcript(Sequence[Message]):
    """A read-only view of fixed length over an append-only message list.

    A request shows the model every earlier message. A copy of that list in each turn would make turn 1,000 slower
    than turn 50, so a request has this view instead. Later appends are invisible to it. Only this request sees
    `tail`, which never becomes history.
    """

    __slots__ = ("_items", "_length", "_tail")

    def __init__(self, items: list[Message], tail: tuple[Message, ...] = ()) -> None:
        self._items = items
        self._length = len(items)
        self._tail = tail

    def __len__(self) -> int:
        return self._length + len(self._tail)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(index, slice):
            return (*self._items[: self._length], *self._tail)[index]
        size = len(self)
        position = index + size if index < 0 else index
        if not 0 <= position < size:
            raise IndexError(index)
        return self._items[position] if position < self._length else self._tail[position - self._length]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(ours == theirs for ours, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def views(self, items: list[Message]) -> bool:
        """Return whether this view shows the first messages of exactly that list."""
        return self._items is items

    def __repr__(self) -> str:
        return f"Transcript({len(self)} messages)"


def encodable(value: Any) -> Any:
    """Return text or JSON data without lone surrogates: UTF-8 cannot encode them for the journal or a request."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, list | tuple):
        return [encodable(one) for one in value]
    if isinstance(value, dict):
        return {encodable(name): encodable(one) for name, one in value.items()}
    return value


@value(frozen=True, slots=True)
class Response:
    """One answer of a model.

    Example:
        >>> Response("Hi").message().role
        'assistant'
    """

    content: Content = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    """The vendor's word for the end of the answer; `finish` is ours."""
    usage: Usage | None = field(default=NO_USAGE, metadata={"fingerprint": ("usage", "Usage")})
    """None if the server did not report it: limits then count an estimate. `Usage()` is an answer without tokens."""
    model: str | None = None
    refusal: str | None = None
    reasoning: str | None = None

    @property
    def finish(self) -> FinishReason | None:
        """The reason why the answer ended, in the closed vocabulary; None if the vendor gave none."""
        return finish_reason_of(self.finish_reason, self.refusal)

    def message(self) -> Message:
        """Return the assistant message that this response becomes in the transcript."""
        return Message("assistant", self.content, self.tool_calls, None, None, self.refusal, self.reasoning)

    def encodable(self) -> Response:
        """Return the answer with text that can be stored and sent; returns `self` if all of it is ASCII."""
        texts = [self.content, self.refusal, self.reasoning, self.model, self.finish_reason]
        for call in self.tool_calls:
            texts += (call.id, call.name, call.arguments)
        for text in texts:
            if text and not (type(text) is str and text.isascii()):
                break
        else:
            return self
        calls = tuple(
            ToolCall(encodable(call.id), encodable(call.name), encodable(call.arguments))
            for call in self.tool_calls
        )
        return replace(
            self,
            content=encodable(self.content),
            tool_calls=calls,
            finish_reason=encodable(self.finish_reason),
            model=encodable(self.model),
            refusal=encodable(self.refusal),
            reasoning=encodable(self.reasoning),
        )


class ToolOffer(Protocol):
    """The description of a tool that a model receives; `ToolSpec` is one."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...


class ReasoningPiece(NamedTuple):
    """A piece of the model's reasoning, as it is streamed."""

    text: str


class ArgumentsPiece(NamedTuple):
    """A piece of the arguments of a tool call, as it is streamed."""

    position: int
    """Position of the call in the answer, from 0."""
    tool: str
    text: str


@value(frozen=True, slots=True)
class Request:
    """One request to a model.

    Example:
        request = Request([Message("user", "Hello")], params={"temperature": 0})
        response = await llm.complete(request)
    """

    messages: Sequence[Message]
    tools: tuple[ToolOffer, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or a tool's name."""
    output_schema: Mapping[str, Any] | None = None
    """JSON schema that the final answer must match, or None for free text."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters, passed to the provider unchanged."""
    on_delta: Callable[[str], None] | None = None
    """Receives each piece of text on the event loop while the run has a reader; None without a reader."""
    on_piece: Callable[[ReasoningPiece | ArgumentsPiece], None] | None = None
    """Receives the other pieces of the answer in the same way."""
    route: Route | None = field(default=None, compare=False, repr=False)
    """Receives the actions of policies around the model, for the caller."""


@dataclass(slots=True)
class Route:
    """The actions of policies around a model (rate limiter, fallback) in one try of a request."""

    model: str | None = None
    """Configured name of the requested model, if there are several."""
    queued: float | None = None
    """Seconds that the request waited for rate limiters; None without one."""
    waiting: bool = False
    """The request waits for a rate limiter, so it was not sent."""
    since: float | None = None
    """Start of the try by the monotonic clock of the run; None between two tries."""
    limit: TimeLimit | None = None
    """The time limit of this try, in which the wait for a rate limiter does not count."""
    server: tuple[str, int] | None = None
    """Host and port of the server that was asked."""
    response_id: str | None = None
    """Id of the answer at its server."""

    def in_flight(self, now: float) -> float | None:
        """Return the seconds since the request was sent; None if it was not, or if its try is over."""
        return (
            None if self.since is None or self.waiting else max(0.0, now - self.since - (self.queued or 0.0))
        )

    def take(self) -> Route:
        """Return what the finished try did, and reset it for the next one."""
        taken = Route(self.model, self.queued, server=self.server, response_id=self.response_id)
        self.model = self.queued = self.server = self.response_id = None
        return taken


def input_bound(messages: Iterable[Message], tools: Iterable[ToolOffer] = ()) -> int:
    """Return an upper estimate of the tokens in messages and tools: one for every two bytes of text."""
    said = sum(len(offer.description) + len(str(offer.parameters)) for offer in tools)
    said += sum(len(message.text.encode(errors="replace")) for message in messages)
    return (said + 1) // 2


def output_estimate(response: Response) -> int:
    """Return an upper estimate of the tokens of an answer from what arrived of it: one for every two bytes of text."""
    message = response.message()
    texts = [message.text, message.refusal or "", message.reasoning or ""]
    texts += (f"{call.name}{call.arguments}" for call in message.tool_calls)
    return (sum(len(text.encode(errors="replace")) for text in texts) + 1) // 2


def input_most(request: Request, known: int = 0, start: int = 0) -> int | None:
    """Return the maximum number of tokens in a request: one per byte of its text. None if a part is not text.

    `known` is the bound of the first `start` messages, the tools and the output schema, if the caller has one.
    """
    most = known
    for message in request.messages[start:]:
        parts = message.content if isinstance(message.content, list) else ()
        if any(part.get("type") != "text" and part.get("type") not in OPAQUE for part in parts):
            return None
        most += len(str(message.to_openai()).encode(errors="replace"))
    if start:
        return most
    for offer in request.tools:
        most += len(f"{offer.name}{offer.description}{offer.parameters}".encode(errors="replace"))
    if request.output_schema is not None:
        most += len(str(request.output_schema).encode(errors="replace"))
    return most + _PREAMBLE


def output_limit(params: Mapping[str, Any]) -> int:
    """Return `max_tokens` or a synonym from the parameters of a request; 0 if they do not limit the answer."""
    return next((int(params[name]) for name in OUTPUT_LIMITS if params.get(name)), 0)


def output_bound(params: Mapping[str, Any]) -> int:
    """Return the maximum tokens of an answer: `max_tokens` or a synonym from the parameters, else 4,096."""
    return output_limit(params) or _ANSWER


OUTPUT_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""The parameters that limit the tokens of an answer."""
_ANSWER = 4096
_PREAMBLE = 1024
"""Tokens that a provider may add to a request: instructions for tool calls, the form of the answer."""
