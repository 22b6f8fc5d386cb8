"""Where a test may connect to, and the guard that holds it to that.

An audit hook sees every connection and every look-up of a name in the process, whoever makes it and in which thread.
It cannot be taken away again, so it is installed once and asks whether a test is being watched.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Endpoint = tuple[str, int]

_LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")


class ForbiddenConnection(AssertionError):
    """Something went to an address that the test did not configure."""


class Guard:
    """Notes, and stops, every connection but those to the allowed endpoints, while it watches."""

    def __init__(self) -> None:
        self.allowed: set[Endpoint] = set()
        self.seen: list[Endpoint] = []
        self.broken: list[str] = []
        self._watching = False
        self._installed = False
        self._local = False

    @contextmanager
    def watching(self, *, local: bool = False) -> Iterator[Guard]:
        """Watch, and raise at the end if anything was stopped, for it may have been swallowed where it happened.

        With `local`, every address of this machine is allowed.
        """
        self._local = local
        if not self._installed:
            sys.addaudithook(self._audit)
            self._installed = True
        self.seen, self.broken, self._watching = [], [], True
        try:
            yield self
        finally:
            self._watching = False
        if self.broken:
            raise ForbiddenConnection("; ".join(self.broken))

    @contextmanager
    def allow(self, host: str, port: int) -> Iterator[None]:
        """Allow connections to an endpoint: a server of the test, or one that is to be found closed."""
        new = (host, port) not in self.allowed
        self.allowed.add((host, port))
        try:
            yield
        finally:
            if new:
                self.allowed.discard((host, port))

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._watching or not event.startswith("socket."):
            return
        if event in ("socket.connect", "socket.sendto"):
            self._check(event, args[1])
        elif event in _LOOKUPS and args[0] is not None:
            self._check_host(event, args[0])

    def _check(self, event: str, address: object) -> None:
        if not isinstance(address, tuple):  # a path: local to the machine
            return
        host, port = str(address[0]), int(address[1])
        self.seen.append((host, port))
        if (host, port) not in self.allowed and not self._is_local(host):
            self._stop(f"{event} to {host}:{port}")

    def _check_host(self, event: str, host: object) -> None:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if name not in {allowed for allowed, _ in self.allowed} and not self._is_local(name):
            self._stop(f"{event} of {name}")

    def _is_local(self, host: str) -> bool:
        return self._local and (host in ("localhost", "::1") or host.startswith("127."))

    def _stop(self, what: str) -> None:
        self.broken.append(what)
        known = ", ".join(f"{host}:{port}" for host, port in sorted(self.allowed)) or "nothing"
        raise ForbiddenConnection(
            f"{what}; the test allows {known} (tests/providers/endpoint.py: GUARD.allow)"
        )


GUARD = Guard()


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of this machine that nobody listens on, and nobody else can take meanwhile; connecting is allowed."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = int(bound.getsockname()[1])
        with GUARD.allow("127.0.0.1", port):
            yield port
