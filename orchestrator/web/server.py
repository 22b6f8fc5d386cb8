"""The server of the surfaces that we start ourselves: uvicorn with limits on heads and connections, and a silent end.

uvicorn limits the size of a head and the requests that are answered at once. It waits without a limit for a head and
for the rest of a body that the application does not read, and it accepts any number of silent connections, so
`LimitedProtocol` has a deadline and a count. When the server stops, an application that ends its streams gets
STREAM_SECONDS for that. `serve` is for applications whose streams never end by themselves: it closes them as if their
clients had left, and other requests get GRACE seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from orchestrator.errors import ConfigError
from orchestrator.web.access import checked_proxies
from orchestrator.web.limits import MAX_HEAD, App, Receive, Scope, Send

HIGHEST: Final = 65_535
GRACE: Final = 1
"""Seconds that requests get when the server stops."""
STREAM_SECONDS: Final = 5.0
"""Seconds in which a response that has begun may end when the server stops, before its connection is closed."""
MAX_CONNECTIONS: Final = 400
"""Connections that are open at once: more than event streams, so that these leave room for requests."""
HEAD_SECONDS: Final = 10.0
"""Seconds in which the head of a request must arrive on a connection that was opened, or used before."""
IDLE_SECONDS: Final = 5
"""Seconds that a connection stays open after a response while no other request arrives."""

_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class LimitedProtocol(H11Protocol):
    """A connection whose requests begin in time, and which ends without an exception."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Refuse a connection beyond the limit; else wait for the head of a request."""
        super().connection_made(transport)
        limit = self.config.limit_concurrency
        if limit is not None and len(self.connections) > limit:
            transport.write(_BUSY)
            transport.close()
            return
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the deadline, too."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._is_busy():
            self._stop_waiting()
        elif self._head is None:  # another request begins, or a body continues that nobody reads
            self._wait_for_head()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, unless another answer has begun."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE} and not self._is_busy():
            super().send_400_response(msg)
        else:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without a request."""
        self.transport.close()

    def shutdown(self) -> None:
        """Close the connection at the end of the server: at once, or behind its response."""
        if not self._is_busy():
            self.transport.close()
            return
        super().shutdown()
        if self.is_streaming:
            self.loop.call_later(STREAM_SECONDS, self.transport.close)

    @property
    def is_streaming(self) -> bool:
        """Whether a response has begun and not ended."""
        return self._is_busy() and self.cycle.response_started

    def _is_busy(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _wait_for_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self._close_late)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _close_late(self) -> None:
        self._head = None
        self.transport.close()


def uvicorn_options(proxies: Sequence[str] = ()) -> dict[str, Any]:
    """Return the options of uvicorn for every server that we start.

    Args:
        proxies: Addresses and networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed.

    Raises:
        ConfigError: One of `proxies` is no address.
    """
    return {
        "http": LimitedProtocol,
        "ws": "none",
        "server_header": False,
        "limit_concurrency": MAX_CONNECTIONS,
        "timeout_keep_alive": IDLE_SECONDS,
        "h11_max_incomplete_event_size": MAX_HEAD,
        "proxy_headers": bool(proxies),
        "forwarded_allow_ips": checked_proxies(proxies),
    }


async def serve(
    app: App,
    host: str,
    port: int,
    stopped: asyncio.Event,
    started: Callable[[str], None],
    *,
    lifespan: bool = False,
    proxies: Sequence[str] = (),
) -> None:
    """Serve an application until an event is set, or the task is cancelled. Signals are the caller's.

    Args:
        app: The application.
        host: The address to listen at.
        port: The port; 0 picks a free one.
        stopped: Set to stop.
        started: Called with the address when the server listens.
        lifespan: Whether the application handles the events of the lifespan protocol.
        proxies: Trusted proxies, as for `uvicorn_options`.

    Raises:
        ConfigError: The address, the port or a proxy cannot be used.
    """

    # The application, whose requests end silently if the server cancels them in the end.
    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise

    config = uvicorn.Config(
        served,
        log_config=None,
        log_level="error",  # a client that sends nonsense is no news
        access_log=False,
        lifespan="on" if lifespan else "off",
        timeout_graceful_shutdown=GRACE + 1,
        **uvicorn_options(proxies),
    )
    server = _Server(config)
    with _listening(host, port) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        started(_url(listener))
        waiting = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            server.should_exit = True
            waiting.cancel()
            await serving


class _Server(uvicorn.Server):
    """The server without its own signal handlers, which closes late connections before uvicorn cancels their tasks."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close streams at once, and stop within the grace."""

        def close_connections(*, streams_only: bool = False) -> None:
            for connection in cast("tuple[LimitedProtocol, ...]", tuple(self.server_state.connections)):
                if connection.is_streaming or not streams_only:
                    connection.transport.close()

        close_connections(streams_only=True)
        late = asyncio.get_running_loop().call_later(GRACE, close_connections)
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port <= HIGHEST:
        raise ConfigError(f"port is {port}; it must be from 0 to {HIGHEST}, 0 picks a free one")
    name = host.strip("[]")
    try:
        family, *_, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {error}; choose another address or port (0 picks one)"
        ) from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
