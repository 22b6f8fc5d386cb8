"""A process that has imported the commands, and forks one of them for each test that needs a process.

What is forked is what `python -W error -m orchestrator` is after its imports, which are most of its time: it has the
arguments, the folder, the environment and the streams that it was given, it ends as any process does, and it can be
killed. The tests of the start itself execute the program.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = (
    *("cli.app", "cli.run", "cli.chat", "cli.keyboard"),
    *("cli.metrics", "telemetry.exposition.server", "telemetry.exposition.stored"),
    *("cli.runs.store", "cli.runs.show", "cli.runs.listing", "cli.screen", "cli.replay"),
    *("cli.approval.command", "cli.approval.progress", "testing"),
)
"""What most commands import by their end."""
NUMBER = struct.Struct("i")
"""The process id of a command, and then the status with which it ended."""


# ---- in the process that forks ----


class Forks:
    """Starts a command for each order, and tells how it ended."""

    def __init__(self, orders: int) -> None:
        self._orders = socket.socket(fileno=orders)
        self._running: dict[int, int] = {}
        self._ended, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        signal.set_wakeup_fd(self._wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> Sequence[str]:
        """Fork until there are no more orders; return in each command, with its arguments."""
        while True:
            ready, _, _ = select.select([self._orders.fileno(), self._ended], [], [])
            if self._ended in ready:
                self._tell_ends()
                continue
            order, ends, _, _ = socket.recv_fds(self._orders, 1 << 20, 4)
            if not order:
                self._orders.close()
                sys.exit()
            *streams, told = ends
            process = os.fork()
            if process == 0:
                return self._become(streams, **json.loads(order))
            os.write(told, NUMBER.pack(process))
            self._running[process] = told
            for stream in streams:
                os.close(stream)

    def _tell_ends(self) -> None:
        os.read(self._ended, 4_096)
        for process in list(self._running):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                told = self._running.pop(process)
                with suppress(BrokenPipeError):  # its test has ended
                    os.write(told, NUMBER.pack(status))
                os.close(told)

    def _become(
        self, streams: Sequence[int], arguments: Sequence[str], folder: str, environment: Mapping[str, str]
    ) -> Sequence[str]:
        """Make this process what a new one is."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._orders.detach()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
            old = getattr(sys, name)
            new = os.fdopen(number, mode, 1 if name == "stderr" else -1, old.encoding, old.errors)
            setattr(sys, name, new)
            setattr(sys, f"__{name}__", new)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        sys.argv = [str(ROOT / "orchestrator" / "__main__.py"), *arguments]
        return arguments


# ---- in the process of the tests ----


class Command(subprocess.Popen[str]):
    """A forked command: the same to a test as a process that it started by itself."""

    def __init__(self, told: int, *ends: IO[str] | None) -> None:
        self._told = told
        self.args = ()
        self.stdin, self.stdout, self.stderr = ends
        self.returncode: int | None = None
        self.pid = self._number()

    def __del__(self) -> None:
        os.close(self._told)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(self._number())
        return self.returncode

    def communicate(self, input: Any = None, timeout: float | None = None) -> Any:  # noqa: A002 - Popen's name
        """Return all that it says until its end; kill it after that time."""
        assert input is None
        with ThreadPoolExecutor(2) as pool:
            said = [end and pool.submit(end.read) for end in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return tuple(end and end.result() for end in said)

    def _number(self) -> int:
        number = os.read(self._told, NUMBER.size)
        assert number, "the nursery has ended"
        return int(NUMBER.unpack(number)[0])


class Nursery:
    """The process that forks, seen from the tests."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders

    def start(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], *streams: Any
    ) -> Command:
        """Start the command line; its three streams are what `subprocess.Popen` takes for them."""
        told, tells = os.pipe()
        theirs: list[int] = []
        ours: list[IO[str] | None] = []
        passed = [tells]
        for number, stream in enumerate(streams):
            ours.append(None)
            if stream is None:
                theirs.append(number)
            elif stream == subprocess.PIPE:
                reads, writes = os.pipe()
                passed.append(writes)
                theirs.append(writes)
                ours[-1] = os.fdopen(reads)
            elif stream == subprocess.DEVNULL:
                passed.append(os.open(os.devnull, os.O_RDWR))
                theirs.append(passed[-1])
            else:
                theirs.append(stream if isinstance(stream, int) else stream.fileno())
        order = {"arguments": arguments, "folder": str(folder), "environment": dict(environment)}
        socket.send_fds(self._orders, [json.dumps(order).encode()], [*theirs, tells])
        for end in passed:
            os.close(end)
        return Command(told, *ours)


@contextmanager
def nursery(environment: Mapping[str, str]) -> Iterator[Nursery]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, str(theirs.fileno())],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    with process, ours:
        yield Nursery(ours)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    for module in IMPORTED:
        import_module(f"orchestrator.{module}")
    gc.freeze()
    from orchestrator.cli import main

    main(Forks(int(sys.argv[1])).serve())
