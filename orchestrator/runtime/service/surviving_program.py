"""Programs that outlive the process that started them: how they are marked, found and ended.

A process that is killed with -9 ends nothing, and its programs continue to write while their work is repeated. Each
program has an environment variable with a mark and passes it to all processes that it starts, even to those that
leave its session. The mark is durable before the program is started, so no process number has to be stored, which
could belong to another process later. A program that runs inside another one has the marks of both. Rejected
alternatives: PR_SET_PDEATHSIG, which reaches one process and not its children, and a supervisor for each program,
which is one more process and can be killed too.

Linux only, because /proc shows the environment and the parent of each process; elsewhere `can_find` is False, and a
person is asked. The scan sees the processes of this user in this PID namespace. A process that empties its
environment is found if its parent is found; a process of another user is not found.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

MARK = "ORCHESTRATOR_COMMAND"
"""The variable. Its value is the marks of a program, separated by spaces, the innermost last."""
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_ROUNDS = 5
"""Number of repeated scans for processes that were started meanwhile."""
_PROC = Path("/proc")


class ProgramEnd(NamedTuple):
    """The result of `end`."""

    marks: frozenset[str]
    """Marks of which at least one process was found."""
    left: tuple[int, ...]
    """Processes that could not be killed and still exist."""


class _Process(NamedTuple):
    pid: int
    parent: int
    began: str
    """Start time in ticks since the boot. With the number it identifies a process."""
    mark: str
    """The mark that was found; empty if it has none."""


def mark_of(*identity: str) -> str:
    """Return the mark that is derived from these parts: the same in every process."""
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()


def variable(mark: str) -> Mapping[str, str]:
    """Return the environment variable of a program with `mark` and the marks of this process."""
    return {MARK: f"{os.environ.get(MARK, '')} {mark}".strip()}


def host_name() -> str:
    """Return the name of this host, as in the owner of a lease."""
    return socket.gethostname()


def can_find() -> bool:
    """Return whether this system shows the environment and the parent of each process."""
    return hasattr(os, "pidfd_open") and (_PROC / "self" / "environ").exists()


def end(marks: Collection[str], grace: float = GRACE) -> ProgramEnd:
    """End every process with one of these marks, and its children. Blocks.

    Each gets SIGTERM, and SIGKILL after `grace` seconds. This process itself is excluded.
    """
    marks, found = frozenset(marks), set[str]()
    alive: list[_Process] = []
    for number in range(_ROUNDS + 1):
        alive = _survivors(marks)
        if not alive or number == _ROUNDS:
            break
        found.update(one.mark for one in alive)
        with ExitStack() as stack:
            # A child without a mark cannot be found after its parent has ended, so all are opened before.
            opened = [fd for one in alive if (fd := _opened(one, stack)) is not None]
            if number == 0:
                _signal(opened, signal.SIGTERM, grace)
            _signal(opened, signal.SIGKILL, GRACE)  # on a busy machine a killed process does not end at once
    return ProgramEnd(frozenset(found), tuple(one.pid for one in alive))


def _opened(process: _Process, stack: ExitStack) -> int | None:
    """Return a descriptor of a process, or None if it has ended."""
    with suppress(OSError):
        fd = os.pidfd_open(process.pid)
        stack.callback(os.close, fd)
        # Read after opening: from here on the descriptor refers to this process or to none.
        if (now := _read(process.pid)) is not None and now[2] == process.began:
            return fd
    return None


def _signal(opened: Collection[int], number: signal.Signals, seconds: float) -> None:
    """Signal processes, and wait until they have ended."""
    waiting = select.poll()
    for fd in opened:
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(fd, number)
        waiting.register(fd, select.POLLIN)
    left, until = len(opened), time.monotonic() + seconds
    while left and (rest := until - time.monotonic()) > 0:
        for fd, _ in waiting.poll(rest * 1000):
            waiting.unregister(fd)
            left -= 1


def _survivors(marks: frozenset[str]) -> list[_Process]:
    """Return the processes with one of these marks, and their descendants without a mark."""
    if not marks or not can_find():
        return []
    there = list(_processes(marks))
    below: dict[int, list[_Process]] = {}
    for one in there:
        below.setdefault(one.parent, []).append(one)
    found = {one.pid: one for one in there if one.mark}
    queue = list(found.values())
    while queue:
        above = queue.pop()
        new = [one._replace(mark=above.mark) for one in below.get(above.pid, ()) if one.pid not in found]
        found |= {one.pid: one for one in new}
        queue += new
    return list(found.values())


def _processes(marks: frozenset[str]) -> Iterator[_Process]:
    """Yield all processes except this one and ended ones."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (pid := int(entry.name)) != os.getpid():
            read = _read(pid)
            if read is not None and read[0] not in {"Z", "X"}:  # ended, but not reaped by its parent
                yield _Process(pid, read[1], read[2], _mark_in(entry, marks))


def _read(pid: int) -> tuple[str, int, str] | None:
    """Return state, parent and start of a process; None if it does not exist."""
    with suppress(OSError):
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[1]), fields[19]
    return None


def _mark_in(entry: Path, marks: frozenset[str]) -> str:
    """Return the wanted mark of a process; empty if it has none or its environment cannot be read."""
    with suppress(OSError):
        for line in (entry / "environ").read_bytes().split(b"\0"):
            name, _, value = line.partition(b"=")
            if name == MARK.encode():
                return next((mark for mark in value.decode(errors="replace").split() if mark in marks), "")
    return ""
