"""Limits of a request: bytes and seconds of its body, both headers of a length, open event streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator import MemoryJournal, Runs
from orchestrator.console import console_app
from orchestrator.console.access import SignInCode
from orchestrator.web.access import Authentication, Bearers
from orchestrator.web.limits import App, Message, RequestLimits, framing_fault

MEGABYTE = 1_000_000
MIB = b"x" * MEGABYTE


def scope_of(method: str = "POST", path: str = "/", **headers: str) -> dict[str, Any]:
    sent = {"host": "127.0.0.1", **headers}
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


class Client:
    """Sends the pieces of a body, and counts those that were taken."""

    def __init__(self, pieces: Iterator[bytes] | None = None, *, leaves: bool = False) -> None:
        self._pieces = pieces if pieces is not None else iter(())
        self._ended = pieces is None
        self._leaves = leaves
        self.taken = 0
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        if (piece := next(self._pieces, None)) is not None:
            self.taken += len(piece)
            return {"type": "http.request", "body": piece, "more_body": True}
        if self._leaves:
            return {"type": "http.disconnect"}
        if self._ended:
            self._ended = False
            return {"type": "http.request", "body": b"", "more_body": False}
        return await asyncio.Future()

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


def endless() -> Iterator[bytes]:
    while True:
        yield MIB


async def length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


def limited(**options: Any) -> RequestLimits:
    return RequestLimits(Starlette(routes=[Route("/", length, methods=["GET", "POST"])]), **options)


# ---- bodies ----


@pytest.mark.parametrize("reads_first", [False, True])
async def test_the_bytes_of_a_chunked_body_are_counted_while_it_is_read(*, reads_first: bool) -> None:
    client = Client(endless())
    await limited(reads_first=reads_first)(scope_of(transfer_encoding="chunked"), client.receive, client.send)
    assert (client.status, client.body) == (413, b"a body has at most 2,000,000 bytes\n")
    assert client.taken == 3 * MEGABYTE, "the piece that passes the limit is the last one that is read"


async def test_a_body_of_the_limit_passes_and_one_byte_more_does_not() -> None:
    for size, status in ((2 * MEGABYTE, 200), (2 * MEGABYTE + 1, 413)):
        client = Client(iter([b"x" * size, b""]), leaves=False)
        client._ended = True
        await limited()(scope_of(transfer_encoding="chunked"), client.receive, client.send)
        assert client.status == status


@pytest.mark.parametrize(
    ("length", "encoding", "status"),
    [
        (None, None, None),
        (None, "chunked", None),
        ("2000000", None, None),
        ("0002000000", None, None),
        ("2000001", None, 413),
        ("9" * 5_000, None, 413),
        ("5", "chunked", 400),
        ("0", "identity", 400),
        ("", None, 400),
        ("-5", None, 400),
        ("+5", None, 400),
        ("5,5", None, 400),
        ("0x5", None, 400),
        ("\u0665", None, 400),
    ],
)
async def test_a_request_with_two_lengths_or_none_that_is_a_number_is_refused(
    length: str | None, encoding: str | None, status: int | None
) -> None:
    fault = framing_fault(length, encoding)
    assert (fault and fault[0]) == status


async def test_a_request_with_both_headers_never_reaches_the_application() -> None:
    async def never(*_: Any) -> None:
        raise AssertionError

    client = Client(endless())
    await RequestLimits(never)(
        scope_of(content_length="5", transfer_encoding="chunked"), client.receive, client.send
    )
    assert (client.status, client.taken) == (400, 0)
    assert (b"connection", b"close") in client.sent[0]["headers"]


@pytest.mark.parametrize("reads_first", [False, True])
async def test_a_body_that_does_not_arrive_in_time_is_refused(*, reads_first: bool) -> None:
    client = Client(iter([b"x"]))
    app = limited(body_seconds=0.05, reads_first=reads_first)
    await app(scope_of(content_length="9"), client.receive, client.send)
    assert (client.status, client.taken) == (408, 1)


@pytest.mark.parametrize("reads_first", [False, True])
async def test_an_application_whose_client_leaves_in_the_middle_of_a_body_ends_silently(
    *, reads_first: bool
) -> None:
    client = Client(iter([b"x"]), leaves=True)
    await limited(reads_first=reads_first)(scope_of(content_length="9"), client.receive, client.send)


async def test_an_error_of_the_application_itself_is_raised() -> None:
    async def broken(_: Request) -> Response:
        raise LookupError("broken")

    client = Client()
    app = RequestLimits(Starlette(routes=[Route("/", broken)]))
    with pytest.raises(LookupError):
        await app(scope_of("GET"), client.receive, client.send)
    assert client.status == 500


async def test_the_body_of_a_client_without_a_token_is_not_read() -> None:
    client = Client(endless())
    app = Authentication(limited(reads_first=True), Bearers({"ann": "x" * 16}).actor)
    await app(scope_of(content_length="5", transfer_encoding="chunked"), client.receive, client.send)
    assert (client.status, client.taken) == (401, 0)
    assert (b"connection", b"close") in client.sent[0]["headers"], "nothing that follows is a request"


async def test_the_console_takes_ten_kilobytes_from_a_client_that_has_not_signed_in() -> None:
    app: Any = console_app(Runs(MemoryJournal()), code=SignInCode())
    for path, status, taken in (("/sign-in", 413, MEGABYTE), ("/several", 303, 0), ("/sign-out", 303, 0)):
        client = Client(endless())
        form = {"content_type": "application/x-www-form-urlencoded", "transfer_encoding": "chunked"}
        await app(scope_of("POST", path, **form), client.receive, client.send)
        assert (client.status, client.taken) == (status, taken), path


# ---- event streams ----


class Streams:
    """An application whose event streams end when they are told to."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)  # all requests are here before the first is answered

        async def events() -> AsyncIterator[bytes]:
            yield b"data: one\n\n"
            await self.end.wait()

        await StreamingResponse(events(), media_type="text/event-stream")(scope, receive, send)


