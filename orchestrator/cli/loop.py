"""The event loop of a command. It closes within the grace period, even if code of tools and models does not stop.

`asyncio.run` waits for every task and every thread of `asyncio.to_thread`, and so does the interpreter at exit.
Here both get GRACE seconds; then `main` ends the process without them. The journal is closed by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from orchestrator.kernel.clock import GRACE

T = TypeVar("T")

_stuck: list[asyncio.AbstractEventLoop] = []


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command to completion, as `asyncio.run` does, and close its event loop unless a task or thread is stuck."""
    runner = asyncio.Runner()
    try:
        return runner.run(work)
    finally:
        loop = runner.get_loop()
        if loop.run_until_complete(_emptied(loop)):
            runner.close()
        else:
            _stuck.append(loop)


def is_stuck() -> bool:
    """Return whether tasks or threads are left for which a normal exit of the process would wait."""
    return bool(_stuck)


async def _emptied(loop: asyncio.AbstractEventLoop) -> bool:
    """Cancel all tasks, wait for the threads; return whether all ended in time."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks and (await asyncio.wait(tasks, timeout=GRACE))[1]:
        return False
    # Not cancelled after a timeout: it would join the threads then.
    ending = loop.create_task(loop.shutdown_default_executor())
    _, waiting = await asyncio.wait((ending,), timeout=GRACE)
    return not waiting
