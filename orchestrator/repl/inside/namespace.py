"""Namespaces: a network without interfaces, no view of other processes, a file tree with Python and one folder.

None of it needs root: a user namespace gives the right to create the others, and its capabilities are dropped again.
If the kernel or the container forbids namespaces, only the other locks apply.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from orchestrator.repl.inside import libc

FLAGS = {
    "user_namespace": libc.CLONE_NEWUSER,
    "pid_namespace": libc.CLONE_NEWPID,
    "network_namespace": libc.CLONE_NEWNET,
    "ipc_namespace": libc.CLONE_NEWIPC | libc.CLONE_NEWUTS,
    "mount_namespace": libc.CLONE_NEWNS,
}


def enter(names: Iterable[str]) -> None:
    """Leave the namespaces of the host; the process namespace applies from the next fork. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    flags = 0
    for name in names:
        flags |= FLAGS[name]
    libc.unshare(flags)
    if flags & libc.CLONE_NEWUSER:
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
    libc.mount("none", "/", None, libc.MS_REC | libc.MS_PRIVATE)
    flags = libc.MS_NOSUID | libc.MS_NODEV
    libc.mount("tmpfs", folder, "tmpfs", flags, "size=1m,nr_inodes=1k,mode=755")
    try:
        for path in readable:
            if os.path.exists(path):
                _bind(path, folder + path)
        os.makedirs(folder + folder)
        options = f"size={size},nr_inodes={files},mode=700"
        libc.mount("tmpfs", folder + folder, "tmpfs", flags | libc.MS_NOEXEC, options)
        libc.mount("tmpfs", folder, None, flags | libc.MS_REMOUNT | libc.MS_RDONLY)
        os.chdir(folder)
        libc.pivot_root_here()
    except OSError:
        libc.unmount(folder)
        raise
    os.chdir(folder)
    return f"{size >> 20} MB in memory"


def _bind(path: str, target: str) -> None:
    """Mount a file or folder read-only in the new tree."""
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    libc.mount(path, target, None, libc.MS_BIND | libc.MS_REC)
    if not path.startswith("/dev/"):
        kept = os.statvfs(path).f_flag & (libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC)
        libc.mount("none", target, None, libc.MS_BIND | libc.MS_REMOUNT | libc.MS_RDONLY | kept)
