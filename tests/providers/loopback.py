"""A small HTTP server on 127.0.0.1 that answers as it is told, and remembers what it was asked.

    async with Loopback([json_reply({"choices": [...]}), Reply(503)]) as server:
        llm = OpenAI("m", base_url=f"{server.url}/v1", api_key="k")
        ...
        assert server.asked[0].json["model"] == "m"

It speaks as much of HTTP/1.1 as a provider's client does. Replies are given in order, or by a function of the request.
It is as strict as the vendors are (`tests/providers/strict.py`): a request that they refuse is answered with HTTP 400,
and fails the test at its end. A test of such a request passes `strict=False`.
"""

from __future__ import annotations

import asyncio
import http
import json
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

from tests.providers.endpoint import GUARD
from tests.providers.strict import Vendor, VendorName


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. A body in several chunks is sent chunk by chunk.

    `then` says what follows the last chunk: the proper end; the connection `closed`, or `reset`, before it; or nothing
    at all (`held`) until the client leaves. With `status=None` there is no answer, only what `then` says.
    """

    status: int | None = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: tuple[bytes, ...] = ()
    then: Literal["end", "closed", "reset", "held"] = "end"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Replies: TypeAlias = Iterable[Reply] | Callable[[Asked], Reply]

SILENCE = Reply(None, then="held")
"""A server that takes the request and never answers."""


def json_reply(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """An answer in JSON."""
    text = json.dumps(body, ensure_ascii=False).encode()
    return Reply(status, {"content-type": "application/json", **(headers or {})}, (text,))


def stream_reply(text: str, then: Literal["end", "closed", "reset", "held"] = "end") -> Reply:
    """An event stream, sent event by event."""
    events = tuple(part.encode() for part in re.split(r"(?<=\n\n)", text) if part)
    return Reply(200, {"content-type": "text/event-stream; charset=utf-8"}, events, then)


_FRAMING = frozenset(("transfer-encoding", "content-length", "content-encoding", "connection"))


def recorded_reply(response: Mapping[str, Any]) -> Reply:
    """What `tests/data/provider_exchanges` holds of a response."""
    headers = {name: value for name, value in response["headers"].items() if name.lower() not in _FRAMING}
    if "sse" in response:
        chunks = stream_reply(response["sse"]).chunks
    elif "body_text" in response:
        chunks = (response["body_text"].encode(),)
    else:
        chunks = (json.dumps(response["body"], ensure_ascii=False).encode(),)
    return Reply(response["status"], headers, chunks)


class Loopback:
    """The server; `async with` starts and stops it. One too many requests is answered with 599, and fails the test.

    `vendor` adds the rules of a vendor to those of its protocol; `strict=False` leaves all of them out.
    """

    def __init__(
        self, replies: Replies, *, port: int = 0, vendor: VendorName = "", strict: bool = True
    ) -> None:
        self.port = port
        self._vendor = Vendor(vendor) if strict else None
        self._reply_to = replies if callable(replies) else _in_order(replies)
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.asked: list[Asked] = []
        self.held: list[Asked] = []
        """Requests whose reply stops, and the connection stays open."""
        self.accepted = 0
        """Connections so far."""
        self.open = 0
        """Connections now."""
        self.errors: list[Exception] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._allowed = GUARD.allow("127.0.0.1", self.port)
        self._allowed.__enter__()
        return self

    async def __aexit__(self, kind: object, *failure: object) -> None:
        self._allowed.__exit__(None, None, None)
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        if kind is None and self.errors:
            raise self.errors[0]

    async def until(self, condition: Callable[[Loopback], bool]) -> None:
        """Wait for something to become true of this server."""
        async with self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def _note(self, change: Callable[[], object]) -> None:
        async with self._changed:
            change()
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        self.open += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer_one(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass  # the server stops
        finally:
            self._tasks.discard(task)
            writer.close()
            self.open -= 1
            with suppress(asyncio.CancelledError):
                await self._note(lambda: None)

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        asked = await _read(reader)
        if asked is None:
            return False
        await self._note(lambda: self.asked.append(asked))
        if (refused := self._refusal(asked)) is not None:
            return await _write(refused, writer)
        try:
            reply = self._reply_to(asked)
        except Exception as error:  # noqa: BLE001  told at the end of the test, where it is seen
            self.errors.append(error)
            reply = Reply(599, {"x-should-retry": "false"})
        if self._vendor is not None:
            self._vendor.note(reply.chunks)
        more = await _write(reply, writer)
        if reply.then == "held":
            await self._note(lambda: self.held.append(asked))
            await reader.read()  # until the client leaves
        return more

    def _refusal(self, asked: Asked) -> Reply | None:
        """Return the answer to a request that the vendor refuses."""
        try:
            body = asked.json if self._vendor and asked.body else None
        except ValueError:  # no body of a provider's client
            return None
        refusal = self._vendor.refusal(asked.path, body) if self._vendor and body else None
        if refusal is None:
            return None
        self.errors.append(AssertionError(f"{asked.path}: the vendor refuses this request: {refusal}"))
        kind = "invalid_request_error"
        error = {"message": refusal, "type": kind, "param": None, "code": None}
        return json_reply({"type": "error", "error": error}, status=400)


def _in_order(replies: Iterable[Reply]) -> Callable[[Asked], Reply]:
    given = list(replies)
    rest = iter(given)

    def reply_to(asked: Asked) -> Reply:
        reply = next(rest, None)
        if reply is None:
            raise AssertionError(f"request {len(given) + 1} ({asked.method} {asked.path}) has no reply")
        return reply

    return reply_to


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return Asked(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


async def _write(reply: Reply, writer: asyncio.StreamWriter) -> bool:
    """Write the reply; say whether the connection goes on."""
    if reply.status is not None:
        whole = reply.then == "end" and len(reply.chunks) < 2
        framing = f"content-length: {sum(map(len, reply.chunks))}" if whole else "transfer-encoding: chunked"
        phrase = http.HTTPStatus(reply.status).phrase if reply.status in _STATUSES else "Unknown"
        lines = [f"HTTP/1.1 {reply.status} {phrase}", framing, *map(": ".join, reply.headers.items())]
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
        for chunk in reply.chunks:
            writer.write(chunk if whole else b"%x\r\n%s\r\n" % (len(chunk), chunk))
            await writer.drain()
        if reply.then == "end" and not whole:
            writer.write(b"0\r\n\r\n")
    if reply.then == "reset":
        writer.transport.abort()
    await writer.drain()
    return reply.then == "end"


_STATUSES = frozenset(one.value for one in http.HTTPStatus)


@contextmanager
def in_a_thread(replies: Replies, *, strict: bool = True) -> Iterator[Loopback]:
    """The same server beside a test that is no coroutine."""
    started: list[Loopback] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with Loopback(replies, strict=strict) as server:
            started.append(server)
            ready.set()
            await stop.wait()

    def run(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(work)

    thread = threading.Thread(target=run, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
