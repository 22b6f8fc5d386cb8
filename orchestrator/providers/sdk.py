"""A model behind a vendor's SDK: what is alike for all of them.

The SDK does transport, authentication and addresses, with its retries off. What is sent and how answers are read is a
`Form`; what failures mean is decided in `fault`. Answers are taken raw: as JSON, or as the bytes of a stream.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, Self

from pydantic import SecretStr

from orchestrator.errors import LLMError
from orchestrator.messages import Request, Response
from orchestrator.providers import fault
from orchestrator.providers.event_stream import Event, EventDecoder
from orchestrator.providers.reading import loads, malformed

_DRAIN_SECONDS = 0.1


class Assembly(Protocol):
    """A streamed answer in the making."""

    over: bool
    """The stream said that it is over."""

    @property
    def text(self) -> str:
        """What there is of the text by now."""
        ...

    def take(self, event: Event) -> str:
        """Take an event and return the text it adds. Raises LLMError for an error object, ValueError for no JSON."""
        ...

    def response(self) -> Response:
        """Return the whole answer. Raises LLMError where the stream was cut or makes no answer."""
        ...


class Form(Protocol):
    """How an API is spoken."""

    def body(self, model: str, request: Request, *, streamed: bool) -> dict[str, Any]:
        """Return the body of the HTTP request."""
        ...

    def response(self, raw: Mapping[str, Any]) -> Response:
        """Read an answer. Raises LLMError where it is none."""
        ...

    def assembly(self) -> Assembly:
        """Begin a streamed answer."""
        ...


class SdkModel(ABC):
    """A model. Each event loop gets a connection pool of its own, closed with the loop; `aclose()` closes it before."""

    def __init__(self, model: str, form: Form, key: SecretStr, host_client: Any | None) -> None:
        self.model = model
        self._form = form
        self._key = key
        self._host_client = host_client
        self._own: dict[asyncio.AbstractEventLoop, _Own] = {}
        # Made now: certificates and types take a second to load.
        self._spare = self._new_client() if host_client is None else None
        self.address = str(getattr(self._spare or host_client, "base_url", ""))
        """Where requests go: also where nobody named it."""

    @abstractmethod
    def _new_client(self) -> Any:
        """Return a client of the SDK. Raises ConfigError."""

    @abstractmethod
    def _resource(self, client: Any) -> Any:
        """Return what of the SDK has `create`."""

    @abstractmethod
    def _sendable(self, client: Any, body: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `create` that make this body."""

    async def complete(self, request: Request) -> Response:
        """Answer one request; in pieces too, where it has an `on_delta`. Raises LLMError."""
        body = self._form.body(self.model, request, streamed=request.on_delta is not None)
        try:
            if request.on_delta is None:
                return self._form.response(await self._asked(body))
            return await self._streamed(body, request.on_delta)
        except LLMError as error:  # whoever made it: servers repeat the key in answers of any status
            fault.hide(error, self._key.get_secret_value())
            raise

    async def aclose(self) -> None:
        """Close the connections of the running loop. The model can still be asked: new ones are opened then."""
        if (own := self._own.pop(asyncio.get_running_loop(), None)) is not None:
            await own.keeper.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.aclose()

    # ---- one answer ----

    async def _asked(self, body: dict[str, Any]) -> Mapping[str, Any]:
        with self._judged():
            client = await self._client()
            answer = await self._resource(client).with_raw_response.create(**self._sendable(client, body))
            return _object(answer.http_response.content, answer.headers)

    # ---- streams ----

    async def _streamed(self, body: dict[str, Any], on_delta: Callable[[str], None]) -> Response:
        assembly = self._form.assembly()
        client = await self._client()
        resource = self._resource(client)
        opening = resource.with_streaming_response.create(**self._sendable(client, body))
        with self._judged():
            answer = await opening.__aenter__()
        try:
            kind = answer.headers.get("content-type", "")
            if "json" in kind:
                return await self._unstreamed(answer, on_delta)
            if "html" in kind:  # of a proxy, or the wrong address: no cut stream
                raise malformed("it is an HTML page")
            chunks = answer.iter_bytes()
            await self._followed(chunks, assembly, on_delta)
            response = assembly.response()
            await _drained(chunks)
            return response
        finally:
            await opening.__aexit__(None, None, None)

    async def _unstreamed(self, answer: Any, on_delta: Callable[[str], None]) -> Response:
        """Read the answer of a server that does not stream, or failed before it began to."""
        with self._judged():
            raw = _object(await answer.read(), answer.headers)
        response = self._form.response(raw)
        if said := response.message().text:
            on_delta(said)
        return response

    async def _followed(
        self, chunks: AsyncIterator[bytes], assembly: Assembly, on_delta: Callable[[str], None]
    ) -> None:
        """Take the stream to its end. What the listener raises is not the provider's fault, and passes."""
        decoder = EventDecoder()
        chunk: bytes | None = b""
        while chunk is not None and not assembly.over:
            with self._judged(assembly):
                chunk = await anext(chunks, None)
                events = list(decoder.finish() if chunk is None else decoder.feed(chunk))
            for event in events:
                if piece := self._taken(assembly, event):
                    on_delta(piece)

    def _taken(self, assembly: Assembly, event: Event) -> str:
        with self._judged(assembly):
            return assembly.take(event)

    # ---- the SDK ----

    @contextmanager
    def _judged(self, assembly: Assembly | None = None) -> Iterator[None]:
        """Turn what is raised inside into an LLMError; what is no failed call passes."""
        try:
            yield
        except LLMError:
            raise
        except Exception as error:
            key = self._key.get_secret_value()
            failed = fault.of_exception(error, partial=assembly.text if assembly else "")
            if failed is None:
                raise
            raise failed from (None if key and key in str(error) else error)

    async def _client(self) -> Any:
        if self._host_client is not None:
            return self._host_client
        loop = asyncio.get_running_loop()
        if loop not in self._own:
            for over in [one for one in self._own if one.is_closed()]:
                del self._own[over]
            client, self._spare = self._spare or self._new_client(), None
            self._own[loop] = _Own(client, _kept(client))
            await anext(self._own[loop].keeper)
        return self._own[loop].client


class _Own(NamedTuple):
    """A client of our own and what closes it: connections cannot be used from another event loop."""

    client: Any
    keeper: AsyncGenerator[None, None]


async def _kept(client: Any) -> AsyncGenerator[None, None]:
    """Hold a client open until the generator is closed: by us, or by the loop, which closes all of its generators."""
    try:
        yield
    finally:
        await client.close()


def _object(content: bytes, headers: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the JSON object of an answer. Raises JSONDecodeError, or LLMError for an error and for no object."""
    raw = loads(content)
    if fault.holds_error(raw):
        raise fault.of_answer(None, headers, raw)
    if not isinstance(raw, dict):
        raise malformed("it is no JSON object")
    return raw


async def _drained(chunks: AsyncIterator[bytes]) -> None:
    """Read what follows the end, so that the connection can be used again; not for long, for the answer is there."""
    with suppress(Exception):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in chunks:
                pass
