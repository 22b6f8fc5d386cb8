"""A plugin of pytest for `python -m tests.repeat --late-threads`: threads of pools and of journals begin work late.

A test that reads what another thread is about to write passes nearly always on a quiet machine. TEST_LATE is the seed
of the delays.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from orchestrator.journal.durable import WriterThread

LONGEST = 0.03
"""Seconds."""
_delays = random.Random(os.environ["TEST_LATE"])
_submit = ThreadPoolExecutor.submit
_take = WriterThread._take


def pause() -> None:
    """Sleep; most delays are short."""
    time.sleep(LONGEST * _delays.random() ** 3)


def submit_late(
    pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Future[Any]:
    """Submit work that begins after a delay."""

    def late() -> Any:
        pause()
        return work(*args, **kwargs)

    return _submit(pool, late)


def take_late(writer: WriterThread[Any], patience: float | None) -> Any:
    """Take the jobs of a batch, and wait before it is written."""
    jobs, more = _take(writer, patience)
    if jobs:
        pause()
    return jobs, more


ThreadPoolExecutor.submit = submit_late  # type: ignore[assignment, method-assign]
WriterThread._take = take_late  # type: ignore[assignment, method-assign]
