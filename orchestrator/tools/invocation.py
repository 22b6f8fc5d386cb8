"""Call the function of a tool: an async one in the loop, a sync one in a daemon thread."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from orchestrator.kernel.cancellation import host_call, in_thread
from orchestrator.tools.context import ToolContext
from orchestrator.tools.result import explain
from orchestrator.tools.spec import ToolSpec


def invoke(spec: ToolSpec, bound: Sequence[ToolContext], arguments: Mapping[str, Any]) -> Awaitable[object]:
    """Call the function of a tool with its arguments and, if it takes one, its context."""
    if spec.is_async:
        return host_call(spec.call(*bound, **arguments), spec.kind, spec.name)
    return _invoke_sync(spec, bound, arguments)


async def _invoke_sync(spec: ToolSpec, bound: Sequence[ToolContext], arguments: Mapping[str, Any]) -> object:
    stop = bound[0].cancelled.set if bound else None
    value = await _in_thread(functools.partial(spec.call, *bound, **arguments), spec, stop)
    # A sync wrapper around an async function returns its coroutine.
    try:
        if not inspect.isawaitable(value):
            return value
    except Exception:  # noqa: BLE001 - a lazy proxy raises when its class is read; the tool has run all the same
        return value
    return await host_call(value, spec.kind, spec.name)


async def _in_thread(
    function: Callable[[], object], spec: ToolSpec, stop: Callable[[], None] | None
) -> object:
    value, error = await in_thread(function, f"tool-{spec.name}", call=(spec.kind, spec.name), stop=stop)
    if error is None:
        return value
    if isinstance(error, Exception):
        raise error
    raise RuntimeError(f"the tool raised {explain(error)}") from error
