"""Common base of the models behind a vendor's library: their checks, the life of their clients, masked secrets.

A name that the SDK of the vendor does not know is an error: providers ignore a misspelt parameter, or refuse the
request in words of their own. Parameters that only another server knows, or that are newer than the SDK, belong into
`extra_body`, as in the SDKs. To pass every unknown name was rejected: `temprature=0` then works and changes nothing.

- Anthropic caches up to a block with `cache_control`. Two blocks get it: the end of `system`, which all
  conversations of an agent share, and the end of the last message, from which the next turn continues. If the host
  marks blocks itself, nothing is added.
- OpenAI caches without a hint, and sends requests with the same `prompt_cache_key` to the same machine. The key is a
  digest of the messages up to the first of the user: the same in every turn of a run, also after a resume.

Gemini and others cache without hints. Hints are only for the vendor's own service: compatible servers refuse them.

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

The SDK of an `SdkModel` does transport, authentication and addresses, with its retries off. An `ApiForm` builds
requests and reads answers; `fault` classifies failures. Answers are read raw: as JSON, or as the bytes of a stream.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from hashlib import sha256
from typing import Any, ClassVar, Final, Protocol, Self

from pydantic import SecretStr

from orchestrator.errors import ConfigError, LLMError
from orchestrator.llm.message import (
    KINDS,
    ArgumentsPiece,
    Message,
    PartKind,
    ReasoningPiece,
    Request,
    Response,
    ToolCall,
    kind_of,
)
from orchestrator.providers import fault
from orchestrator.providers.connection import (
    LoopClients,
    SecretMask,
    body_of,
    check_limit,
    secrets_of_address,
    secrets_of_environment,
    secrets_of_headers,
    server_of_address,
    short_errors,
    too_large,
    watch_errors,
)
from orchestrator.providers.reading import (
    AnswerSignals,
    EventDecoder,
    EventTooLarge,
    ServerSentEvent,
    error_of,
    is_reported,
    malformed,
    parsed,
    storable,
)

EXTRA: Final = "extra_body"
"""Parameter with the members of the body that the SDK does not know."""


def check_names(params: Mapping[str, Any], known: Collection[str], vendor: str) -> None:
    """Raise ConfigError for a parameter that `vendor` does not have."""
    for name in params:
        if name in known or name == EXTRA:
            continue
        near = get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ";"
        raise ConfigError(
            f"{name!r} is no parameter of {vendor}{meant} parameters that only your server knows go into {EXTRA!r}"
        )
    if not isinstance(params.get(EXTRA, {}), Mapping):
        raise ConfigError(
            f"{EXTRA} is {params[EXTRA]!r:.60}; possible: an object with members of the request's body"
        )


def with_extra(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as members of a body: those in `extra_body` beside the others."""
    plain = {name: value for name, value in params.items() if name != EXTRA}
    return {**plain, **params.get(EXTRA, {})}


_TTL: Final[Mapping[int, dict[str, str]]] = {
    300: {"type": "ephemeral"},
    3600: {"type": "ephemeral", "ttl": "1h"},
}
_MARK: Final = "cache_control"


def check_cache_seconds(seconds: int) -> int:
    """Return the seconds for which Anthropic caches, 0 for no hints. Raises ConfigError for any other number."""
    if seconds != 0 and seconds not in _TTL:
        raise ConfigError(f"cache_seconds is {seconds!r}; possible: 0 (no hints), 300 and 3600")
    return seconds


def with_breakpoints(body: dict[str, Any], seconds: int) -> dict[str, Any]:
    """Return the body of a request to Anthropic with the end of `system` and of the messages marked."""
    if seconds == 0 or _MARK in body or _is_marked(body.get("system")) or _is_marked(body.get("tools")):
        return body
    contents = [message["content"] for message in body["messages"]]
    if any(map(_is_marked, contents)):
        return body
    for blocks in (body.get("system"), contents[-1]):
        if isinstance(blocks, list) and blocks:
            blocks[-1] = {**blocks[-1], _MARK: _TTL[seconds]}
    return body


