"""Calls of coroutines from code without an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from orchestrator.errors import ConfigError

R = TypeVar("R")
S = TypeVar("S")
P = ParamSpec("P")


def with_arguments_of(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[[Callable[..., R]], Callable[Concatenate[S, P], R]]:
    """Give a method that passes its arguments on to the coroutine `method` the same signature."""

    def decorate(function: Callable[..., R]) -> Callable[Concatenate[S, P], R]:
        function.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
        return function

    return decorate


def outside_loop(called: str, instead: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run `work` to its end outside an event loop.

    Raises ConfigError, which names the coroutine to await, inside one.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    raise ConfigError(f"{called} was called inside a running event loop; use `await {instead}(...)` there")
