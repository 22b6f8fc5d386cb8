"""Commands that outlived the process that started them: found by the mark in their environment, and ended.

Whoever is killed with -9 ends nothing, and a command that goes on writes while its plan is taken back. Each command
carries a variable that says whose it is, and hands it on to all that it starts, also to what leaves its group. The mark
follows from what is durable before the command is started: there is no moment in which nobody would know of it, and no
number that could be another process by now. Rejected: PR_SET_PDEATHSIG, which reaches one process and not what that one
started, and a supervisor beside each command, which is a process more to start and may be killed just so.

Linux only, where /proc tells the environment of a process of one's own; elsewhere nothing is found. What empties its
environment or takes another user is not found either: the command stays in doubt, and a person is asked.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

MARK = "ORCHESTRATOR_COMMAND"
"""The variable."""
_ROUNDS = 5
"""How often it is looked again for what was started meanwhile."""


def mark_of(root: Path, run_id: str, key: str) -> str:
    """Return the value of the variable: of one try of one command, in one project."""
    return hashlib.sha256("\0".join((str(root), run_id, key)).encode()).hexdigest()


def end(marks: Collection[str], grace: float) -> frozenset[str]:
    """End every process that carries one of these, and return the marks that were found. Blocks.

    Each is asked to end, and ended after `grace` seconds.
    """
    wanted = {f"{MARK}={mark}".encode(): mark for mark in marks}
    found: set[str] = set()
    for number in (signal.SIGTERM, *[signal.SIGKILL] * _ROUNDS):
        with ExitStack() as stack:
            alive = dict(_bearers(wanted, stack))
            if not alive:
                break
            found.update(alive.values())
            _tell(alive, number, grace)
    return frozenset(found)


def _tell(alive: Collection[int], number: signal.Signals, seconds: float) -> None:
    """Signal processes, and wait until they have ended."""
    waiting = select.poll()
    for fd in alive:
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(fd, number)
        waiting.register(fd, select.POLLIN)
    left, until = len(alive), time.monotonic() + seconds
    while left and (rest := until - time.monotonic()) > 0:
        for fd, _ in waiting.poll(rest * 1000):
            waiting.unregister(fd)
            left -= 1


def _bearers(wanted: dict[bytes, str], stack: ExitStack) -> Iterator[tuple[int, str]]:
    """Yield each process with one of these variables, as a file descriptor that can be no other process."""
    if not hasattr(os, "pidfd_open") or not Path("/proc/self/environ").exists():
        return
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # it has ended, or is somebody else's
            fd = os.pidfd_open(int(entry.name))
            stack.callback(os.close, fd)
            # Read after that: whose environment this is, the descriptor is of.
            for variable in (entry / "environ").read_bytes().split(b"\0"):
                if variable in wanted:
                    yield fd, wanted[variable]
