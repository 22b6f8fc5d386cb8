"""Limits of a request, for any ASGI application: bytes and seconds of its body, and open event streams.

Bytes are counted while the application reads, because a declared length says nothing about a chunked body. Too large
or too slow, the request is answered here, and the application sees a client that disconnected: each application must
handle that, and no exception of ours has to pass through its frameworks. The alternative, to read the whole body
before the application is called, would keep the bodies of clients that it refuses. Starlette's own limit counts bytes,
too, but has no deadline, accepts both headers of a length, and is no part of the releases that we support.

A body that a client abandons is no fault of the application: what the application raises then is logged for debugging
only, where a server would print a traceback.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_HEAD: Final = 16_384
"""Bytes of a request's line and headers, where we start the server."""
MAX_BODY: Final = 2_000_000
"""Bytes of a request's body."""
BODY_SECONDS: Final = 30.0
"""Seconds in which a body must arrive, from the first read of the application."""
MAX_STREAMS: Final = 200
"""Event streams that are open at once."""

_DIGITS: Final = 18
_LOG: Final = logging.getLogger("orchestrator.web")


def framing_fault(
    length: str | None, encoding: str | None, max_body: int = MAX_BODY
) -> tuple[int, str] | None:
    """Return the status and the sentence for a request whose body is not framed well, or None.

    Args:
        length: The header `Content-Length`; several are joined with commas.
        encoding: The header `Transfer-Encoding`.
        max_body: Bytes of a body.
    """
    if length is None:
        return None
    if encoding is not None:  # a proxy and a server may disagree about the end of the body
        return 400, "a request has Content-Length or Transfer-Encoding, never both"
    if not (length.isascii() and length.isdecimal()):
        return 400, "Content-Length must be one number"
    if len(length.lstrip("0")) > _DIGITS or int(length) > max_body:
        return 413, _too_large(max_body)
    return None


def header_of(message: Scope, name: bytes) -> str | None:
    """Return a header of a request, or of the start of a response; several of one name are joined with commas."""
    values = [value.decode("latin-1") for key, value in message.get("headers", ()) if key.lower() == name]
    return ",".join(values) if values else None


async def send_sentence(send: Send, status: int, sentence: str, *headers: tuple[bytes, bytes]) -> None:
    """Answer with one line of plain text, after which the connection is closed."""
    body = f"{sentence}\n".encode()
    always = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": [*always, *headers]})
    await send({"type": "http.response.body", "body": body})


class RequestLimits:
    """ASGI middleware that limits bodies and event streams.

    Args:
        app: The application.
        max_body: Bytes of a body.
        body_seconds: Seconds in which a body must arrive.
        max_streams: Event streams that are open at once; a further one is answered with 503.
        reads_first: Whether the body is read before the application is called: for an application that prints a
            traceback when its client leaves in the middle. Put authentication around it, because bodies wait in memory.
    """

    def __init__(
        self,
        app: App,
        *,
        max_body: int = MAX_BODY,
        body_seconds: float = BODY_SECONDS,
        max_streams: int = MAX_STREAMS,
        reads_first: bool = False,
    ) -> None:
        self._app = app
        self.max_body = max_body
        self.body_seconds = body_seconds
        self.max_streams = max_streams
        self._reads_first = reads_first
        self.streams = 0
        """Event streams that are open now."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if fault := framing_fault(
            header_of(scope, b"content-length"), header_of(scope, b"transfer-encoding"), self.max_body
        ):
            await send_sentence(send, *fault)
            return
        request = _LimitedRequest(self, scope, receive, send)
        try:
            if self._reads_first and not await request.read_all():
                return
            await self._app(scope, request.receive, request.send)
        except Exception:
            if not request.gone:
                raise
            _LOG.debug("the application stopped because its client had gone", exc_info=True)
        finally:
            self.streams -= request.streams


class _LimitedRequest:
    """What the application receives and sends in one request."""

    def __init__(self, limits: RequestLimits, scope: Scope, receive: Receive, send: Send) -> None:
        self._limits, self._receive, self._send = limits, receive, send
        self._reads_events = scope["method"] == "GET"
        # Servers of ASGI 2.4 raise OSError when the client has gone; before, they ignored what was sent.
        self._raises = tuple(map(int, scope.get("asgi", {}).get("spec_version", "2.0").split("."))) >= (2, 4)
        self._deadline: float | None = None
        self._bytes = 0
        self._complete = self._started = self._refused = self._aborted = False
        self._read: deque[Message] = deque()
        self.streams = 0

    @property
    def gone(self) -> bool:
        """Return whether the client was refused, or left before its body was complete."""
        return self._refused or self._aborted

    async def read_all(self) -> bool:
        """Read the body, which `receive` then returns; return whether it is complete."""
        while not self._complete and not self.gone:
            self._read.append(await self._next())
        return self._complete

    async def receive(self) -> Message:
        """Return the next message of the client."""
        return self._read.popleft() if self._read else await self._next()

    async def _next(self) -> Message:
        if self._refused:
            return {"type": "http.disconnect"}
        if self._complete:
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._limits.body_seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            return await self._refuse(
                408,
                f"a body must arrive within {self._limits.body_seconds:g} s; send it faster, or less of it",
            )
        if message["type"] != "http.request":
            self._aborted = True
            return message
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._limits.max_body:
            return await self._refuse(413, _too_large(self._limits.max_body))
        self._complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a message to the client, unless it was refused."""
        if self._refused:
            if self._raises:
                raise OSError("the client was refused")
            return
        if message["type"] == "http.response.start":
            # Counted in the step that decides: requests that come together cannot pass the limit together.
            if self._reads_events and (header_of(message, b"content-type") or "").lower().startswith(
                "text/event-stream"
            ):
                if self._limits.streams >= self._limits.max_streams:
                    await self._refuse(503, "too many event streams are open; close one, or try again later")
                    return
                self._limits.streams += 1
                self.streams = 1
            self._started = True
        await self._send(message)

    async def _refuse(self, status: int, sentence: str) -> Message:
        """Answer in place of the application, if it has not begun; return its last message."""
        self._refused = True
        if not self._started:
            self._started = True
            retry = [(b"retry-after", b"5")] if status == 503 else []  # noqa: PLR2004
            await send_sentence(self._send, status, sentence, *retry)
        return {"type": "http.disconnect"}


def _too_large(max_body: int) -> str:
    return f"a body has at most {max_body:,} bytes"
