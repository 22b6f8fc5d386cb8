"""The four HTTP surfaces as processes: malformed requests at random, and a silent end with open connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.console.stored import ASKS
from tests.web.surfaces import CANARY, COMMANDS, TOKEN, Surface, surface

TOGETHER = 8
GROWTH = 20 * 2**20
DIGEST = "0" * 64
FORM: Final = b"Content-Type: application/x-www-form-urlencoded\r\n"
JSON: Final = b"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
CALL = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).encode()

# Method, path, headers and body: what an attacker without a token would send.
TARGETS: Final[dict[str, tuple[tuple[bytes, bytes, bytes, bytes], ...]]] = {
    "console": (
        (b"GET", b"/", b"", b""),
        (b"GET", b"/events", b"", b""),
        (b"GET", f"/runs/{ASKS}?content=shown".encode(), b"", b""),
        (b"GET", f"/records/{ASKS}?content=shown".encode(), b"", b""),
        (b"POST", f"/answer/{ASKS}".encode(), FORM, f"kind=approve&call=1:0&digest={DIGEST}".encode()),
        (b"POST", b"/several", FORM, f"kind=cancel&run={ASKS}&version=open".encode()),
        (b"POST", b"/sign-in", FORM, b"token=wrong"),
    ),
    "service": (
        (b"GET", b"/runs", b"", b""),
        (b"GET", f"/runs/{ASKS}/questions".encode(), b"Authorization: Bearer wrong\r\n", b""),
        (b"GET", f"/runs/{ASKS}/events".encode(), b"X-User: ceo\r\n", b""),
        (b"POST", f"/runs/{ASKS}/approve".encode(), JSON, json.dumps({"digest": DIGEST}).encode()),
        (b"POST", b"/runs", JSON, b'{"prompt": "Refund order 7."}'),
    ),
    "mcp": (
        (b"POST", b"/mcp", JSON, CALL),
        (b"GET", b"/mcp", JSON + b"Authorization: Bearer wrong\r\n", b""),
        (b"DELETE", b"/mcp", b"mcp-session-id: 1\r\n", b""),
    ),
    "metrics": (
        (b"GET", b"/metrics", b"", b""),
        (b"GET", b"/metrics", b"Authorization: Bearer wrong\r\n", b""),
        (b"POST", b"/", FORM, b"a=b"),
        (b"GET", b"/debug/runs", b"X-Forwarded-For: 127.0.0.1\r\n", b""),
    ),
}


def framed(body: bytes, chance: random.Random) -> tuple[bytes, bytes]:
    """Return the headers of a body, and the body, framed well or badly."""
    size = str(len(body)).encode()
    sizes = [b"-1", b"+5", b"0x5", b"5 5", b"9" * 40, b"", b"\xff", size + b"," + size, b"99"]
    kinds = [
        b"chunked",
        b" chunked",
        b"identity",
        b"chunked, identity",
        b"xchunked",
        b"CHUNKED",
        b"gzip, chunked",
    ]
    chunks = [
        b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body),
        b"%x\r\n%s" % (len(body) + 9, body),
        b"-1\r\nx\r\n",
        b"zz\r\n",
        b"f" * 40 + b"\r\nx",
        b"1;" + b"e" * 9_000 + b"\r\nx\r\n0\r\n\r\n",
        b"1\nx\n0\n\n",
        b"0\r\nX: y\r\nno colon\r\n\r\n",
        b"10000\r\n" + b"x" * 65_536 + b"\r\n",
        (b"10000\r\n" + b"x" * 65_536 + b"\r\n") * 40,
    ]
    return chance.choice(
        [
            (b"Content-Length: " + size + b"\r\n", body),
            (b"Content-Length: " + chance.choice(sizes) + b"\r\n", body),
            (b"Content-Length: " + size + b"\r\nContent-Length: 1\r\n", body),
            (b"Transfer-Encoding: " + chance.choice(kinds) + b"\r\n", chance.choice(chunks)),
            (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", chance.choice(chunks)),
            (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chance.choice(chunks)),
            (b"", body),
        ]
    )


def malformed(name: str, port: int, chance: random.Random) -> bytes:
    """Return the bytes of a request that is wrong in some way, or of two of them."""
    method, path, headers, body = chance.choice(TARGETS[name])
    if chance.random() < 0.2:
        method = chance.choice([b"get", b"PRI", b"OPTIONS", b"HEAD", b"POST", b"", b"\x00", b"A" * 300])
    if chance.random() < 0.2:
        path = chance.choice(
            [b"http://evil/" + path, b"//" + path, path + b"/%00/%ff/..", b"*", b"", b"/\xff", b"/" * 9_000]
        )
    version = chance.choice([b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"", b"HTTP/1.1.1"])
    hosts = [b"Host: 127.0.0.1:%d\r\n" % port] * 6 + [
        b"",
        b"Host: evil.com\r\n",
        b"Host: a\r\nHost: b\r\n",
        b"Host: [\r\n",
    ]
    more = [
        *([b""] * 6),
        b"no colon\r\n",
        b" folded: yes\r\n",
        b"X: " + b"x" * 30_000 + b"\r\n",
        b"X: y\r\n" * 300,
        b"X: \x00\r\n",
        b"\xff: y\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"Connection: close\r\n",
    ]
    frame, rest = framed(body, chance)
    sent = b"%s %s %s\r\n" % (method, path, version)
    sent += chance.choice(hosts) + headers + chance.choice(more) + frame + b"\r\n" + rest
    if chance.random() < 0.2:
        sent = sent.replace(b"\r\n", b"\n")
    if chance.random() < 0.2:  # a second request behind it
        sent += b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for _ in range(chance.choice([0, 0, 0, 1, 4])):
        place = chance.randrange(len(sent))
        sent = sent[:place] + bytes([chance.randrange(256)]) + sent[place + 1 :]
    return sent[: chance.randrange(len(sent))] if chance.random() < 0.2 else sent


async def exchanged(served: Surface, sent: bytes, chance: random.Random) -> bytes:
    """Send a request in up to three pieces; return the answer, or what arrived of it before this client left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    found = b""
    leaves = chance.random() < 0.1
    places = sorted(chance.randrange(len(sent) + 1) for _ in range(chance.choice([0, 0, 1, 2])))
    with contextlib.suppress(OSError):
        for start, end in zip([0, *places], [*places, len(sent)], strict=True):
            writer.write(sent[start:end])
            await writer.drain()
            await asyncio.sleep(0)
        if not leaves:
            writer.write_eof()
            async with asyncio.timeout(60):
                while piece := await reader.read(65_536):
                    found += piece
    writer.transport.abort()
    return found


