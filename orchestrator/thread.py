"""Sync code beside the event loop: in a daemon thread of its own, not in a pool.

One that never returns then neither takes a place from others nor holds up the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from orchestrator.errors import RunError


async def in_thread(function: Callable[[], object], name: str) -> tuple[object, BaseException | None]:
    """Return what a function gave, and what it raised, whatever that is. It sees the context variables of the caller.

    Who is cancelled while it waits is let go at once; the thread goes on by itself.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: object, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function)
        except BaseException as raised:  # noqa: BLE001  SystemExit too: it is the function's, not the host's
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await ended


async def called(port: Callable[[Any], Any], request: object, name: str) -> Any:
    """Call what somebody plugged in: a coroutine function here, anything else in a thread, so that it holds up nothing.

    Raises what it raises; what is no Exception (a SystemExit of the host's code) as RunError.
    """
    own = getattr(type(port), "__call__", None)  # noqa: B004 - the method itself
    if inspect.iscoroutinefunction(port) or inspect.iscoroutinefunction(own):
        return await _waited(port(request), name)
    said, error = await in_thread(functools.partial(port, request), name)
    if error is not None:
        if isinstance(error, Exception):
            raise error
        raise RunError(f"{name} raised {type(error).__name__}") from error
    return await _waited(said, name) if inspect.isawaitable(said) else said


async def _waited(work: Awaitable[Any], name: str) -> Any:
    try:
        return await work
    except SystemExit as error:  # the function's, not the host's
        raise RunError(f"{name} raised SystemExit") from error
