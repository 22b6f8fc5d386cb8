"""A way to a server that can be cut after any number of bytes, in either direction, or that keeps bytes back."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Direction = Literal["there", "back"]
_RESET = struct.pack("ii", 1, 0)


class Relay:
    """Relays connections from a port of its own to a server. What is armed happens once, to whoever comes next."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._armed: tuple[Direction, int] | None = None
        self._keep = False
        self._kept: list[tuple[socket.socket, bytes]] = []
        self._open: set[socket.socket] = set()
        self.cuts = 0
        self.bytes: dict[Direction, int] = {"there": 0, "back": 0}
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def through(self, dsn: str) -> str:
        """Return the address of the same database by way of here."""
        parts = urlsplit(dsn)
        who = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{who}@127.0.0.1:{self.port}"))

    def cut_after(self, direction: Direction, count: int) -> None:
        """Let so many bytes pass in this direction, then cut that connection; 0 cuts at the first byte that comes."""
        with self._lock:
            self._armed = direction, count

    def keep(self) -> None:
        """Do not pass on what a client sends next: cut the client off instead, and keep the bytes."""
        with self._lock:
            self._keep = True

    def deliver(self) -> int:
        """Send what was kept to the server, late, and end that connection; return how many bytes."""
        with self._lock:
            kept, self._kept = self._kept, []
        for upstream, data in kept:
            upstream.sendall(data)
            with contextlib.suppress(OSError):
                while upstream.recv(65536):  # until the server has answered and sees the end
                    upstream.shutdown(socket.SHUT_WR)
            upstream.close()
        return sum(len(data) for _, data in kept)

    def disarm(self) -> bool:
        """Take back what was armed; True if it had not happened."""
        with self._lock:
            waiting, self._armed = self._armed is not None, None
            return waiting

    def cut_clients(self) -> None:
        """Cut the clients off now; the server goes on with what it has got."""
        for one in tuple(self._open):
            with contextlib.suppress(OSError):
                if one.getsockname()[1] == self.port:
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        for one in tuple(self._open):
            _reset(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(self._server)
            except OSError:
                if self._listener.fileno() < 0:
                    return
                client.close()
                continue
            self.accepted += 1
            for one in (client, upstream):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(one)
            threading.Thread(target=self._pump, args=("there", client, upstream), daemon=True).start()
            threading.Thread(target=self._pump, args=("back", upstream, client), daemon=True).start()

    def _pump(self, direction: Direction, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if direction == "there" and self._keeps(source, sink, data):
                    return
                allowed = self._allowed(direction, len(data))
                self.bytes[direction] += min(allowed, len(data))  # before whoever gets them can ask
                sink.sendall(data[:allowed])
                if allowed <= len(data) and self._is_cut(direction):
                    break
        for one in (source, sink):
            if one not in {upstream for upstream, _ in self._kept}:
                _reset(one)
                self._open.discard(one)

    def _keeps(self, client: socket.socket, upstream: socket.socket, data: bytes) -> bool:
        with self._lock:
            keep, self._keep = self._keep, False
            if keep:
                self._kept.append((upstream, data))
                self.cuts += 1  # before the client knows
        if keep:
            _reset(client)
        return keep

    def _allowed(self, direction: Direction, size: int) -> int:
        with self._lock:
            if self._armed is None or self._armed[0] != direction:
                return size + 1
            left = self._armed[1] - size
            self._armed = (direction, left) if left > 0 else (direction, 0)
            return size + 1 if left > 0 else size + left

    def _is_cut(self, direction: Direction) -> bool:
        with self._lock:
            cut = self._armed == (direction, 0)
            if cut:
                self._armed = None
                self.cuts += 1
            return cut


def _reset(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.close()


@contextlib.contextmanager
def relayed(dsn: str) -> Iterator[Relay]:
    """Open a way to the server of an address, for as long as the block."""
    parts = urlsplit(dsn)
    relay = Relay(str(parts.hostname), int(parts.port or 5432))
    try:
        yield relay
    finally:
        relay.close()
