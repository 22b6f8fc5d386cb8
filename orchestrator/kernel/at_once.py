"""Execution of coroutines that never wait, without an event loop or inside a running one."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class CoroutineWaited(RuntimeError):
    """A coroutine waited where waiting is not possible; it was closed."""


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits. Raises its errors, and CoroutineWaited if it waits."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise CoroutineWaited("a coroutine waited where waiting is not possible")
