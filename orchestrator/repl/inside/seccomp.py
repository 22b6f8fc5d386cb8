"""Limit system calls: the worker may make those that a computing Python needs, and no others.

The list names the allowed calls, so calls of newer kernels are refused too. It excludes, among others, every call
that creates a process or a thread, starts a program, opens a socket, sends a signal, traces, mounts, changes modes or
owners, raises a limit, or holds memory outside the address space (memfd, shared memory). The kernel answers these
with EPERM.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator

from orchestrator.repl.inside import libc

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
"""Calls of the x32 ABI have this bit: the same calls by other numbers."""

# name: (x86_64, aarch64); None if the architecture has no such call.
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "poll": (7, None),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "readv": (19, 65),
    "writev": (20, 66),
    "access": (21, None),
    "select": (23, None),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "dup": (32, 23),
    "dup2": (33, None),
    "nanosleep": (35, 101),
    "getpid": (39, 172),
    "exit": (60, 93),
    "uname": (63, 160),
    "flock": (73, 32),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "ftruncate": (77, 46),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "rename": (82, None),
    "mkdir": (83, None),
    "rmdir": (84, None),
    "creat": (85, None),
    "unlink": (87, None),
    "readlink": (89, None),
    "umask": (95, 166),
    "gettimeofday": (96, 169),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "sigaltstack": (131, 132),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "gettid": (186, 178),
    "time": (201, None),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "getdents64": (217, 61),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "mkdirat": (258, 34),
    "newfstatat": (262, 79),
    "unlinkat": (263, 35),
    "renameat": (264, 38),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "set_robust_list": (273, 99),
    "dup3": (292, 24),
    "renameat2": (316, 276),
    "getrandom": (318, 278),
    "statx": (332, 291),
    "rseq": (334, 293),
    "faccessat2": (439, 439),
}
_OPENING: dict[str, tuple[int | None, int | None, int]] = {"open": (2, None, 1), "openat": (257, 56, 2)}
"""Numbers for both architectures as above, then the index of the argument with the flags."""
_ACCESS, _TRUNCATING = 0o3, 0o1000
_CUTS = (0o1000, 0o1003)
"""Flags that truncate a file without opening it for writing: landlock before version 3 covers neither them nor
truncate()."""
_BY_COMMAND: dict[str, tuple[int, int, tuple[int, ...]]] = {
    # Terminal test and width, non-blocking, close-on-exec: used by Python's files.
    "ioctl": (16, 29, (0x5401, 0x5413, 0x5421, 0x5450, 0x5451)),
    # Copies, flags and locks of a file. Not F_SETOWN and F_SETSIG, with which a pipe could signal any process.
    "fcntl": (72, 25, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)),
}
"""Calls with many commands, and the allowed values of their second argument."""
_PRLIMIT = {"x86_64": 302, "aarch64": 261}

_LOAD, _EQUAL, _GREATER, _RETURN, _AND = 0x20, 0x15, 0x35, 0x06, 0x54
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4


def _argument(index: int, *, high: bool = False) -> int:
    return 16 + 8 * index + (4 if high else 0)


def _program(machine: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield the instructions: (code, steps if true, steps if false, value)."""
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, _ARCH[machine]
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER
    yield _GREATER, 0, 1, _X32
    yield _RETURN, 0, 0, _REFUSE
    column = ("x86_64", "aarch64").index(machine)
    for numbers in _ALLOWED.values():
        if (number := numbers[column]) is not None:
            yield _EQUAL, 0, 1, number
            yield _RETURN, 0, 0, _ALLOW
    for *given, position in _OPENING.values():
        if (number := given[column]) is not None:
            yield from _opening(number, position)
    for *called, commands in _BY_COMMAND.values():
        yield from _by_command(called[column], commands)
    # Limits may be read, of itself: prlimit64(0, …, NULL, …).
    yield _EQUAL, 0, 7, _PRLIMIT[machine]
    yield _LOAD, 0, 0, _argument(0)
    yield _EQUAL, 0, 5, 0
    yield _LOAD, 0, 0, _argument(2)
    yield _EQUAL, 0, 3, 0
    yield _LOAD, 0, 0, _argument(2, high=True)
    yield _EQUAL, 0, 1, 0
    yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _REFUSE


def _opening(number: int, position: int) -> Iterator[tuple[int, int, int, int]]:
    """Allow a call that opens a file, unless it truncates a file that it cannot write."""
    yield _EQUAL, 0, 3 + 2 * len(_CUTS), number
    yield _LOAD, 0, 0, _argument(position)
    yield _AND, 0, 0, _TRUNCATING | _ACCESS
    for flags in _CUTS:
        yield _EQUAL, 0, 1, flags
        yield _RETURN, 0, 0, _REFUSE
    yield _RETURN, 0, 0, _ALLOW


def _by_command(number: int, commands: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    """Allow these commands of a call."""
    yield _EQUAL, 0, 2 + 2 * len(commands), number
    yield _LOAD, 0, 0, _argument(1)
    for command in commands:
        yield _EQUAL, 0, 1, command
        yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _REFUSE


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def close() -> str:
    """Refuse every other call from now on, and return a description. Raises OSError if that is not possible."""
    if not libc.MACHINE:
        raise OSError(errno.ENOSYS, "the system calls of this architecture are not known")
    packed = [struct.pack("HBBI", *instruction) for instruction in _program(libc.MACHINE)]
    libc.prctl(libc.PR_SET_SECCOMP, 2, ctypes.byref(_Filter(len(packed), b"".join(packed))))
    return f"{sum(one[0 if libc.MACHINE == 'x86_64' else 1] is not None for one in _ALLOWED.values())} calls allowed"
