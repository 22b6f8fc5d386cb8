"""Limit file access: the worker may open files in its folder and read those of Python. No TCP, no abstract sockets."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from orchestrator.repl.inside import libc

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


def close(folder: str, readable: Iterable[str]) -> str:
    """Refuse every other file from now on, and return a description. Raises OSError if that is not possible."""
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    network, scopes = version >= _KNOWS_NETWORK, version >= _KNOWS_SCOPES
    ruleset = _Ruleset(_handled(version), _TCP if network else 0, _SCOPES if scopes else 0)
    size = 24 if scopes else 16 if network else 8
    made = libc.syscall(_CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        _allow(made, folder, _WRITING & ruleset.files)
        for path in readable:
            if os.path.exists(path):
                device = stat.S_ISCHR(os.stat(path).st_mode)
                _allow(made, path, (_READING | (_WRITE if device else 0)) & ruleset.files)
        libc.syscall(_RESTRICT, ctypes.c_int(made), ctypes.c_uint32(0))
    finally:
        os.close(made)
    return f"version {version}"


def _handled(version: int) -> int:
    later = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL))
    return _FIRST | sum(right for since, right in later if version >= since)


def _allow(ruleset: int, path: str, rights: int) -> None:
    if not os.path.isdir(path):
        rights &= _OF_FILES
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _Beneath(rights, parent)
        libc.syscall(_ADD, ctypes.c_int(ruleset), ctypes.c_int(1), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(parent)