async def answered(clients: list[Client]) -> None:
    while not all(client.sent for client in clients):  # noqa: ASYNC110 - each has its own answer
        await asyncio.sleep(0)


async def opened(app: App, count: int) -> tuple[list[Client], list[asyncio.Task[None]]]:
    clients = [Client(iter(())) for _ in range(count)]
    tasks = [asyncio.ensure_future(app(scope_of("GET"), client.receive, client.send)) for client in clients]
    await answered(clients)
    return clients, tasks


async def test_the_limit_of_event_streams_holds_if_they_are_opened_together_and_places_are_free_again() -> (
    None
):
    streams = Streams()
    app = RequestLimits(streams)
    for _ in range(2):
        streams.end.clear()
        clients, tasks = await opened(app, 260)
        assert sorted(client.status for client in clients) == [200] * 200 + [503] * 60
        assert app.streams == 200
        streams.end.set()
        await asyncio.gather(*tasks)
        assert app.streams == 0


async def test_the_console_refuses_the_stream_after_the_last_one() -> None:
    code = SignInCode()
    console: Any = console_app(Runs(MemoryJournal()), code=code)
    body = f"token={code.value}".encode()
    signing = Client(iter([body]))
    signing._ended = True
    form = {"content_type": "application/x-www-form-urlencoded", "content_length": str(len(body))}
    await console(scope_of("POST", "/sign-in", **form), signing.receive, signing.send)
    cookie = next(value for name, value in signing.sent[0]["headers"] if name == b"set-cookie").decode()
    clients = [Client() for _ in range(260)]
    scopes = [scope_of("GET", "/events", cookie=cookie.partition(";")[0]) for _ in clients]
    tasks = [
        asyncio.ensure_future(console(scope, client.receive, client.send))
        for scope, client in zip(scopes, clients, strict=True)
    ]
    await answered(clients)
    assert sorted(client.status for client in clients) == [200] * 200 + [503] * 60
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
