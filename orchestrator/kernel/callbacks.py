"""Callbacks of a machine's table as the executor runs them: found by name, checked, and awaited."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.kernel.abandonment import host_function
from orchestrator.kernel.hooks import Hook, takes

_OURS = ("orchestrator_callbacks.", "orchestrator.kernel.")
"""Modules of our hooks: they are async, pass a cancellation on and mark the host code that they call."""


def resolve(callback: Any, modules: Iterable[object]) -> Any:
    """Return the function that a callback names: of a hook module, else under its dotted path.

    A function is returned as it is. Raises LookupError for a name that is nowhere.
    """
    if not isinstance(callback, str):
        return callback
    for module in modules:
        found = getattr(module, callback, None)
        if callable(found):
            return found
    folder, _, name = callback.rpartition(".")
    try:
        return getattr(importlib.import_module(folder), name)
    except (ImportError, AttributeError, ValueError):
        text = f"callback {callback!r} is in no hook module; give a function, a name in one, or a dotted path"
        raise LookupError(text) from None


def awaitable(callback: Any) -> Hook:
    """Return the callback as a function to await. Raises TypeError for one that does not take the run.

    Code of the host can be abandoned where it ignores a cancellation.
    """
    if not callable(callback):
        raise TypeError(f"callback {callback!r} is a {type(callback).__name__}; give a function of the run")
    if not takes(callback, 1):
        raise TypeError(f"callback {callback_name(callback)!r} must take the run, and nothing else")
    if str(getattr(callback, "__module__", "")).startswith(_OURS):
        hook: Hook = callback
        return hook
    return host_function(_asynchronous(callback), "hook", callback_name(callback))


def _asynchronous(callback: Callable[..., Any]) -> Hook:
    if any(map(inspect.iscoroutinefunction, (callback, getattr(callback, "__call__", None)))):  # noqa: B004
        return callback

    @functools.wraps(callback)
    async def run_callback(run: Any) -> Any:
        answer = callback(run)
        return await answer if inspect.isawaitable(answer) else answer

    return run_callback


def callback_name(callback: Any) -> str:
    """Return the name of a callback in logs and fingerprints."""
    return str(
        callback if isinstance(callback, str) else getattr(callback, "__name__", type(callback).__name__)
    )
