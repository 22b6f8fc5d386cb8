"""A pool in front of a server as PgBouncer's `pool_mode=transaction`: one session for all, each transaction its turn.

Clients are let in without a password, as from a host that is trusted; the server is reached by its socket, which asks
for none either. As with every pool, what a client is told of its session (the process behind it) is made up.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from tests.postgres import Cluster

_WELCOME = struct.pack("!cii", b"R", 8, 0)
_MADE_UP = struct.pack("!ciii", b"K", 12, 123456789, 1)
_READY = struct.pack("!cic", b"Z", 5, b"I")


class Pooler:
    """Clients of one database, one after the other in one session of the server."""

    def __init__(self, server: Cluster, database: str) -> None:
        self._turn = threading.Lock()
        self._told = b""
        self._session = socket.socket(socket.AF_UNIX)
        self._session.connect(str(server.folder / f".s.PGSQL.{server.port}"))
        about = f"user\0{server.user}\0database\0{database}\0\0".encode()
        self._session.sendall(struct.pack("!ii", 8 + len(about), 196608) + about)
        for kind, message in self._until_ready():
            self._told += message if kind == b"S" else b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.dsn = f"postgresql://{server.user}@127.0.0.1:{self._listener.getsockname()[1]}/{database}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        self._listener.close()
        self._session.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError):
            while True:
                size, code = struct.unpack("!ii", _exactly(client, 8))
                _exactly(client, size - 8)
                if code == 196608:
                    break
                client.sendall(b"N")  # neither TLS nor GSS
            client.sendall(_WELCOME + self._told + _MADE_UP + _READY)
            while first := _message(client):
                if first[:1] == b"X":
                    return
                with self._turn:
                    self._transaction(client, first)

    def _transaction(self, client: socket.socket, message: bytes) -> None:
        """Pass on what a client says until the server is in no transaction any more."""
        while True:
            self._session.sendall(message)
            if message[:1] in {b"Q", b"S"}:  # a question, or the end of several messages
                for kind, answer in self._until_ready():
                    client.sendall(answer)
                    if kind == b"Z" and answer[-1:] == b"I":
                        return
            message = _message(client)

    def _until_ready(self) -> Iterator[tuple[bytes, bytes]]:
        kind = b""
        while kind != b"Z":
            message = _message(self._session)
            kind = message[:1]
            yield kind, message


def _message(source: socket.socket) -> bytes:
    head = _exactly(source, 5)
    return head + _exactly(source, struct.unpack("!i", head[1:])[0] - 4)


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        if not (more := source.recv(count - len(found))):
            raise EOFError
        found += more
    return found


@contextlib.contextmanager
def pooled(server: Cluster, dsn: str) -> Iterator[Pooler]:
    """Put a pool in front of a database."""
    made = Pooler(server, dsn.rpartition("/")[2])
    try:
        yield made
    finally:
        made.close()
