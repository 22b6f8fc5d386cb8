"""The shared journal: a PostgreSQL database, for runs that outlive the machine they began on.

    journal = PostgresJournal("postgresql://agents@db.example/agents")     # pip install 'fsm-orchestrator[postgres]'
    agent = Orchestrator(llm=my_llm, journal=journal)

It keeps the promises of the embedded one; records have the same bodies and hashes. Constructing opens nothing. Writes
go through one thread and one connection: appends that wait are one statement, fenced for each run by the epoch and the
last record, in one commit. Reads go through another thread and connection. A lost connection is made anew, what was
under way is looked up, and nobody hears of it unless the server stays away for longer than `patience`: then StoreDown,
and the next call tries again. A server that may lose what it acknowledged is refused.

Who owns a run is told by the database's clock and locks (`presence`). The tables stand in one schema (`schema`).
Between the processes and the server there may be a pool of connections only where it keeps one for each session.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar

from orchestrator.errors import ConfigError, MissingExtra, StoreDown
from orchestrator.journal.address import JournalAddress, address_of

try:
    import psycopg
except ImportError as error:
    raise MissingExtra("psycopg", "postgres") from error

from orchestrator.journal.postgres import read
from orchestrator.journal.postgres.batch import PostgresAppend
from orchestrator.journal.postgres.handle import PostgresHandle
from orchestrator.journal.postgres.health import PostgresHealth, examine, size
from orchestrator.journal.postgres.presence import Holder, holders
from orchestrator.journal.postgres.work import (
    PostgresClaim,
    PostgresCreate,
    PostgresPost,
    PostgresPrune,
    PostgresRelease,
    PostgresRemove,
)
from orchestrator.kernel.journal import Draft, Lease, Posted, Record, RunHead

T = TypeVar("T")

LOOK_AGAIN: Final = 0.1
"""Seconds between two looks at a holder whose connection is gone and who may yet come back."""


class PostgresJournal:
    """Implements `kernel.journal.Journal`.

    `schema` is where the tables are, made at the first use where they are missing, unless `create` is False. `name` is
    what others call this holder (`holders`). After `ttl` seconds without a heartbeat a holder is taken for dead, after
    about two where its connection is gone as well. `patience` is how many seconds a lost server is waited for,
    `opening` the same for the first connection (None: as long). `queue`
    is how many jobs one statement takes at most, and beyond how many new runs, claims and requests wait for room. With
    `only_reads` nothing is written, and a standby will do; everything but reading raises StoreDown. Raises ConfigError.
    """

    backend = "postgres"
    shared = True

    def __init__(
        self,
        dsn: str | JournalAddress,
        *,
        schema: str = "orchestrator",
        name: str = "",
        ttl: float = 10.0,
        patience: float = 30.0,
        opening: float | None = None,
        queue: int = 1000,
        create: bool = True,
        only_reads: bool = False,
    ) -> None:
        place = (
            JournalAddress(dsn)
            if isinstance(dsn, str) and "=" in dsn and "://" not in dsn
            else address_of(dsn)
        )
        if not isinstance(place, JournalAddress):
            raise ConfigError("a PostgresJournal is at postgresql://…, or at libpq's host=… dbname=…")
        if ttl <= 0 or patience < 0 or queue < 1:
            raise ConfigError("ttl and queue must be above 0, patience not below")
        self.address = place
        self.name = name
        self._open_with: dict[str, Any] = {
            "tables": schema,
            "name": name,
            "ttl": ttl,
            "patience": patience,
            "opening": patience if opening is None else opening,
            "queue": queue,
            "create": create and not only_reads,
            "only_reads": only_reads,
        }
        self._handle: PostgresHandle | None = None
        self._closed = False
        self._pid = os.getpid()
        self._aside = _aside()

    # ---- opening and closing ----

    async def open(self) -> None:
        """Open now rather than at the first use. Raises StoreDown or TooNew."""
        await self._opened()

    async def reopen(self) -> None:
        """Let go of everything and open anew; what it owned may be claimed."""
        await self.close()
        self._pid, self._aside, self._closed = os.getpid(), _aside(), False
        await self._opened()

    async def close(self) -> None:
        """Write what is queued and let go of the connections and of every run."""
        handle, self._handle, self._closed = self._handle, None, True
        if self._pid != os.getpid():  # all of it is the parent's
            if handle is not None:
                handle.abandon()
            return
        try:
            if handle is not None:
                handle.hurry()
                await asyncio.get_running_loop().run_in_executor(self._aside, handle.close)
        finally:
            self._aside.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- the contract: writing ----

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        """Begin a run and claim it. Raises RunExists, StoreDown."""
        handle = await self._to_write()
        return await handle.writer.call(PostgresCreate(run_id, owner, body, handle.presence))

    async def claim(self, run_id: str, owner: str, *, steal: bool = False) -> Lease:
        """Take a run over, after some seconds where its holder was just lost. Raises RunUnknown, Held, StoreDown."""
        handle = await self._to_write()
        while True:
            lease = await handle.writer.call(PostgresClaim(run_id, owner, handle.presence, steal))
            if lease is not None:
                return lease
            await asyncio.sleep(LOOK_AGAIN)

    def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None] | None:
        """Queue records and return what to await until they are durable. Raises Fenced, StoreDown.

        A task cancelled while it awaits gets its CancelledError when the outcome is known. After StoreDown it is not:
        whoever goes on with this lease is fenced if they landed.
        """
        handle = self._here()
        if handle is None:
            raise StoreDown(f"journal {self.address} is not open: a lease comes from create or claim")
        if not drafts:
            return None
        return handle.writer.submit(PostgresAppend(lease, drafts, blobs))

    async def release(self, lease: Lease) -> None:
        """Give the run back, after what is queued for it."""
        handle = await self._to_write()
        await handle.writer.call(PostgresRelease(lease))

    async def post(self, run_id: str, request: Posted) -> bool:
        """Leave a request for a run; False when its id was posted before. Raises RunUnknown, StoreDown."""
        handle = await self._to_write()
        return await handle.writer.call(PostgresPost(run_id, request))

    async def prune(self, *, older_than: float | None = None, keep_last: int | None = None) -> int:
        """Remove ended runs that nobody holds and that meet every condition given; without one, none."""
        if older_than is None and keep_last is None:
            return 0
        handle = await self._to_write()
        removed = 0
        while some := await handle.writer.call(PostgresPrune(older_than, keep_last or 0)):
            removed += some
        return removed

    async def erase(self, run_id: str) -> None:
        """Remove a run and the blobs only it names. Raises RunUnknown or Held.

        Nobody can read it any more; the server overwrites its pages and its log as it cleans up, and backups keep it.
        """
        handle = await self._to_write()
        await handle.writer.call(PostgresRemove(run_id))

    # ---- the contract: reading ----

    async def load(self, run_id: str, since: int = 0) -> list[Record]:
        """Return the records from `since` on, the whole chain proved. Raises RunUnknown, Corrupt, TooNew."""
        return await self._read(read.load, run_id, since)

    async def blob(self, digest: str) -> bytes:
        """Return a blob. Raises Corrupt."""
        return await self._read(read.blob, digest)

    async def head(self, run_id: str) -> RunHead:
        """Return what is known of a run. Raises RunUnknown."""
        return await self._read(read.head, run_id)

    async def runs(
        self,
        *,
        status: str | None = None,
        graph: str | None = None,
        conversation_id: str | None = None,
        parent_run_id: str | None = None,
    ) -> AsyncIterator[RunHead]:
        """Yield the runs that meet every condition given, oldest first."""
        asked = {"status": status, "graph": graph}
        asked |= {"conversation_id": conversation_id, "parent_run_id": parent_run_id}
        among = {column: value for column, value in asked.items() if value is not None}
        number: int | None = 0
        while number is not None:
            heads, number = await self._read(read.page, number, among)
            for head in heads:
                yield head

    async def newest(self, conversation_id: str) -> RunHead | None:
        """Return the run of a conversation that was created last."""
        return await self._read(read.newest, conversation_id)

    async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
        """Return the requests posted after number `since`. Raises RunUnknown, Corrupt."""
        return await self._read(read.inbox, run_id, since)

    async def news(self, since: int) -> tuple[int, list[str]]:
        """Return the runs that got requests after position `since`, and the position now. Raises StoreDown."""
        return await self._read(read.news, since)

    # ---- care ----

    def hurry(self, seconds: float) -> None:
        """Wait for no server that is away, for so many seconds: whoever asks is told StoreDown at once."""
        if self._handle is not None:
            self._handle.hurry_until(time.monotonic() + seconds)

    async def holders(self) -> list[Holder]:
        """Return who holds runs, or did within the last day, and whether they live. Raises StoreDown."""
        return await self._read(holders)

    async def size(self) -> int:
        """Return the bytes of the tables with their indexes. Raises StoreDown."""
        return await self._read(size)

    async def check(self) -> PostgresHealth:
        """Read everything and prove it: for `doctor`. Problems are in the result, not raised."""
        return await self._read(examine)

    # ---- inside ----

    def _here(self) -> PostgresHandle | None:
        """Return the handle if it is open. Raises StoreDown where it must not be used."""
        handle = self._handle
        if handle is not None and self._pid != os.getpid():
            raise StoreDown(
                f"journal {self.address} was opened before this process was forked: open another in the child"
            )
        if handle is None and self._closed:
            raise StoreDown(f"journal {self.address} is closed")
        return handle

    async def _opened(self) -> PostgresHandle:
        handle = self._here()
        if handle is None:
            if self._pid != os.getpid():  # never opened, and forked since: the pool's thread is the parent's
                self._pid, self._aside = os.getpid(), _aside()
            given_up = threading.Event()
            opening = asyncio.get_running_loop().run_in_executor(self._aside, self._open, given_up)
            try:
                handle = await opening
            except asyncio.CancelledError:
                given_up.set()  # or its thread went on, and a process waits for those at its end
                raise
        return handle

    async def _to_write(self) -> PostgresHandle:
        handle = await self._opened()
        if self._open_with["only_reads"]:
            raise StoreDown(f"journal {self.address} was opened to be read only")
        return handle

    def _open(self, given_up: threading.Event) -> PostgresHandle:
        """In the one thread of the pool, so that two who come first do not open twice."""
        if self._handle is None:
            self._handle = PostgresHandle(self.address, **self._open_with, given_up=given_up)
            weakref.finalize(self, self._handle.close)
        return self._handle

    async def _read(self, reading: Callable[..., T], *arguments: Any) -> T:
        handle = await self._opened()
        work = functools.partial(_reading, reading, arguments)
        try:
            answer = asyncio.get_running_loop().run_in_executor(self._aside, handle.read, work)
        except RuntimeError:  # somebody closed it since
            raise StoreDown(f"journal {self.address} is closed") from None
        return await answer


def _reading(reading: Callable[..., T], arguments: tuple[Any, ...], db: psycopg.Connection[Any]) -> T:
    return reading(db, *arguments)


def _aside() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="journal postgres read")
