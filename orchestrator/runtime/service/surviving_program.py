"""Programs that outlive the process that started them: how they are marked, found and ended.

A process that is killed with -9 ends nothing, and its programs continue to write while their work is repeated. Each
program carries a variable with a mark, and hands it on to all that it starts, also to what leaves its session. The mark
is durable before the program is started, so no process number has to be kept that could belong to another process by
now. A program that runs inside another one carries the marks of both. Rejected: PR_SET_PDEATHSIG, which reaches one
process and not its children, and a supervisor beside each program, which is one more process and can be killed too.

Linux only, where /proc shows the environment and the parent of each process; elsewhere `can_find` is False, and a
person is asked. The scan sees the processes of this user in this PID namespace. A process that empties its environment
is found as long as its parent is one that was found; one that runs as another user is not found.
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
"""The variable; its value is the marks of a program, separated by spaces, the innermost last."""
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_ROUNDS = 5
"""How often the scan is repeated for processes that were started meanwhile, and the wait for those that were killed."""
_PROC = Path("/proc")


class ProgramEnd(NamedTuple):
    """What `end` did."""

    marks: frozenset[str]
    """Marks of which at least one process was found."""
    left: tuple[int, ...]
    """Processes that are still there, because they could not be killed."""


class _Process(NamedTuple):
    pid: int
    parent: int
    began: str
    """When it was started, in ticks since the boot: with the number, that is one process and no other."""
    mark: str
    """One of the marks that are looked for; empty where it carries none."""


def mark_of(*identity: str) -> str:
    """Return the mark that follows from these parts: the same in every process."""
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()


def variable(mark: str) -> Mapping[str, str]:
    """Return the environment variable of a program that carries `mark` and those of this process."""
    return {MARK: f"{os.environ.get(MARK, '')} {mark}".strip()}


def host_name() -> str:
    """Return the name of this host, as the owner of a lease has it."""
    return socket.gethostname()


def can_find() -> bool:
    """Return whether this system shows the environment and the parent of each process."""
    return hasattr(os, "pidfd_open") and (_PROC / "self" / "environ").exists()


def end(marks: Collection[str], grace: float = GRACE) -> ProgramEnd:
    """End every process that carries one of these marks, with the children of each. Blocks.

    Each gets SIGTERM, and SIGKILL after `grace` seconds. This process itself is left alone.
    """
    wanted, found = frozenset(marks), set[str]()
    alive: list[_Process] = []
    for number in range(_ROUNDS + 1):
        alive = _survivors(wanted)
        if not alive or number == _ROUNDS:
            break
        found.update(one.mark for one in alive)
        with ExitStack() as stack:
            # A child without a mark is not found again once its parent has ended, so all are opened before that.
            opened = [fd for one in alive if (fd := _opened(one, stack)) is not None]
            if number == 0:
                _signal(opened, signal.SIGTERM, grace)
            _signal(opened, signal.SIGKILL, grace)
    return ProgramEnd(frozenset(found), tuple(one.pid for one in alive))


def _opened(process: _Process, stack: ExitStack) -> int | None:
    """Return a descriptor of a process, or None where it has ended."""
    with suppress(OSError):
        fd = os.pidfd_open(process.pid)
        stack.callback(os.close, fd)
        # Read after that: from here on the descriptor refers to this process or to none.
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


def _survivors(wanted: frozenset[str]) -> list[_Process]:
    """Return the processes that carry one of these marks, and those below them that carry none."""
    if not wanted or not can_find():
        return []
    there = list(_processes(wanted))
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


def _processes(wanted: frozenset[str]) -> Iterator[_Process]:
    """Yield all processes but this one, and those that have ended."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (pid := int(entry.name)) != os.getpid():
            read = _read(pid)
            if read is not None and read[0] not in {"Z", "X"}:  # ended, and its parent has not asked how
                yield _Process(pid, read[1], read[2], _mark_in(entry, wanted))


def _read(pid: int) -> tuple[str, int, str] | None:
    """Return state, parent and start of a process; None where there is none."""
    with suppress(OSError):
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[1]), fields[19]
    return None


def _mark_in(entry: Path, wanted: frozenset[str]) -> str:
    """Return which of the marks a process carries; empty for none, and where its environment cannot be read."""
    with suppress(OSError):
        for line in (entry / "environ").read_bytes().split(b"\0"):
            name, _, value = line.partition(b"=")
            if name == MARK.encode():
                return next((mark for mark in value.decode(errors="replace").split() if mark in wanted), "")
    return ""
