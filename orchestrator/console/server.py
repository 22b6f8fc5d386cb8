"""A server for the console alone, until it gets a signal to stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from orchestrator.errors import ConfigError

HIGHEST = 65_535
GRACE = 1
"""Seconds that open connections get when the server stops; the events of a tab never end by themselves."""


async def serve(
    app: ASGIApp, host: str, port: int, stopped: asyncio.Event, started: Callable[[str], None]
) -> None:
    """Serve an application until an event is set.

    Args:
        app: The application.
        host: The address to listen at.
        port: The port; 0 picks a free one.
        stopped: Set to stop.
        started: Called with the address when the server listens.

    Raises:
        ConfigError: The address or the port cannot be used.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
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
    """The server without its own signal handlers: those of the command are used."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port <= HIGHEST:
        raise ConfigError(f"port is {port}; it must be from 0 to {HIGHEST}, 0 picks a free one")
    name = host.strip("[]")
    try:
        family, *_, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"the console cannot listen at {host}, port {port}: {error}; choose others with --host and --port"
        ) from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