async def attacked(served: Surface, count: int, chance: random.Random) -> list[tuple[bytes, bytes]]:
    """Send random requests, some at a time; return them with their answers."""
    requests = [malformed(served.name, served.port, chance) for _ in range(count)]
    places = asyncio.Semaphore(TOGETHER)

    async def one(sent: bytes) -> tuple[bytes, bytes]:
        async with places:
            return sent, await exchanged(served, sent, chance)

    return await asyncio.gather(*map(one, requests))


@pytest.mark.campaign
@pytest.mark.canary("console-some")
@pytest.mark.parametrize("count", [pytest.param(80, id="some"), pytest.param(600, id="many")])
@pytest.mark.parametrize("name", COMMANDS)
def test_malformed_requests_at_random_get_nothing_change_nothing_and_leave_no_trace(
    name: str, count: int, tmp_path: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    chance = random.Random(seed)
    with surface(name, tmp_path) as served:
        asyncio.run(attacked(served, 40, chance))  # what is imported late
        before = served.resident()
        answers = asyncio.run(attacked(served, campaign(count, 5 * count), chance))
        grown = served.resident() - before
        leaked = [sent[:200] for sent, found in answers if CANARY.encode() in found or b'"jsonrpc"' in found]
        assert leaked == []
        assert served.process.poll() is None
        assert "Traceback" not in served.log(), served.log()
        assert served.questions() == 1
        assert grown < GROWTH
        statuses = {found[9:12] for _, found in answers if found.startswith(b"HTTP/1.")}
        assert b"400" in statuses
        assert not any(status.startswith(b"5") for status in statuses - {b"501", b"505", b"503"}), statuses
        code, log = served.stop(signal.SIGTERM)
        assert (code, "Traceback" in log) == (0, False), log


# ---- the end ----


def signed_in(served: Surface) -> Iterator[bytes]:
    """Sign in, and yield requests that stay open: an event stream, a body that stops, a head that stops."""
    host = b"Host: 127.0.0.1:%d\r\n" % served.port
    body = b"token=" + TOKEN.encode()
    with served.connect(
        b"POST /sign-in HTTP/1.1\r\n" + host + FORM + b"Content-Length: %d\r\n\r\n" % len(body) + body
    ) as connection:
        answer = connection.recv(4_096)
    cookie = answer.lower().partition(b"set-cookie: ")[2].partition(b";")[0]
    cookie = answer[answer.lower().index(cookie) :][: len(cookie)]
    yield b"GET /events HTTP/1.1\r\n" + host + b"Cookie: " + cookie + b"\r\n\r\n"
    yield b"POST /sign-in HTTP/1.1\r\n" + host + FORM + b"Content-Length: 99\r\n\r\ntok"
    yield b"GET / HTT"


def followed(served: Surface) -> Iterator[bytes]:
    """Yield requests of the service that stay open."""
    head = b"Host: 127.0.0.1\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"
    yield b"GET /runs/" + ASKS.encode() + b"/events HTTP/1.1\r\n" + head + b"\r\n"
    yield b"POST /runs HTTP/1.1\r\n" + head + JSON + b'Content-Length: 99\r\n\r\n{"pro'


def with_session(served: Surface) -> Iterator[bytes]:
    """Start a session, and yield requests of it that stay open: its stream, a slow call, a body that stops."""
    head = b"Host: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n" % (served.port, TOKEN.encode()) + JSON
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    answer = b""
    with served.connect(posted(head, "initialize", hello, 1)) as connection:
        while b'"jsonrpc"' not in answer:
            answer += connection.recv(4_096)
    session = answer.lower().partition(b"mcp-session-id: ")[2].partition(b"\r\n")[0]
    head += b"mcp-session-id: " + session + b"\r\nmcp-protocol-version: 2025-06-18\r\n"
    with served.connect(posted(head, "notifications/initialized", {}, None)) as connection:
        assert b"202" in connection.recv(4_096)
    yield b"GET /mcp HTTP/1.1\r\n" + head + b"\r\n"
    yield posted(head, "tools/call", {"name": CANARY, "arguments": {"prompt": "slow"}}, 2)
    yield b"POST /mcp HTTP/1.1\r\n" + head + b'Content-Length: 99\r\n\r\n{"pro'


def posted(head: bytes, method: str, params: object, number: int | None) -> bytes:
    message: dict[str, object] = {"jsonrpc": "2.0", "method": method, "params": params}
    body = json.dumps(message if number is None else {**message, "id": number}).encode()
    return b"POST /mcp HTTP/1.1\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body


OPEN: Final[dict[str, Callable[[Surface], Iterator[bytes]]]] = {
    "console": signed_in,
    "service": followed,
    "mcp": with_session,
}


@pytest.mark.campaign
@pytest.mark.canary("console-SIGINT")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
@pytest.mark.parametrize("name", OPEN)
def test_a_signal_ends_a_surface_with_open_streams_and_half_requests_in_silence(
    name: str, number: signal.Signals, tmp_path: Path
) -> None:
    with surface(name, tmp_path) as served, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(served.connect(sent)) for sent in OPEN[name](served)]
        stream = connections[0]
        assert b" 200 OK" in stream.recv(4_096)
        for sent in OPEN[name](served):  # and each of them aborted
            served.connect(sent).close()
        before = served.log()
        code, log = served.stop(number)
        stream.settimeout(60)
        while stream.recv(4_096):
            pass
    assert (code, "Traceback" in log) == (0, False), log
    printed = [line for line in log[len(before) :].splitlines() if not line.startswith("INFO:")]
    assert len(printed) <= 1, log
