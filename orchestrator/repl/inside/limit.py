"""Set the limits that every UNIX has, and give up root."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterable, Mapping

from orchestrator.repl.inside import libc


def set_limits(limits: Mapping[str, int]) -> str:
    """Limit CPU seconds, bytes of memory, bytes of a file and open files; no core dumps. Returns a description."""
    values = {
        resource.RLIMIT_CPU: limits["session_cpu_seconds"],
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["disk_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
    }
    for kind, wanted in values.items():
        _, hard = resource.getrlimit(kind)
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        # Some systems refuse some of them (macOS has no working limit of the address space).
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))
    return f"{limits['memory_bytes'] >> 20} MB of memory, {limits['session_cpu_seconds']} s of CPU"


def forbid_processes() -> str:
    """Forbid further processes to the user of the worker. This does not bind root. Raises OSError."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    if os.geteuid() == 0:
        raise OSError("does not bind root")
    return "no process, no thread"


def die_with_parent() -> str:
    """Ask the kernel to end this process together with its parent. Raises OSError."""
    if sys.platform != "linux":
        raise OSError("Linux only")
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    return ""


def leave_root(user: int, folder: str, needed: Iterable[str]) -> str:
    """Become a user who owns only that folder, if it and the `needed` files stay readable for that user.

    Otherwise it raises OSError, and nothing has changed.
    """
    os.chown(folder, user, user)
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    try:
        for path in (folder, *needed):  # a folder above may be closed to others
            os.listdir(path)
    except OSError:
        os.seteuid(0)
        os.setegid(0)
        os.chown(folder, 0, 0)
        raise
    os.seteuid(0)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if sys.platform == "linux":
        libc.prctl(libc.PR_SET_DUMPABLE, 1)  # else the maps of the user namespace cannot be written
    return f"user {user}"


def be_first_to_go() -> None:
    """Make this process the first one that the kernel ends when the host runs out of memory."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
