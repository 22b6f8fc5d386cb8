"""Ports for servers that are told their port."""

from __future__ import annotations

import atexit
import contextlib
import random
import socket
from typing import Final

_PORTS: Final = range(20_000, 32_768)
"""Below the ports that Linux and macOS choose themselves, for `bind(0)` and for connections."""
_CHANCE: Final = random.SystemRandom()
"""Not `random`: a property test sets its seed, in each process to the same one."""
_kept = contextlib.ExitStack()
"""The sockets that keep ports."""
atexit.register(_kept.close)


def free_port() -> int:
    """Return a free port of loopback that nobody gets before its server binds it, nor while that server is down.

    The system gives it to no connection, because it is below the range for that. Other processes of the tests do not
    get it here, because this process keeps a UDP socket on the same number until it ends.
    """
    for _ in range(1_000):
        port = _CHANCE.choice(_PORTS)
        keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            keeper.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            keeper.close()
        else:
            _kept.enter_context(keeper)
            return port
    raise AssertionError(f"no port from {_PORTS.start} to {_PORTS.stop} is free")
