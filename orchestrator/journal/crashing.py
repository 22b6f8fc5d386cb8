"""A journal that fails or ends the process on purpose, to test recovery.

Writes are create, claim, append, release and post, counted from 1.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeVar, Unpack

from orchestrator.errors import StoreDown
from orchestrator.kernel.journal import (
    AgentStatistics,
    Draft,
    Journal,
    Lease,
    Posted,
    Record,
    RunConditions,
    RunCounts,
    RunHead,
)

T = TypeVar("T")

WRITES = ("create", "claim", "append", "release", "post")
"""The counted methods; `on` may name them."""


def fail() -> NoReturn:
    """Raise StoreDown, like a store after an I/O error."""
    raise StoreDown("crashed on purpose")


def kill() -> NoReturn:
    """End this process at once, without flushing or handlers."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class CrashingJournal:
    """A journal that passes every call to `inner` and crashes at the `at`-th write named in `on` (0: never).

    After a crash by exception it stays down, like a poisoned store; `crashed` is then True, and `inner` still has the
    written records. `writes` lists the counted writes.

    Args:
        inner: The real journal.
        at: Number of the write that crashes, from 1; 0 is never.
        when: `before` or `after` the write takes effect.
        on: Names of the counted methods.
        crash: Called at that write: `fail` raises StoreDown, `kill` ends the process like kill -9.

    Example:
        >>> from orchestrator import MemoryJournal
        >>> journal = CrashingJournal(MemoryJournal(), at=3)  # raises instead of the third write
        >>> journal = CrashingJournal(MemoryJournal(), at=3, when="after")  # writes, then raises
        >>> journal = CrashingJournal(MemoryJournal(), at=3, crash=kill)  # ends the process as kill -9 does
    """

    def __init__(
        self,
        inner: Journal,
        *,
        at: int = 0,
        when: Literal["before", "after"] = "before",
        on: Sequence[str] = ("append",),
        crash: Callable[[], NoReturn] = fail,
    ) -> None:
        self.inner = inner
        self.backend = inner.backend
        self.shared = inner.shared
        self.crashed = False
        self.writes: list[str] = []
        self._at = at
        self._when = when
        self._on = frozenset(on)
        self._crash = crash

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        return await self._write("create", lambda: self.inner.create(run_id, owner, body))

    async def claim(self, run_id: str, owner: str, *, steal: bool = False) -> Lease:
        return await self._write("claim", lambda: self.inner.claim(run_id, owner, steal=steal))

    def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None] | None:
        due = self._count("append")
        if due and self._when == "before":
            self._die()
        waiting = self.inner.append(lease, drafts, blobs)
        if not due:
            return waiting
        if waiting is None:
            self._die()
        return self._after(waiting)

    async def release(self, lease: Lease) -> None:
        await self._write("release", lambda: self.inner.release(lease))

    async def post(self, run_id: str, request: Posted) -> bool:
        return await self._write("post", lambda: self.inner.post(run_id, request))

    async def load(self, run_id: str, since: int = 0) -> Sequence[Record]:
        return await self._up().load(run_id, since)

    async def blob(self, digest: str) -> bytes:
        return await self._up().blob(digest)

    async def head(self, run_id: str) -> RunHead:
        return await self._up().head(run_id)

    def runs(self, **conditions: Unpack[RunConditions]) -> AsyncIterator[RunHead]:
        return self._up().runs(**conditions)

    async def excerpts(self, run_ids: Sequence[str]) -> dict[str, list[Draft]]:
        return await self._up().excerpts(run_ids)

    async def count(self, **conditions: Unpack[RunConditions]) -> RunCounts:
        return await self._up().count(**conditions)

    async def names(self) -> list[tuple[str, str]]:
        return await self._up().names()

    async def agents(
        self, *, by_version: bool = False, **conditions: Unpack[RunConditions]
    ) -> list[AgentStatistics]:
        return await self._up().agents(by_version=by_version, **conditions)

    async def version(self) -> str:
        return await self._up().version()

    async def newest(self, conversation_id: str) -> RunHead | None:
        return await self._up().newest(conversation_id)

    async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
        return await self._up().inbox(run_id, since)

    async def news(self, since: int) -> tuple[int, list[str]]:
        return await self._up().news(since)

    async def prune(self, *, older_than: float | None = None, keep_last: int | None = None) -> int:
        return await self._up().prune(older_than=older_than, keep_last=keep_last)

    async def erase(self, run_id: str) -> None:
        await self._up().erase(run_id)

    async def close(self) -> None:
        """Close the inner store, also after a crash, so that a test can release it."""
        await self.inner.close()

    async def _write(self, name: str, write: Callable[[], Awaitable[T]]) -> T:
        due = self._count(name)
        if due and self._when == "before":
            self._die()
        result = await write()
        if due:
            self._die()
        return result

    async def _after(self, waiting: Awaitable[None]) -> None:
        await waiting
        self._die()

    def _up(self) -> Journal:
        if self.crashed:
            raise StoreDown("crashed on purpose")
        return self.inner

    def _count(self, name: str) -> bool:
        """Count a write and return whether it is the one to crash at."""
        self._up()
        if name not in self._on:
            return False
        self.writes.append(name)
        return len(self.writes) == self._at

    def _die(self) -> NoReturn:
        self.crashed = True
        self._crash()
