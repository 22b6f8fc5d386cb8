"""The process of an engine: its event loop, its signals, and Python's cyclic garbage collector.

`first_signal` serves a process that waits in `run_until_signal`: the first SIGTERM or SIGINT drains, the second one
ends at once. Meanwhile SIGUSR1 prints all stacks and has no other effect. The journal is durable at every instruction,
so ending at once loses no acknowledged record.

Each waiting run keeps some 130 objects that the collector visits, and none of them becomes garbage before the run
ends. With Python's own thresholds a process of 10,000 runs spends half of its time on visits that find nothing. A page
of the console reads thousands of records with the same effect. A library must not change the collector of its host, so
only `orchestrator worker` and `orchestrator console` change it without being asked. An engine changes the thresholds
while it is active if it was given some (`GcThresholds`), and never freezes objects: those of the host are not its own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Final, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.telemetry.watchdog import on_signal

LoopAffinity: TypeAlias = tuple[int, asyncio.AbstractEventLoop]
"""A process id, and an event loop in that process."""


def current_affinity() -> LoopAffinity:
    """Return the current process and event loop."""
    return os.getpid(), asyncio.get_running_loop()


def refuse_foreign(engine: str, affinity: LoopAffinity | None, *, started: bool = True) -> None:
    """Raise ConfigError outside the engine's process and loop; with `started`, also before its start."""
    if affinity is None and started:
        raise ConfigError(f"engine {engine!r} is not started; use `async with` or `await engine.start()`")
    if affinity is not None and affinity != current_affinity():
        raise ConfigError(
            f"engine {engine!r} belongs to the process and event loop that started it: make another one "
            "after a fork, and reach it from other threads by asyncio.run_coroutine_threadsafe"
        )


SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def first_signal(act: Callable[[str], None]) -> Iterator[None]:
    """Call `act` with the name of the first SIGTERM or SIGINT, on the running loop, while the block is active.

    If SIGUSR1 has no handler, it prints all stacks to stderr meanwhile. The handlers are Python's own, not the loop's:
    the second signal has to work while the loop is blocked. Raises ConfigError outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("only the main thread can wait for signals; call `engine.drain()` in other threads")
    loop = asyncio.get_running_loop()

    def handle(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(act, signal.Signals(number).name)

    before = {each: signal.signal(each, handle) for each in SIGNALS}
    try:
        with on_signal() if _free() else nullcontext():
            yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _free() -> bool:
    """Return whether SIGUSR1 has no handler. Python does not see handlers of C code, such as faulthandler's."""
    number = getattr(signal, "SIGUSR1", None)
    if number is None or signal.getsignal(number) is not signal.SIG_DFL:
        return False
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # this system has no such file: Python's knowledge has to do
        return True
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return not caught >> (number - 1) & 1


THRESHOLDS: Final = (50_000, 20, 50)
"""Thresholds of the three generations, as for `gc.set_threshold`."""


def tune_garbage_collection(thresholds: tuple[int, int, int] = THRESHOLDS) -> None:
    """Set the thresholds of the garbage collector and exclude all present objects from its visits.

    Call it once in a process that executes many runs, or serves the console: after its imports and the construction of
    its agents, before its first run. Garbage that exists at this time is collected first. Garbage that is made later is
    found as before, but less often: memory for up to `thresholds[0]` further objects may be in use.

    Args:
        thresholds: Numbers of new objects, and of collections of the younger generation, that start a collection.

    Example:
        >>> import gc
        >>> before = gc.get_threshold()
        >>> tune_garbage_collection((50_000, 20, 50))
        >>> gc.get_threshold()[0]
        50000
        >>> gc.unfreeze(); gc.set_threshold(*before)
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)


Thresholds: TypeAlias = tuple[int, int, int]


class GcThresholds:
    """Thresholds of the garbage collector of the process while an engine is active. None changes nothing.

    Several engines of a process may have some: those of the engine that was started last apply. When the last of them
    has stopped, the thresholds are those from before the first one, unless the host has changed them meanwhile.

    Raises:
        ConfigError: These are no thresholds.
    """

    def __init__(self, thresholds: Thresholds | None) -> None:
        given: object = thresholds
        if given is not None and not (
            isinstance(given, tuple | list)
            and len(given) == len(THRESHOLDS)
            and all(type(one) is int and one > 0 for one in given)
        ):
            raise ConfigError(
                f"gc_thresholds is {given!r}; give three whole numbers of 1 or more, for example {THRESHOLDS}, or None "
                "to leave the collector alone"
            )
        self._own: Thresholds | None = None if thresholds is None else (*thresholds,)

    def set(self) -> None:
        """Set them for the process."""
        if self._own is None:
            return
        with _GC_LOCK:
            if not _ACTIVE:
                _HOST[:] = gc.get_threshold()
            _ACTIVE.append(self)
            gc.set_threshold(*self._own)
            self._seen = gc.get_threshold()

    def restore(self) -> None:
        """Take them back. May be called again."""
        with _GC_LOCK:
            if self not in _ACTIVE:
                return
            was_last = _ACTIVE[-1] is self
            _ACTIVE.remove(self)
            if was_last and gc.get_threshold() == self._seen:  # Python 3.13 ignores the third number
                following = _ACTIVE[-1]._own if _ACTIVE else None  # noqa: SLF001 - of this class
                gc.set_threshold(*(following or _HOST))


_GC_LOCK = threading.Lock()
_ACTIVE: list[GcThresholds] = []
"""The thresholds of the active engines, in the order of their start."""
_HOST: list[int] = []
"""The thresholds of the process before the first of them."""


def garbage_collection_setting() -> str:
    """Return the interpreter and the thresholds of this process as one phrase for a person.

    Example:
        >>> garbage_collection_setting().startswith(("CPython", "PyPy"))
        True
    """
    name = f"{platform.python_implementation()} {platform.python_version()}"
    if not gc.isenabled():
        return f"{name}, garbage collection off"
    return f"{name}, garbage collection thresholds {_listed(gc.get_threshold())}"


def worker_setting() -> str:
    """Return the thresholds that a worker sets, as text.

    Example:
        >>> worker_setting()
        '50,000, 20, 50'
    """
    return _listed(THRESHOLDS)


def _listed(thresholds: tuple[int, ...]) -> str:
    return ", ".join(f"{one:,}" for one in thresholds)
