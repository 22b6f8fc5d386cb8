"""Settings of Python's cyclic garbage collector for processes with thousands of runs or records.

Each waiting run keeps some two hundred objects that the collector visits, and none of them becomes garbage before the
run ends. With Python's own thresholds a process of 10,000 runs spends half of its time on visits that find nothing.
A page of the console reads thousands of records with the same effect. A library must not change the collector of its
host, so only `orchestrator worker` and `orchestrator console` change it without being asked.
"""

from __future__ import annotations

import gc
import platform
from typing import Final

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
