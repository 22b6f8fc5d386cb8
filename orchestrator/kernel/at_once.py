"""Coroutines that never wait, run without an event loop: where there is none, or inside one that is running."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class CoroutineWaited(RuntimeError):
    """A coroutine waited where nothing can be waited for; it was closed."""


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits. Raises what it raises, Waited for one that does wait."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise CoroutineWaited("a coroutine waited where nothing can be waited for")
