"""A REPL with small limits, and what it says of itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from orchestrator.repl import ReplLimits, WorkerRepl

SMALL = ReplLimits(
    seconds=20,
    cpu_seconds=10,
    memory_bytes=256 * 1024 * 1024,
    disk_bytes=4 * 1024 * 1024,
    files=100,
    output_chars=10_000,
    value_chars=50_000,
    batch=20,
    query_chars=100_000,
)
Opener = Callable[..., AbstractAsyncContextManager[WorkerRepl]]


@asynccontextmanager
async def _open(context: Any = None, **options: Any) -> AsyncIterator[WorkerRepl]:
    async with WorkerRepl(context, **{"limits": SMALL, **options}) as repl:
        yield repl


@pytest.fixture
def opened() -> Opener:
    """Return what opens a REPL with small limits."""
    return _open
