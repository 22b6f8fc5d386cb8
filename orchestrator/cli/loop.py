"""The event loop of a command, and the signals that stop its work.

The loop closes within the grace period, even if code of tools and models does not stop.
`asyncio.run` waits for every task and every thread of `asyncio.to_thread`, and so does the interpreter at exit.
Here both get GRACE seconds; then `main` ends the process without them. The journal is closed by then.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from orchestrator.cli.output import show_cursor
from orchestrator.kernel.clock import GRACE

T = TypeVar("T")

_stuck: list[asyncio.AbstractEventLoop] = []


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command to completion, as `asyncio.run` does, and close its event loop unless a task or thread is stuck."""
    runner = asyncio.Runner()

    async def has_ended() -> bool:
        """Cancel all tasks, wait for the threads; return whether all ended in time."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks and (await asyncio.wait(tasks, timeout=GRACE))[1]:
            return False
        # Not cancelled after a timeout: it would join the threads then.
        ending = asyncio.ensure_future(asyncio.get_running_loop().shutdown_default_executor())
        return not (await asyncio.wait((ending,), timeout=GRACE))[1]

    try:
        return runner.run(work)
    finally:
        loop = runner.get_loop()
        if loop.run_until_complete(has_ended()):
            runner.close()
        else:
            _stuck.append(loop)


def is_stuck() -> bool:
    """Return whether tasks or threads are left for which a normal exit of the process would wait."""
    return bool(_stuck)


_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)


@contextmanager
def on_signal(act: Callable[[], object], signals: Sequence[signal.Signals] | None = None) -> Iterator[None]:
    """Inside the block the first signal calls `act` on the running loop; the second has its default effect.

    `signals` None means SIGINT, SIGTERM and SIGHUP.

    Plain handlers, not the loop's: the second signal must work while a model's code blocks the loop.
    """
    loop = asyncio.get_running_loop()

    def handle(_number: int, _frame: FrameType | None) -> None:
        show_cursor()  # after a second signal no code shows it again
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(act)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can have handlers; a host program with other threads has its own
        return
    caught = _SIGNALS
    if _HANGUP is not None and signal.getsignal(_HANGUP) is not signal.SIG_IGN:  # as `nohup` requires
        caught = (*caught, _HANGUP)
    before = {each: signal.getsignal(each) for each in caught if signals is None or each in signals}
    for each in before:
        signal.signal(each, handle)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
