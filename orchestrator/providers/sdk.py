"""Common base of the models behind a vendor's SDK.

The SDK does transport, authentication and addresses, with its retries off. An `ApiForm` builds requests and reads
answers; `fault` classifies failures. Answers are read raw: as JSON, or as the bytes of a stream.
"""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Protocol

from pydantic import SecretStr

from orchestrator.errors import LLMError
from orchestrator.llm.message import ArgumentsPiece, ReasoningPiece, Request, Response
from orchestrator.providers import fault
from orchestrator.providers.connection import (
    LoopClients,
    body_of,
    check_limit,
    secrets_of_address,
    secrets_of_headers,
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
    malformed,
    parsed,
)
from orchestrator.providers.vendor_model import VendorModel, check_names

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


class SdkModel(VendorModel):
    """A model behind the SDK of its vendor."""

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
