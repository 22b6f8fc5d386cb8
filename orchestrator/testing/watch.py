"""Observe the outside access of a function while it runs: files, sockets, processes, clocks, random numbers.

It uses one audit hook for the process, added at its first use: Python cannot remove one. Outside an observed call the
hook costs one read of a context variable.
"""

from __future__ import annotations

import _thread
import asyncio
import functools
import gc
import os
import random
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import date
from types import FrameType
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Watch(NamedTuple):
    seen: list[str]
    refuse: Callable[[str], Exception]


_WATCH: ContextVar[_Watch | None] = ContextVar("orchestrator_watch", default=None)

_EVENTS = frozenset(("builtins.input", "open", "urllib.Request"))
_FAMILIES = frozenset(
    (
        "ftplib",
        "glob",
        "http",
        "imaplib",
        "os",
        "pathlib",
        "poplib",
        "shutil",
        "smtplib",
        "socket",
        "sqlite3",
        "subprocess",
        "tempfile",
    )
)

_CALLS = frozenset(
    (
        os.lstat,
        os.stat,
        os.urandom,
        print,
        _thread.start_new_thread,
        time.monotonic,
        time.monotonic_ns,
        time.perf_counter,
        time.perf_counter_ns,
        time.process_time,
        time.process_time_ns,
        time.sleep,
        time.thread_time,
        time.thread_time_ns,
        time.time,
        time.time_ns,
        getattr(_thread, "start_joinable_thread", _thread.start_new_thread),  # used by threading since 3.13
    )
)
_METHODS = frozenset(("now", "today", "utcnow"))
_CHANCE = getattr(random.random, "__self__", None)
"""The generator behind the functions of `random`; a generator in a context is plain data."""
_ASYNCIO = asyncio.__name__


def call(
    function: Callable[[Any], T], argument: object, seen: list[str], refuse: Callable[[str], Exception]
) -> T:
    """Return `function(argument)`; descriptions of its outside access are added to `seen`.

    Files, sockets and processes are not even opened: the function gets the error that `refuse(why)` returns.
    """
    _listen()
    collecting, earlier = gc.isenabled(), sys.getprofile()
    # finalizers and gc.callbacks (one of hypothesis reads a clock) do not belong to the function
    gc.disable()
    token = _WATCH.set(_Watch(seen, refuse))
    sys.setprofile(functools.partial(_profile, seen))
    try:
        return function(argument)
    finally:
        sys.setprofile(earlier)
        _WATCH.reset(token)
        if collecting:
            gc.enable()


@functools.cache
def _listen() -> None:
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    watch = _WATCH.get()
    if watch is None or not (event in _EVENTS or event.partition(".")[0] in _FAMILIES):
        return
    if _importing(sys._getframe(1)):  # noqa: SLF001 - the only way to find the caller
        return
    detail = f" ({arguments[0]!r})" if event == "open" and arguments else ""
    watch.seen.append(f"it reached outside: {event}{detail}")
    raise watch.refuse(watch.seen[-1])  # `seen` still reveals a guard that swallows this


def _profile(seen: list[str], frame: FrameType, event: str, called: Any) -> None:
    if event == "c_call":
        why = _reached(called)
    elif event == "call" and str(frame.f_globals.get("__name__")).partition(".")[0] == _ASYNCIO:
        why = f"it used the event loop: {frame.f_code.co_qualname}"
    else:
        return
    if why is not None and not _importing(frame):
        seen.append(why)


def _reached(called: Any) -> str | None:
    """Return the outside access of a builtin in words, or None for a harmless one."""
    owner = getattr(called, "__self__", None)
    name = getattr(called, "__qualname__", "")
    if owner is not None and owner is _CHANCE:
        return f"it used random numbers: {name}"
    if isinstance(owner, type) and issubclass(owner, date) and called.__name__ in _METHODS:
        return f"it read a clock: {owner.__name__}.{called.__name__}"
    if called in _CALLS:
        return f"it called {called.__module__}.{name}"
    return None


def _importing(frame: FrameType | None) -> bool:
    """Return whether an import lies between this frame and `call`."""
    while frame is not None and frame.f_globals is not globals():
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