def cache_key(messages: Iterable[Message]) -> str:
    """Return the key of a conversation: a digest of its messages up to the first one of the user."""
    digest = sha256()
    for message in messages:
        digest.update(f"{message.role}\0{message.text}\0".encode(errors="replace"))
        if message.role == "user":
            break
    return digest.hexdigest()[:32]


def _is_marked(blocks: object) -> bool:
    return isinstance(blocks, list) and any(isinstance(one, Mapping) and _MARK in one for one in blocks)


def checked_kinds(reads: Collection[str] | None, sendable: Collection[PartKind]) -> tuple[PartKind, ...]:
    """Return the kinds that a model reads, by default all that its API carries. Raises ConfigError."""
    if reads is None:
        return tuple(sendable)
    wrong = [kind for kind in reads if kind not in sendable]
    if isinstance(reads, str) or wrong or "text" not in reads:
        raise ConfigError(f"reads is {reads!r}; possible: 'text' and any of {', '.join(sendable)}")
    return tuple(kind for kind in KINDS if kind in reads)


def refuse_unreadable(model: str, reads: Collection[PartKind], messages: Iterable[Message]) -> None:
    """Raise ConfigError for a part of a kind that the model does not read. Unknown parts pass."""
    for message in messages:
        if not isinstance(message.content, list):
            continue
        for part in message.content:
            kind = kind_of(part)
            if kind is not None and kind not in reads:
                raise ConfigError(
                    f"model {model!r} reads {', '.join(reads)}, but a {message.role} message has a part of kind "
                    f"{kind!r}; remove the part or use another model"
                )


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


_THINKING = frozenset(("thinking", "redacted_thinking", "reasoning"))
"""Types of the parts with a signature: vendors accept them back from the model that gave them, and from no other."""


def _with_model(response: Response, model: str) -> Response:
    """Return an answer whose thinking names its model, so that no other model is sent it."""
    parts = response.content
    if not isinstance(parts, list) or not any(part.get("type") in _THINKING for part in parts):
        return response
    named = [part | {"model": model} if part.get("type") in _THINKING else part for part in parts]
    return replace(response, content=named)


def _without_foreign_thinking(message: Message, model: str) -> Message:
    """Return a message without the thinking of other models, and without the name in that of this one.

    Thinking without a name is sent: an older version stored it, or the host gave it.
    """
    parts = message.content
    if not isinstance(parts, list) or not any(part.get("type") in _THINKING for part in parts):
        return message
    kept = [
        {name: value for name, value in part.items() if name != "model"}
        if part.get("type") in _THINKING
        else part
        for part in parts
        if part.get("type") not in _THINKING or part.get("model", model) == model
    ]
    return replace(message, content=kept or None)


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
            id_ = call.id
            short = _ODD.sub("_", call.id)[:_ID_CHARS] or "call"
            while id_ in self._ids or not self._call_id.fullmatch(id_):
                number = self._numbers[call.id]
                self._numbers[call.id] += 1
                id_ = short if number == 1 else f"{short}_{number}"
                if not self._call_id.fullmatch(id_):  # Mistral: nine letters and digits
                    id_ = sha256(id_.encode()).hexdigest()[:9]
            self._ids.add(id_)
            name = self._name(call.name)
            calls.append(call if (id_, name) == (call.id, call.name) else replace(call, id=id_, name=name))
        self._calls = tuple(calls)
        self._open = {position: call.id for position, call in enumerate(message.tool_calls)}
        return message if self._calls == message.tool_calls else replace(message, tool_calls=self._calls)

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
            # A result without a call as text of the user.
            about = f"[result of {message.name}]" if message.name else "[result]"
            if isinstance(message.content, list):
                as_text = Message("user", [{"type": "text", "text": about}, *message.content])
            else:
                as_text = Message("user", f"{about}\n{message.content or ''}".rstrip())
            self._others.append(as_text)
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


