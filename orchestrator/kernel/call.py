"""Enter the context managers of observers around each model request and tool call.

Facts report completed actions, so no fact can make the span of a call the current one while the call runs. An observer
may therefore have a method `around(call)`. It returns a context manager that is entered in the task of the call,
directly around the host's code, so that the code and its threads inherit the context variables. Without such an
observer a call has one comparison more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from orchestrator.kernel.value import value


@value(frozen=True, slots=True)
class Call:
    """A model request or a tool call that starts now. The fact about its end has the same key."""

    graph: str
    run_id: str
    kind: Literal["model", "tool"]
    name: str
    """Name of the configured model, or registered name of the tool."""
    iteration: int
    position: int
    """Position of a tool call in its answer; 0 for a model request."""
    at: float
    """Start (epoch seconds)."""


Around: TypeAlias = Callable[[Call], AbstractContextManager[object]]
"""Returns the context manager of a call."""
Failed: TypeAlias = Callable[[object, Exception], None]
"""Counts an exception of an observer."""


def around(observers: Iterable[object], failed: Failed) -> Around | None:
    """Return the function that makes the context manager of a call; None if no observer has `around`."""
    found = [(observer, method) for observer in observers if (method := getattr(observer, "around", None))]
    return partial(_CallScope, found, failed) if found else None


class _CallScope:
    """The context managers of all observers. An exception of an observer is counted and changes nothing."""

    __slots__ = ("_call", "_entered", "_failed", "_observers")

    def __init__(self, observers: list[tuple[object, Around]], failed: Failed, call: Call) -> None:
        self._observers, self._failed, self._call = observers, failed, call
        self._entered: list[tuple[object, AbstractContextManager[Any]]] = []

    def __enter__(self) -> Self:
        for observer, method in self._observers:
            try:
                scope = method(self._call)
                scope.__enter__()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the observer's own
                self._failed(observer, error)
            else:
                self._entered.append((observer, scope))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for observer, scope in reversed(self._entered):
            try:
                scope.__exit__(kind, error, trace)
            except Exception as raised:  # noqa: BLE001 - as above
                self._failed(observer, raised)
