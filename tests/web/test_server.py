"""The server of our surfaces on real sockets: heads, connections, proxies, malformed requests, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.errors import ConfigError
from orchestrator.web import server
from orchestrator.web.limits import App, RequestLimits
from orchestrator.web.server import LimitedProtocol, serve, uvicorn_options

HOST = b"Host: a\r\n"
PATIENCE = 120


async def seen(request: Request) -> Response:
    return PlainTextResponse(f"{request.client and request.client.host} {request.url.scheme}")


async def read(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def events(_: Request) -> Response:
    async def stream() -> AsyncIterator[bytes]:
        yield b"data: one\n\n"
        await asyncio.Event().wait()

    return StreamingResponse(stream(), media_type="text/event-stream")


async def stuck(_: Request) -> Response:
    await asyncio.Event().wait()
    raise AssertionError


def application() -> App:
    routes = [Route("/", seen, methods=["GET", "POST"]), Route("/read", read, methods=["POST"])]
    return RequestLimits(Starlette(routes=[*routes, Route("/events", events), Route("/stuck", stuck)]))


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return all that is received until the connection ends; a server that refuses more may reset it."""
    found = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while piece := await reader.read(65_536):
                found += piece
    return found


class Serving:
    """A server in the loop of the test, and the faults that the loop reports."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.port = 0
        self.faults: list[dict[str, Any]] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, request: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(request)
        return reader, writer

    async def answer(self, request: bytes) -> bytes:
        """Return all that is sent until the server closes the connection."""
        reader, writer = await self.connect(request)
        found = await rest(reader)
        writer.close()
        return found


@asynccontextmanager
async def serving(*, proxies: Sequence[str] = ()) -> AsyncIterator[Serving]:
    found, ready = Serving(), asyncio.Event()

    def started(url: str) -> None:
        found.port = int(url.rstrip("/").rpartition(":")[2])
        ready.set()

    asyncio.get_running_loop().set_exception_handler(lambda _, fault: found.faults.append(fault))
    task = asyncio.create_task(serve(application(), "127.0.0.1", 0, found.stopped, started, proxies=proxies))
    await asyncio.wait((task, asyncio.ensure_future(ready.wait())), return_when=asyncio.FIRST_COMPLETED)
    try:
        yield found
    finally:
        found.stopped.set()
        async with asyncio.timeout(PATIENCE):
            await task
        for writer in found.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    assert found.faults == []


# ---- heads and connections ----


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHos",
        b"GET / HTTP/1.1\r\n" + HOST + b"\r\nGET / HT",
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
    ],
    ids=["silence", "half a head", "half a second head", "a body that nobody reads"],
)
async def test_a_connection_without_a_complete_request_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.2)
    async with serving() as found:
        answer = await found.answer(sent)
    assert answer.count(b"HTTP/1.1 200 OK") == (b"\r\n\r\n" in sent)


async def test_a_head_that_comes_byte_by_byte_has_the_same_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    async with serving() as found:
        reader, writer = await found.connect(b"GET / HTTP/1.1\r\n" + HOST + b"X: ")
        closed = asyncio.ensure_future(rest(reader))
        while not closed.done():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        assert closed.result() == b""


async def test_a_connection_beyond_the_limit_is_refused_and_a_free_place_is_given_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 4)
    request = b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    async with serving() as found:
        silent = [await found.connect() for _ in range(4)]
        async with asyncio.timeout(PATIENCE):
            while b"503" not in await found.answer(b""):
                pass
        for _, writer in silent:
            writer.close()
        async with asyncio.timeout(PATIENCE):
            while b"200 OK" not in await found.answer(request):
                pass


async def test_a_head_beyond_the_limit_is_refused() -> None:
    async with serving() as found:
        answer = await found.answer(b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 400_000)
    assert answer.startswith(b"HTTP/1.1 400 ") or answer == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /read HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"\r\n\x00\x00\r\n\r\n",
        b"GET /events HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_malformed_requests_end_their_connection_and_raise_nothing(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as found:
        for place in (len(sent), max(1, len(sent) // 2)):
            reader, writer = await found.connect(sent[:place])
            await asyncio.sleep(0.02)
            writer.write(sent[place:] + b"\x00\xff")
            with contextlib.suppress(OSError):  # it was refused already
                writer.write_eof()
            assert b"500 " not in await rest(reader)
            writer.close()
    assert [record for record in caplog.records if record.exc_info] == []


# ---- proxies ----


@pytest.mark.parametrize(
    ("proxies", "client"),
    [
        ((), b"127.0.0.1 http"),
        (("10.0.0.1",), b"127.0.0.1 http"),
        (("127.0.0.1",), b"203.0.113.7 https"),
        (("10.0.0.1", "127.0.0.0/8"), b"203.0.113.7 https"),
    ],
)
async def test_the_client_of_a_trusted_proxy_is_believed_and_of_no_other(
    proxies: Sequence[str], client: bytes
) -> None:
    forwarded = b"X-Forwarded-For: 198.51.100.1, 203.0.113.7\r\nX-Forwarded-Proto: https\r\n"
    request = b"GET / HTTP/1.1\r\nConnection: close\r\n" + HOST + forwarded + b"\r\n"
    async with serving(proxies=proxies) as found:
        assert (await found.answer(request)).endswith(client)


@pytest.mark.parametrize("proxy", ["*", "proxy.example", "10.0.0.1/8", ""])
def test_a_proxy_that_is_no_address_is_refused(proxy: str) -> None:
    with pytest.raises(ConfigError, match="give the address of the proxy or its network"):
        uvicorn_options([proxy])


# ---- the end ----


async def test_the_end_closes_streams_at_once_and_stuck_requests_after_the_grace_and_logs_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "GRACE", 0.2)
    with caplog.at_level(logging.WARNING):
        async with serving() as found:
            readers = []
            for path in (b"/events", b"/stuck", b"/"):
                reader, _ = await found.connect(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
                readers.append(reader)
            await found.connect(b"POST /read HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nx")
            await found.connect()
            await readers[0].readuntil(b"data: one\n\n")
            await readers[2].readuntil(b"http")
            found.stopped.set()
            ends = [await rest(reader) for reader in readers]
        assert b"500" not in b"".join(ends)
    assert [record for record in caplog.records if record.exc_info] == []
    assert len(caplog.records) <= 1, "one line about the requests that did not end"


@pytest.mark.parametrize("ends", [True, False], ids=["a stream that ends", "a stream that does not"])
async def test_an_application_may_end_its_streams_when_the_server_stops(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = asyncio.Event()

    async def events(_: Request) -> Response:
        async def stream() -> AsyncIterator[bytes]:
            yield b"data: one\n\n"
            await (stopping if ends else asyncio.Event()).wait()
            yield b"data: last\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    class Told(LimitedProtocol):
        def shutdown(self) -> None:
            super().shutdown()
            self.loop.call_soon(stopping.set)  # the application hears of the end after the connection

    monkeypatch.setattr(server, "STREAM_SECONDS", PATIENCE if ends else 0.05)
    options = {**uvicorn_options(), "http": Told, "log_config": None}
    uvicorn_server = uvicorn.Server(uvicorn.Config(Starlette(routes=[Route("/", events)]), **options))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(uvicorn_server._serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await reader.readuntil(b"data: one\n\n")
        uvicorn_server.should_exit = True
        last = await rest(reader)
        writer.close()
        await serving
    assert last.endswith(b"\r\n0\r\n\r\n") is ends
    assert (b"data: last" in last) is ends
