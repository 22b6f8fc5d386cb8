"""The event loop of a command. It is closed within the grace period, whatever the code of tools and models left in it.

`asyncio.run` waits for every task and every thread of `asyncio.to_thread`, and so does the interpreter at its end.
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
    """Run a command to its end, as `asyncio.run` does, and close its event loop if nothing in it is stuck."""
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
    """Return whether tasks or threads are left for which a process that ends as usual would wait."""
    return bool(_stuck)


async def _emptied(loop: asyncio.AbstractEventLoop) -> bool:
    """Cancel all tasks, let the threads end; return whether all did so in time."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks and (await asyncio.wait(tasks, timeout=GRACE))[1]:
        return False
    # Not cancelled where it takes too long: it would join the threads then.
    ending = loop.create_task(loop.shutdown_default_executor())
    _, waiting = await asyncio.wait((ending,), timeout=GRACE)
    return not waiting
