"""The pages in a host's server, as an ASGI and as a WSGI application, and in a small HTTP server of our own.

Rendering takes milliseconds, so ASGI uses threads of its own. The small server has its own threads too, for a process
without a server. It survives clients that connect and send nothing, or one byte at a time: a connection lasts ten
seconds at most, a connection beyond 32 is refused, and a head has at most MAX_HEAD bytes. By default it listens on
this host only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from orchestrator.errors import ConfigError
from orchestrator.telemetry.exposition.page import (
    Check,
    Heartbeat,
    LiveSource,
    PageRequest,
    Pages,
    is_one_of_several,
    warn_of_workers,
)
from orchestrator.web.limits import MAX_HEAD

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_THREADS = 4


def asgi_app(
    registry: CollectorRegistry | None = None,
    *,
    token: str | None = None,
    live: LiveSource | None = None,
    heartbeat: Heartbeat | None = None,
    ready: Mapping[str, Check] | None = None,
) -> App:
    """Return an application with the pages of the package; arguments as for `Pages`. Raises ConfigError.

    Mount it below any path, or run it alone. Its threads start with the first request.

    Example:
        app.mount("/ops", asgi_app(token=os.environ["METRICS_TOKEN"]))
    """
    if is_one_of_several():
        warn_of_workers()
    return _App(Pages(registry, token=token, live=live, heartbeat=heartbeat, ready=ready))


class _App:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._threads: ThreadPoolExecutor | None = None
        self._making = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            request = _request(scope)
            if self._pages.is_quick(request.path):
                answer = self._pages.answer(request)
            else:
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(self._pool(), self._pages.answer, request)
            headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers]
            await send({"type": "http.response.start", "status": answer.status.value, "headers": headers})
            await send(
                {"type": "http.response.body", "body": b"" if request.method == "HEAD" else answer.body}
            )
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    def _pool(self) -> ThreadPoolExecutor:
        with self._making:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="orchestrator metrics")
            return self._threads


def _request(scope: Scope) -> PageRequest:
    path, root = str(scope["path"]), str(scope.get("root_path") or "").rstrip("/")
    if root and (
        path == root or path.startswith(f"{root}/")
    ):  # some servers include the path of a mount, others do not
        path = path[len(root) :]
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    client = scope.get("client")
    return PageRequest(
        scope["method"],
        path,
        scope["query_string"].decode("latin-1"),
        headers,
        str(client[0]) if client else "",
        asyncio.get_running_loop(),
    )


def wsgi_app(
    registry: CollectorRegistry | None = None,
    *,
    token: str | None = None,
    live: LiveSource | None = None,
    heartbeat: Heartbeat | None = None,
    ready: Mapping[str, Check] | None = None,
) -> WSGIApplication:
    """Return an application with the pages of the package; arguments as for `Pages`. Raises ConfigError.

    Example:
        application = wsgi_app(token=os.environ["METRICS_TOKEN"])
    """
    pages = Pages(registry, token=token, live=live, heartbeat=heartbeat, ready=ready)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("wsgi.multiprocess"):
            warn_of_workers()
        request = _wsgi_request(environ)
        status, headers, body = pages.answer(request)
        # The connection is the server's: a WSGI application may not close it.
        named = [header for header in headers if header[0] != "Connection"]
        start_response(f"{status.value} {status.phrase}", named)
        return [] if request.method == "HEAD" else [body]

    return app


def _wsgi_request(environ: WSGIEnvironment) -> PageRequest:
    text: Callable[[str], str] = lambda name: str(environ.get(name) or "")  # noqa: E731
    headers = {
        name[5:].replace("_", "-").lower(): str(value)
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    if length := text("CONTENT_LENGTH"):
        headers["content-length"] = length
    return PageRequest(
        text("REQUEST_METHOD"), text("PATH_INFO"), text("QUERY_STRING"), headers, text("REMOTE_ADDR")
    )


# ---- the small server ----

PORT = 9464
"""The port registered for OpenTelemetry's Prometheus exporters."""

MOST = 32
"""Maximum concurrent connections."""
LONGEST = 10.0
"""Maximum seconds of a connection until its request is read."""

_HIGHEST = 65535
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_POLL = 0.25
_GOODBYE = 2.0


class _Head:
    """The lines of a request, up to MAX_HEAD bytes: the standard library would read 6 MB of them."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines
        self._left = MAX_HEAD

    def readline(self, size: int) -> bytes:
        """Return the next line. Raises ValueError beyond the limit, which ends the connection."""
        line: bytes = self._lines.readline(min(size, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise ValueError("the head is too large")
        return line

    def close(self) -> None:
        """Close the connection's side of the reader."""
        self._lines.close()