class VendorModel(ABC):
    """A model. Each event loop has its own client, closed with the loop; `aclose()` closes it earlier."""

    model: str
    reads: tuple[PartKind, ...] = KINDS
    """Kinds of content parts that the model reads."""
    call_id: re.Pattern[str] = PLAIN_ID
    """Ids of calls that the vendor accepts."""
    total_timeout: float | None = None
    """Seconds that one request may take in all; None leaves it to the run."""
    _key: SecretStr
    _clients: LoopClients[Any]

    @abstractmethod
    def check_params(self, params: Mapping[str, Any]) -> None:
        """Raise ConfigError for a parameter that the model does not have."""

    @abstractmethod
    async def _answered(self, request: Request) -> Response:
        """Answer one request. Raises LLMError, ConfigError."""

    async def complete(self, request: Request) -> Response:
        """Answer one request; stream the pieces if it has an `on_delta`. Raises LLMError, ConfigError."""
        refuse_unreadable(self.model, self.reads, request.messages)
        self.check_params(request.params)
        offered = [offer.name for offer in request.tools]
        messages = (_without_foreign_thinking(message, self.model) for message in request.messages)
        request = replace(request, messages=repaired(messages, offered, self.call_id))
        try:
            async with asyncio.timeout(self.total_timeout) as limit:
                response = _with_model(storable(await self._answered(request)), self.model)
        except TimeoutError as error:
            if not limit.expired():
                raise
            why = f"model {self.model!r} gave no answer within {self.total_timeout:g} s in all"
            raise LLMError(why, kind="timeout") from error
        except LLMError as error:  # from every source: servers repeat the key in answers of any status
            self._mask.mask(error)
            raise
        return response if is_reported(response) else replace(response, usage=None)

    def _secrets(self) -> Iterator[str]:
        """Yield the secrets that an error of the server may repeat."""
        yield self._key.get_secret_value()
        yield from secrets_of_environment()  # where a library found a key by itself

    @cached_property
    def _mask(self) -> SecretMask:
        return SecretMask(self._secrets())

    async def aclose(self) -> None:
        """Close the client of the running loop. The model stays usable: a new request opens a new one."""
        await self._clients.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.aclose()


_LONGEST_ID = 256
"""Maximum characters of the id of an answer."""


def note_response_id(request: Request, given: object) -> None:
    """Store the id that a server gave to an answer, for observers."""
    if request.route is not None and isinstance(given, str):
        request.route.response_id = given[:_LONGEST_ID] or None


_DRAIN_SECONDS = 0.1
_SHOWN = 300
_BLANK = b"\xef\xbb\xbf \t\r\n"
"""Bytes before the beginning of a body: a byte order mark, and the white space that keeps a connection open."""
_FIELD = re.compile(rb"(?:data|event|error|id|retry)?:")
"""The first line of an event stream; JSON never begins so."""
_LONGEST_FIELD = len(b"event:")


class AnswerAssembly(Protocol):
    """Assembles a streamed answer."""

    over: bool
    """The stream reported its end: whatever follows does not belong to the answer."""
    ended: bool
    """The answer is complete, even if the stream has not reported its end or breaks before it."""
    size: int
    """Approximate bytes stored of the stream so far."""

    @property
    def response_id(self) -> str | None:
        """The id of the answer, if the stream named one."""
        ...

    @property
    def text(self) -> str:
        """The text so far."""
        ...

    others: list[ReasoningPiece | ArgumentsPiece]
    """The new pieces that are not text; the caller removes them."""

    def take(self, event: ServerSentEvent) -> str:
        """Add an event and return its new text. Raises LLMError for an error object, ValueError for invalid JSON."""
        ...

    def response(self) -> Response:
        """Return the whole answer. Raises LLMError if the stream was cut or is not an answer."""
        ...


class ApiForm(Protocol):
    """The format of an API."""

    signals: ClassVar[AnswerSignals]

    def body(self, model: str, request: Request, *, streamed: bool) -> dict[str, Any]:
        """Return the body of the HTTP request."""
        ...

    def response(self, raw: Mapping[str, Any]) -> Response:
        """Read an answer. Raises LLMError if it is not one."""
        ...

    def assembly(self) -> AnswerAssembly:
        """Return a new assembly for a streamed answer."""
        ...


