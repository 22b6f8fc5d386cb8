from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[1]


def test_a_port_is_given_once_and_can_be_bound_again_and_again() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == len(ports)
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", ports[0])) as server,
            socket.create_connection(server.getsockname()) as line,
        ):
            accepted, _ = server.accept()
            accepted.close()
            assert line.recv(1) == b""


def test_no_process_gets_the_port_of_another_one() -> None:
    first = free_port()
    script = (
        "from tests import ports\n"
        f"ports._PORTS = range({first}, {first} + 1)\n"
        "try: print(ports.free_port())\n"
        "except AssertionError: print('kept')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "kept\n"