class _Handler(BaseHTTPRequestHandler):
    timeout = LONGEST
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Head(self.rfile)

    def do_GET(self) -> None:
        self.server.request_received(self.connection)
        url = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = PageRequest(
            self.command, url.path, url.query, headers, str(self.client_address[0]).partition("%")[0]
        )
        status, named, body = self.server.pages.answer(request)
        self.send_response(status)
        for name, value in named:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET  # noqa: N815

    def version_string(self) -> str:
        return "orchestrator"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the standard library's
        """Log nothing: a scrape every few seconds is no news."""


class _Server(TCPServer):
    allow_reuse_address = True
    request_queue_size = MOST

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily, pages: Pages) -> None:
        self.address_family = family
        self.pages = pages
        self._talks: dict[socket.socket, threading.Thread] = {}
        self._idle: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._talks) >= MOST
            if not full:
                thread = threading.Thread(
                    target=self._serve_connection,
                    args=(request, client_address),
                    name="orchestrator metrics request",
                    daemon=True,
                )
                self._talks[request] = thread
                self._idle[request] = time.monotonic()
        if full:
            with contextlib.suppress(OSError):
                request.settimeout(0)
                request.send(_BUSY)
            self.shutdown_request(request)
        else:
            thread.start()

    def request_received(self, request: socket.socket) -> None:
        """Record that a request was read: the client is not responsible for the duration of its answer."""
        with self._lock:
            self._idle.pop(request, None)

    def service_actions(self) -> None:
        """Close connections without a complete request in time. Called by the loop several times a second."""
        before = time.monotonic() - LONGEST
        with self._lock:
            late = [request for request, since in self._idle.items() if since < before]
        for request in late:
            _hang_up(request)

    def finish_talks(self) -> None:
        """Close all connections and wait, up to a limit, for the end of their threads."""
        with self._lock:
            talks = dict(self._talks)
            silent = list(self._idle)
        for request in silent:
            _hang_up(request)
        until = time.monotonic() + _GOODBYE
        for thread in talks.values():
            thread.join(max(0.0, until - time.monotonic()))
        for request in talks:
            _hang_up(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect early; the pages report their own faults."""

    def _serve_connection(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:  # noqa: BLE001 - no client may stop the server
            self.handle_error(request, client_address)
        finally:
            with self._lock:
                self._talks.pop(request, None)
                self._idle.pop(request, None)
            self.shutdown_request(request)


def _hang_up(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class MetricsServer:
    """A running server. Leaving its `with` block, or `close()`, ends it with all of its threads."""

    def __init__(self, server: _Server, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._server: _Server | None = server
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_POLL,), name="orchestrator metrics", daemon=True
        )
        _running.add(self)
        self._thread.start()

    @property
    def url(self) -> str:
        """Address of the metrics."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening and end the threads; a second call has no effect."""
        server, self._server = self._server, None
        _running.discard(self)
        if server is None:
            return
        server.shutdown()
        self._thread.join()
        server.server_close()
        server.finish_talks()

    def abandon(self) -> None:
        """Close the socket. In a forked child: the threads stayed with the parent."""
        if self._server is not None:
            self._server.socket.close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve_metrics(
    registry: CollectorRegistry | None = None,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    *,
    live: LiveSource | None = None,
    heartbeat: Heartbeat | None = None,
    ready: Mapping[str, Check] | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> MetricsServer:
    """Serve the pages of the package over plain HTTP until the returned server is closed.

    The other arguments are those of `Pages`. Raises ConfigError if it cannot listen.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 selects a free one (`server.port`).
        loop: Event loop whose tasks /debug/stacks shows; None is the running loop, if any.

    Example:
        with serve_metrics(port=9464, ready={"journal": answers(journal)}):
            ...
    """
    pages = Pages(
        registry, token=token, live=live, heartbeat=heartbeat, ready=ready, loop=loop or _running_loop()
    )
    if not 0 <= port <= _HIGHEST:
        raise ConfigError(f"port is {port}; it must be from 0 (any free one) to {_HIGHEST}")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server = _Server((str(address[0]), int(address[1])), family, pages)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another host or port (0 picks one)"
        ) from error
    return MetricsServer(server, host, int(server.server_address[1]))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_running: set[MetricsServer] = set()


def _let_go_in_child() -> None:
    """Close the socket in a forked child, which would otherwise keep the port and answer no connection."""
    for server in tuple(_running):
        server.abandon()
    _running.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