_SETTINGS = {
    "connection": "{}_BASE_URL or the argument base_url names another server",
    "auth": "{}_API_KEY or the argument api_key is the key",
}
"""Kind of an error that is often a fault of the set-up -> what to set."""


class SdkModel(VendorModel):
    """A model behind the SDK of its vendor."""

    variables: ClassVar[str]
    """Start of the names of its environment variables."""

    def __init__(
        self, model: str, form: ApiForm, key: SecretStr, host_client: Any | None, max_response_bytes: int
    ) -> None:
        self.model = model
        self.max_response_bytes = check_limit("max_response_bytes", max_response_bytes)
        self._form = form
        self._key = key
        self._host_client = host_client
        # Created now: certificates and types take a second to load.
        spare = self._watched(self._new_client()) if host_client is None else None
        self._clients = LoopClients(self._new_client, lambda client: client.close(), spare)
        self._watched(host_client)
        self.address = str(getattr(spare or host_client, "base_url", ""))
        """Address of the requests, also if the host set none."""
        self._server = server_of_address(self.address)

    def _secrets(self) -> Iterator[str]:
        yield from super()._secrets()
        yield from secrets_of_address(self.address)
        yield from secrets_of_headers(getattr(self._host_client, "default_headers", {}))
        yield from map(str, getattr(self._host_client, "default_query", {}).values())

    @abstractmethod
    def _new_client(self) -> Any:
        """Return a client of the SDK. Raises ConfigError."""

    @abstractmethod
    def _parameters(self) -> Collection[str]:
        """Return the parameters of a request that the SDK knows."""

    def _with_cache_hints(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        """Return the body with the hints for the vendor's prompt cache."""
        del request
        return body

    @abstractmethod
    def _resource(self, client: Any) -> Any:
        """Return the part of the SDK that has `create`."""

    @abstractmethod
    def _sendable(self, client: Any, body: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `create` that produce this body."""

    def check_params(self, params: Mapping[str, Any]) -> None:
        """Raise ConfigError for a parameter that the API does not have."""
        if params:
            check_names(params, self._parameters(), f"{type(self).__name__}({self.model!r})")

    # ---- one answer ----

    async def _answered(self, request: Request) -> Response:
        if request.route is not None:
            request.route.server = self._server
        body = self._form.body(self.model, request, streamed=request.on_delta is not None)
        body = self._with_cache_hints(body, request)
        client = await self._clients.get() if self._host_client is None else self._host_client
        resource = self._resource(client)
        opening = resource.with_streaming_response.create(**self._sendable(client, body))
        with self._judged(), short_errors():
            answer = await opening.__aenter__()
        try:
            chunks = answer.iter_bytes()
            with self._judged():
                # The first bytes of a body that are not blank: enough to tell its format, fewer only if it is
                # shorter.
                beginning = b""
                while len(beginning) < _LONGEST_FIELD and (chunk := await anext(chunks, None)) is not None:
                    beginning = (beginning + chunk).lstrip(_BLANK)
            kind = answer.headers.get("content-type", "")
            if _is_stream(beginning, kind, expected=request.on_delta is not None):
                return await self._streamed(beginning, chunks, request)
            if "html" in kind or beginning.startswith(b"<"):  # from a proxy, or the wrong address
                raise malformed("it is an HTML page")
            return await self._whole(beginning, chunks, answer.headers, request)
        except LLMError as error:  # inside of an answer: only the headers name its request
            error.request_id = error.request_id or fault.request_id(answer.headers)
            raise
        finally:
            await opening.__aexit__(None, None, None)

    async def _whole(
        self, beginning: bytes, chunks: AsyncIterator[bytes], headers: Mapping[str, str], request: Request
    ) -> Response:
        """Read an answer that is not streamed."""
        with self._judged():
            content = await body_of(beginning, chunks, self.max_response_bytes)
        with self._reading():
            raw = parsed(content)
            if (error := error_of(raw, self._form.signals)) is not None:
                raise fault.of_answer(None, headers, error)
            if not isinstance(raw, dict):
                raise malformed("it is not a JSON object")
            response = self._form.response(raw)
        note_response_id(request, raw.get("id"))
        if request.on_delta is not None:
            reasoning = [ReasoningPiece(response.reasoning)] if response.reasoning else []
            calls = enumerate(response.tool_calls)
            given = [ArgumentsPiece(position, call.name, call.arguments) for position, call in calls]
            _deliver(request, "", reasoning)
            _deliver(request, response.message().text, given)
        return response

    # ---- streams ----

    async def _streamed(self, beginning: bytes, chunks: AsyncIterator[bytes], request: Request) -> Response:
        """Read a stream to the end of the answer. An error of a listener is not the provider's, and is passed on."""
        assembly = self._form.assembly()
        decoder = EventDecoder(self.max_response_bytes)
        events, at_end = decoder.feed(beginning), False
        while not assembly.over:
            try:
                with self._judged(assembly):
                    event = next(events, None)
                    if event is None and not at_end:
                        chunk = await anext(chunks, None)
                        at_end = chunk is None
                        events = decoder.finish() if chunk is None else decoder.feed(chunk)
                        continue
            except LLMError:
                if assembly.ended:  # only the usage can be missing
                    break
                raise
            if event is None:
                break
            with self._reading(assembly):
                if event.name == "error":
                    try:
                        problem = parsed(event.data)
                    except (ValueError, RecursionError):
                        problem = event.data
                    raise fault.of_answer(None, None, problem, partial=assembly.text)
                piece = assembly.take(event)
            if 0 < self.max_response_bytes < assembly.size:
                raise too_large(self.max_response_bytes)
            said = piece
            others, assembly.others = assembly.others, []
            _deliver(request, said, others)
        with self._reading(assembly):
            response = assembly.response()
        note_response_id(request, assembly.response_id)
        # Read the rest of a stream, so that the connection can be reused; not for long, because the answer is
        # complete.
        with suppress(Exception):
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for _ in chunks:
                    pass
        return response

    # ---- the SDK ----

    @contextmanager
    def _judged(self, assembly: AnswerAssembly | None = None) -> Iterator[None]:
        """Convert an exception inside to an LLMError; pass on one that is not a failed call."""
        try:
            yield
        except LLMError:
            raise
        except EventTooLarge as error:
            raise too_large(error.limit) from error
        except Exception as error:
            failed = fault.of_exception(error, partial=_text_of(assembly))
            if failed is None:
                raise
            if failed.kind in _SETTINGS and not failed.partial and self._host_client is None:
                failed.args = (f"{failed}; {_SETTINGS[failed.kind].format(self.variables)}",)
            raise failed from error

    @contextmanager
    def _reading(self, assembly: AnswerAssembly | None = None) -> Iterator[None]:
        """Do the same as `_judged`, and treat JSON in an unexpected form as an invalid answer, for any error."""
        with self._judged(assembly):
            try:
                yield
            except (TypeError, LookupError, AttributeError, ArithmeticError, ValueError) as error:
                if fault.of_exception(error) is not None:
                    raise
                raise malformed(f"{type(error).__name__}: {error}"[:_SHOWN], _text_of(assembly)) from error

    @staticmethod
    def _watched(client: Any) -> Any:
        watch_errors(client)
        return client


def _deliver(request: Request, said: str, others: Iterable[ReasoningPiece | ArgumentsPiece]) -> None:
    """Pass new pieces of an answer to the listeners of its request."""
    if said and request.on_delta is not None:
        request.on_delta(said)
    if request.on_piece is not None:
        for piece in others:
            request.on_piece(piece)


def _text_of(assembly: AnswerAssembly | None) -> str:
    return "" if assembly is None else assembly.text


def _is_stream(beginning: bytes, content_type: str, *, expected: bool) -> bool:
    """Return whether a body is an event stream. Its first bytes decide, because servers give wrong content types."""
    if beginning[:1] in (b"{", b"[", b"<"):
        return False
    if _FIELD.match(beginning):
        return True
    return expected and ("event-stream" in content_type or not beginning)
