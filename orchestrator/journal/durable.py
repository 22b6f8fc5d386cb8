"""A journal outside of the process: its handle is opened at the first use and belongs to one process.

Opening and reading use one thread beside the event loop, so two first callers do not open a store twice. A handle that
was opened before a fork refuses everything in the child.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

from orchestrator.errors import Corrupt, StoreDown
from orchestrator.journal.run_query import RunQuery
from orchestrator.kernel.cancellation import running_loop
from orchestrator.kernel.journal import RunConditions, RunHead

T = TypeVar("T")


class StoreHandle(Protocol):
    """An open store: its connections, its writer and the runs that it owns."""

    def close(self) -> None:
        """Write the queued jobs, then release everything."""

    def abandon(self) -> None:
        """Drop everything without touching it, because it belongs to the parent process."""


H = TypeVar("H", bound=StoreHandle)


class DurableJournal(ABC, Generic[H]):
    """A journal that outlives its process. `address` is its place, `reader` the name of the thread for its reads."""

    shared = True

    def __init__(self, address: Any, reader: str) -> None:
        self.address: Any = address
        self._handle: H | None = None
        self._closed = False
        self._pid = os.getpid()
        self._reader = reader
        self._aside = ThreadPoolExecutor(1, thread_name_prefix=reader)

    async def open(self) -> None:
        """Open the journal now instead of at the first use. Raises StoreDown, Corrupt or TooNew."""
        await self._opened()

    async def reopen(self) -> None:
        """Release everything, also a poisoned handle, and open a new one; its runs may be claimed meanwhile."""
        await self.close()
        self._closed = False
        self._start_aside()
        await self._opened()

    async def close(self) -> None:
        """Write the queued jobs, then release the store and every run."""
        handle, self._handle, self._closed = self._handle, None, True
        if self._pid != os.getpid():  # everything belongs to the parent process
            if handle is not None:
                handle.abandon()
            return
        try:
            if handle is not None:
                await asyncio.get_running_loop().run_in_executor(self._aside, handle.close)
        finally:
            self._aside.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def runs(self, **conditions: Unpack[RunConditions]) -> AsyncIterator[RunHead]:
        """Yield the runs that meet every given condition. Raises ConfigError or RunUnknown.

        Damaged runs among them are reported at the end by one Corrupt: each run with a damaged row. A run is found by
        its columns: one whose damaged columns do not meet the conditions is reported only by a listing without
        conditions and by `check`.
        """
        query, before, more, left = RunQuery.of(conditions), None, True, conditions.get("limit")
        problems: list[Corrupt] = []
        while more and left != 0:
            heads, damaged, before = await self._page(query, before)
            problems += damaged
            more = before is not None
            for head in heads[:left]:
                yield head
            left = None if left is None else max(0, left - len(heads))
        if problems:
            raise Corrupt("; ".join(map(str, problems)))

    @abstractmethod
    async def _page(self, query: RunQuery, before: Any) -> tuple[list[RunHead], list[Corrupt], Any]:
        """Return a page of a listing, its damaged runs, and the position before the next page; None after the last."""

    def _here(self) -> H | None:
        """Return the handle if it is open. Raises StoreDown if it must not be used."""
        handle = self._handle
        if handle is not None and self._pid != os.getpid():
            raise StoreDown(
                f"journal {self.address} was opened before this process was forked: open another in the child"
            )
        if handle is None and self._closed:
            raise StoreDown(f"journal {self.address} is closed")
        return handle

    async def _opened(self) -> H:
        handle = self._here()
        if handle is None:
            if (
                self._pid != os.getpid()
            ):  # never opened, and forked since: the pool's thread belongs to the parent
                self._start_aside()
            handle = await self._open_aside()
        return handle

    def _start_aside(self) -> None:
        self._pid, self._aside = os.getpid(), ThreadPoolExecutor(1, thread_name_prefix=self._reader)

    @abstractmethod
    async def _open_aside(self) -> H:
        """Open the journal in the thread beside the event loop, by `_open_once`."""

    def _open_once(self, make: Callable[[], H]) -> H:
        if self._handle is None:
            self._handle = make()
            weakref.finalize(self, self._handle.close)
        return self._handle

    async def _run_aside(self, work: Callable[..., T], *arguments: Any) -> T:
        try:
            answer = running_loop().run_in_executor(self._aside, work, *arguments)
        except RuntimeError:  # another task closed it meanwhile
            raise StoreDown(f"journal {self.address} is closed") from None
        return await answer
