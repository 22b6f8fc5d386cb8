"""Values that are sent to a model and returned by it. They are frozen and only translate to OpenAI's chat form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, overload

from orchestrator.kernel.value import value
from orchestrator.llm.content_part import CITATIONS, OPAQUE
from orchestrator.llm.finish_reason import FinishReason, finish_reason_of
from orchestrator.llm.usage import NO_USAGE as NO_USAGE  # noqa: PLC0414 - part of this module
from orchestrator.llm.usage import Usage as Usage  # noqa: PLC0414

if TYPE_CHECKING:
    from orchestrator.kernel.cancellation import TimeLimit

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
        return cls(
            role=role,
            content=raw.get("content"),
            tool_calls=tuple(ToolCall.from_openai(call) for call in raw.get("tool_calls") or ()),
            tool_call_id=raw.get("tool_call_id"),
            name=raw.get("name"),
            refusal=raw.get("refusal"),
            reasoning=raw.get("reasoning_content"),
            is_error=bool(raw.get("is_error", False)),
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

    def in_flight(self, now: float) -> float | None:
        """Return the seconds since the request was sent; None if it was not, or if its try is over."""
        return (
            None if self.since is None or self.waiting else max(0.0, now - self.since - (self.queued or 0.0))
        )

    def take(self) -> tuple[str | None, float | None]:
        """Return model and wait of the finished try, and reset both for the next one."""
        taken = self.model, self.queued
        self.model = self.queued = None
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
