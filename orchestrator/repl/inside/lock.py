"""The locks of the worker: limits that every UNIX has, and what the kernel of Linux offers beyond them.

A function closes one lock and returns a description. It raises OSError if that is not possible.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import signal
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping

# ---- system calls without a Python function ----


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


def drop_capabilities() -> str:
    """Drop all capabilities permanently. Raises OSError."""
    if not MACHINE:
        raise OSError(errno.ENOSYS, "this architecture is not known")
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header, nothing = _Header(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    syscall(CAPSET[MACHINE], ctypes.byref(header), ctypes.byref(nothing))
    return ""


# ---- limits that every UNIX has ----


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
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return ""


def forbid_privileges() -> str:
    """Let no set-uid program give privileges to this process. Raises OSError."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
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
        prctl(PR_SET_DUMPABLE, 1)  # else the maps of the user namespace cannot be written
    return f"user {user}"


def be_first_to_go() -> None:
    """Make this process the first one that the kernel ends when the host runs out of memory."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


# ---- namespaces ----
#
# A network without interfaces, no view of other processes, a file tree with Python and one folder. None of it needs
# root: a user namespace gives the right to create the others, and its capabilities are dropped again. If the kernel or
# the container forbids namespaces, only the other locks apply.


FLAGS = {
    "user_namespace": CLONE_NEWUSER,
    "pid_namespace": CLONE_NEWPID,
    "network_namespace": CLONE_NEWNET,
    "ipc_namespace": CLONE_NEWIPC | CLONE_NEWUTS,
    "mount_namespace": CLONE_NEWNS,
}


def enter(names: Iterable[str]) -> None:
    """Leave the namespaces of the host; the process namespace applies from the next fork. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    flags = 0
    for name in names:
        flags |= FLAGS[name]
    unshare(flags)
    if flags & CLONE_NEWUSER:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def own_tree(folder: str, readable: Iterable[str], size: int, files: int) -> str:
    """Make a tree in memory the root, with the readable files at their paths and a folder of at most `size` bytes.

    The folder is also at its old path, empty. Returns a description. Raises OSError; the tree is then unchanged.
    """
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    flags = MS_NOSUID | MS_NODEV
    mount("tmpfs", folder, "tmpfs", flags, "size=1m,nr_inodes=1k,mode=755")
    try:
        for path in readable:
            if os.path.exists(path):
                # Mount a file or folder read-only in the new tree.
                target = folder + path
                if os.path.isdir(path):
                    os.makedirs(target, exist_ok=True)
                else:
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
                mount(path, target, None, MS_BIND | MS_REC)
                if not path.startswith("/dev/"):
                    kept = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
                    mount("none", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | kept)
        os.makedirs(folder + folder)
        options = f"size={size},nr_inodes={files},mode=700"
        mount("tmpfs", folder + folder, "tmpfs", flags | MS_NOEXEC, options)
        mount("tmpfs", folder, None, flags | MS_REMOUNT | MS_RDONLY)
        os.chdir(folder)
        pivot_root_here()
    except OSError:
        unmount(folder)
        raise
    os.chdir(folder)
    return f"{size >> 20} MB in memory"


# ---- access to files (landlock) ----
#
# The worker may open files in its folder and read those of Python. No TCP, no abstract sockets.


_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_EXECUTE, _WRITE, _READ, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE, _MAKE_DIR, _MAKE = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_FIRST = (1 << 13) - 1
"""Access rights of the first version."""
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_READING = _READ | _READ_DIR
_WRITING = _READING | _WRITE | _REMOVE_DIR | _REMOVE | _MAKE_DIR | _MAKE | _REFER | _TRUNCATE
_TCP = 0b11
_KNOWS_NETWORK, _KNOWS_SCOPES = 4, 6
_SCOPES = 0b11
"""Abstract UNIX sockets, and signals to processes outside."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def limit_files(folder: str, readable: Iterable[str]) -> str:
    """Refuse every other file from now on, and return a description. Raises OSError if that is not possible."""
    version = syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    network, scopes = version >= _KNOWS_NETWORK, version >= _KNOWS_SCOPES
    later = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL))
    handled = _FIRST | sum(right for since, right in later if version >= since)
    ruleset = _Ruleset(handled, _TCP if network else 0, _SCOPES if scopes else 0)
    size = 24 if scopes else 16 if network else 8
    made = syscall(_CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        _allow(made, folder, _WRITING & ruleset.files)
        for path in readable:
            if os.path.exists(path):
                device = stat.S_ISCHR(os.stat(path).st_mode)
                _allow(made, path, (_READING | (_WRITE if device else 0)) & ruleset.files)
        syscall(_RESTRICT, ctypes.c_int(made), ctypes.c_uint32(0))
    finally:
        os.close(made)
    return f"version {version}"


def _allow(ruleset: int, path: str, rights: int) -> None:
    if not os.path.isdir(path):
        rights &= _OF_FILES
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _Beneath(rights, parent)
        syscall(_ADD, ctypes.c_int(ruleset), ctypes.c_int(1), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(parent)


# ---- system calls (seccomp) ----
#
# The worker may make the calls that a computing Python needs, and no others. The list names the allowed calls, so calls
# of newer kernels are refused too. It excludes, among others, every call that creates a process or a thread, starts a
# program, opens a socket, sends a signal, traces, mounts, changes modes or owners, raises a limit, or holds memory
# outside the address space (memfd, shared memory). The kernel answers these with EPERM.


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
            # Allow a call that opens a file, unless it truncates a file that it cannot write.
            yield _EQUAL, 0, 3 + 2 * len(_CUTS), number
            yield _LOAD, 0, 0, _argument(position)
            yield _AND, 0, 0, _TRUNCATING | _ACCESS
            for flags in _CUTS:
                yield _EQUAL, 0, 1, flags
                yield _RETURN, 0, 0, _REFUSE
            yield _RETURN, 0, 0, _ALLOW
    for *called, commands in _BY_COMMAND.values():
        # Allow these commands of a call.
        yield _EQUAL, 0, 2 + 2 * len(commands), called[column]
        yield _LOAD, 0, 0, _argument(1)
        for command in commands:
            yield _EQUAL, 0, 1, command
            yield _RETURN, 0, 0, _ALLOW
        yield _RETURN, 0, 0, _REFUSE
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


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def limit_calls() -> str:
    """Refuse every other call from now on, and return a description. Raises OSError if that is not possible."""
    if not MACHINE:
        raise OSError(errno.ENOSYS, "the system calls of this architecture are not known")
    packed = [struct.pack("HBBI", *instruction) for instruction in _program(MACHINE)]
    prctl(PR_SET_SECCOMP, 2, ctypes.byref(_Filter(len(packed), b"".join(packed))))
    return (
        f"{sum(one[0 if MACHINE == 'x86_64' else 1] is not None for one in _ALLOWED.values())} calls allowed"
    )
