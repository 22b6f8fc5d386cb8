"""System calls without a Python function."""

from __future__ import annotations

import ctypes
import errno
import os
import platform

MACHINE = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}.get(
    platform.machine().lower(), ""
)
"""The architecture, if its numbers are known; empty for another one."""

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> int:
    """Return the result of a call. Raises OSError if the call failed."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(number: int, *arguments: object) -> int:
    """Make a system call. Raises OSError."""
    return checked(_libc.syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, *arguments: object) -> int:
    """Set an option of this process. Raises OSError."""
    given = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments]
    return checked(_libc.prctl(option, *given, *[ctypes.c_ulong(0)] * (4 - len(given))))


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` name. Raises OSError."""
    checked(_libc.unshare(flags))


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount a file system or a folder. Raises OSError."""
    given = [None if one is None else os.fsencode(one) for one in (source, target, kind, options)]
    checked(_libc.mount(given[0], given[1], given[2], ctypes.c_ulong(flags), given[3]))


def unmount(target: str) -> None:
    """Remove a mount, even one in use. Raises OSError."""
    checked(_libc.umount2(os.fsencode(target), MNT_DETACH))


def pivot_root_here() -> None:
    """Make the current folder the root and detach the old one. Raises OSError."""
    if not MACHINE:
        raise OSError(errno.ENOSYS, "this architecture is not known")
    syscall(PIVOT_ROOT[MACHINE], b".", b".")
    unmount(".")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def drop_capabilities() -> None:
    """Drop all capabilities permanently. Raises OSError."""
    if not MACHINE:
        raise OSError(errno.ENOSYS, "this architecture is not known")
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header, nothing = _Header(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    syscall(CAPSET[MACHINE], ctypes.byref(header), ctypes.byref(nothing))
