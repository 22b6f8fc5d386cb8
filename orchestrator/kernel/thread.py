"""Synchronous code in a thread beside the event loop, and coroutines that never wait, without an event loop.

A function runs in its own daemon thread, not in a pool. Code that never returns then neither takes a place from other
code nor delays the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from orchestrator.errors import ConfigError, RunError
from orchestrator.kernel.abandonment import here, host_call

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop. Raises ConfigError if there is none, for example under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "no event loop of asyncio is running here: under trio call `await trio.to_thread.run_sync(agent.run_sync, "
            "prompt)`, in code without a loop `agent.run_sync(prompt)`"
        ) from None


async def in_thread(
    function: Callable[[], object],
    name: str,
    *,
    call: tuple[str, str] | None = None,
    stop: Callable[[], None] | None = None,
) -> tuple[object, BaseException | None]:
    """Return the result of a function and any exception that it raised. It sees the caller's context variables.

    A cancelled caller continues at once, and the thread continues without it. With `call`, the kind and name of a
    host call, the thread is host code that ignores its cancellation: `stop` is called, and the caller waits for the
    thread for the grace period of its AbandonableTask, if it has one.
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
        except BaseException as raised:  # noqa: BLE001 - also SystemExit, an error of the function
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the result
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    owner = here()
    if call is None or owner is None or owner.policy is None or owner.call is not None:
        return await ended
    return await host_call(_ended(ended, stop), *call)


async def _ended(
    ended: asyncio.Future[tuple[object, BaseException | None]], stop: Callable[[], None] | None
) -> tuple[object, BaseException | None]:
    """Wait for a thread, however often the caller is cancelled."""
    late: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError as error:
            late = error
            if stop is not None:
                stop()
    if late is not None:
        raise late
    return ended.result()


async def called(port: Callable[[Any], Any], request: object, name: str) -> Any:
    """Call a host's port: a coroutine function on the loop, any other function in a thread.

    Raises the errors of the port; an exception that is no Exception (SystemExit of the host's code) becomes RunError.
    """
    own = getattr(type(port), "__call__", None)  # noqa: B004 - the method itself
    if inspect.iscoroutinefunction(port) or inspect.iscoroutinefunction(own):
        return await _waited(port(request), name)
    said, error = await in_thread(functools.partial(port, request), name, call=("stage", name))
    if error is not None:
        if isinstance(error, Exception):
            raise error
        raise RunError(f"{name} raised {type(error).__name__}") from error
    return await _waited(said, name) if inspect.isawaitable(said) else said


async def _waited(work: Awaitable[Any], name: str) -> Any:
    try:
        return await host_call(work, "stage", name)
    except SystemExit as error:  # it belongs to the function, not to the host
        raise RunError(f"{name} raised SystemExit") from error


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
