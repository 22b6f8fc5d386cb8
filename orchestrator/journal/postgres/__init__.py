"""The shared journal: a PostgreSQL database, for runs that outlive their host.

It keeps the promises of the embedded journal; records have the same bodies and hashes. The constructor opens nothing.
Writes use one thread and one connection. Queued appends become one statement in one commit; the statement checks the
epoch and the last record of each run. Reads use another thread and connection.

A lost connection is opened again, and the outcome of the interrupted work is looked up. A caller notices this only if
the server stays away for longer than `patience`: it gets StoreDown, and the next call tries again. A server that may
lose acknowledged data is refused.

The database's clock and locks decide which owner lives (`presence`). The tables are in one schema (`session`). A
connection pool between the processes and the server must keep one connection for each session.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, Unpack

from orchestrator.errors import ConfigError, Corrupt, MissingExtra, StoreDown
from orchestrator.journal.address import JournalAddress, address_of

try:
    import psycopg
except ImportError as error:
    raise MissingExtra("psycopg", "postgres", "durability") from error

from orchestrator.journal.durable import DurableJournal
from orchestrator.journal.postgres import read
from orchestrator.journal.postgres.presence import Holder, PostgresPresence, holders
from orchestrator.journal.postgres.read import PostgresHealth, examine, head_counts, size
from orchestrator.journal.postgres.session import POOL, Db, PostgresSession, pooled, process
from orchestrator.journal.postgres.writer import (
    PostgresAppend,
    PostgresClaim,
    PostgresCreate,
    PostgresPost,
    PostgresPrune,
    PostgresRelease,
    PostgresRemove,
    PostgresWriter,
)
from orchestrator.journal.run_query import RunQuery
from orchestrator.kernel.clock import running_loop
from orchestrator.kernel.journal import (
    AgentStatistics,
    Draft,
    HeadCounts,
    Lease,
    Posted,
    Record,
    RunConditions,
    RunCounts,
    RunHead,
)

T = TypeVar("T")


class PostgresHandle:
    """All open resources. The constructor opens them or raises; `given_up`, once set, ends the wait for a server."""

    def __init__(
        self,
        address: JournalAddress,
        *,
        tables: str,
        name: str,
        ttl: float,
        patience: float,
        opening: float,
        queue: int,
        create: bool,
        only_reads: bool,
        given_up: threading.Event,
    ) -> None:
        self.pid = os.getpid()
        self.presence = PostgresPresence(name, ttl)
        self._reader = PostgresSession(
            address,
            tables=tables,
            patience=patience,
            create=create,
            only_reads=only_reads,
            greet=read.greet,
        )
        self._reader.stopping = given_up
        self._reader.run(lambda _: None, opening)
        self._session = PostgresSession(
            address, tables=tables, patience=patience, only_reads=only_reads, greet=self.presence.greet
        )
        self._session.stopping = given_up
        self.writer = PostgresWriter(self._session, self.presence, limit=queue, name=str(address))
        try:
            self._refuse_shared(address)
            if not only_reads:
                self._session.run(self.presence.begin if name else lambda _: None)
        except BaseException:
            self._session.close()
            self._reader.close()
            raise
        # Open now: a caller that gives up from here on is too late, and must not stop the waits of others.
        self._reader.stopping, self._session.stopping = threading.Event(), threading.Event()
        self.writer.start()

    def _refuse_shared(self, address: JournalAddress) -> None:
        """Raise StoreDown if a pool between us and the server lets our two connections share one session.

        A pool reports a process number of its own, the server another. A pool that keeps a session for each client is
        accepted. Another kind of pool is noticed here unless all its sessions are in use; then its first error
        reveals it.
        """
        if self._reader.run(pooled) and self._session.run(process) == self._reader.run(process):
            raise StoreDown(f"journal {address} {POOL}")

    def read(self, work: Callable[[Db], T]) -> T:
        """Read something, in the thread of the readers."""
        return self._reader.run(work)

    def hurry_until(self, then: float) -> None:
        """Do not wait for an unreachable server until `then` (monotonic seconds)."""
        self._reader.hurried_until = self._session.hurried_until = then

    def hurry(self) -> None:
        """Do not wait for a server any more, because the journal is being closed."""
        self._reader.stopping.set()
        self._session.stopping.set()

    def close(self) -> None:
        """Write the queued jobs, then release everything.

        A second call has no effect. In a forked child the resources belong to the parent.
        """
        if self.pid != os.getpid():
            self.abandon()
            return
        self.hurry()
        self.writer.stop()
        self._reader.close()

    def abandon(self) -> None:
        """Drop everything without touching it."""
        self._session.abandon()
        self._reader.abandon()


LOOK_AGAIN: Final = 0.1
"""Seconds between two checks of a holder whose connection is lost and who may still return."""


class PostgresJournal(DurableJournal[PostgresHandle]):
    """A journal in a PostgreSQL database; implements `kernel.journal.Journal`.

    Args:
        dsn: `postgresql://user:password@host/database`, or libpq's `host=… dbname=…`.
        schema: Schema of the tables.
        name: Name of this holder for other processes (`holders`).
        ttl: Seconds without a heartbeat after which a holder counts as dead; about two if its connection is lost too.
        patience: Seconds to wait for a lost server.
        opening: Seconds to wait for the first connection; None means `patience`.
        queue: Maximum jobs in one statement. Beyond it new runs, claims and requests wait for room.
        create: Whether missing tables are created at the first use.
        only_reads: Write nothing. A standby suffices, and every call but reads raises StoreDown.

    Raises:
        ConfigError: The address or a number is invalid.

    Example:
        journal = PostgresJournal("postgresql://agents@db.example/agents")  # extra: fsm-orchestrator[postgres]
        agent = Agent(my_llm, journal=journal)
    """

    backend = "postgres"
    address: JournalAddress

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
            raise ConfigError("the address of a PostgresJournal is postgresql://… or libpq's host=… dbname=…")
        if ttl <= 0 or patience < 0 or queue < 1:
            raise ConfigError("ttl and queue must be above 0, patience 0 or more")
        super().__init__(place, "journal postgres read")
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

    async def close(self) -> None:
        """Write the queued jobs, then release the connections and every run, without waiting for a lost server."""
        if self._handle is not None and self._pid == os.getpid():
            self._handle.hurry()
        await super().close()

    # ---- the contract: writing ----

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        """Create a run and claim it. Raises RunExists or StoreDown."""
        handle = await self._to_write()
        return await handle.writer.call(PostgresCreate(run_id, owner, body, handle.presence))

    async def claim(self, run_id: str, owner: str, *, steal: bool = False) -> Lease:
        """Claim an existing run; waits some seconds if its holder was just lost. Raises RunUnknown, Held, StoreDown."""
        handle = await self._to_write()
        while True:
            lease = await handle.writer.call(PostgresClaim(run_id, owner, handle.presence, steal))
            if lease is not None:
                return lease
            await asyncio.sleep(LOOK_AGAIN)

    def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None] | None:
        """Queue records and return an awaitable that ends when they are durable. Raises Fenced, StoreDown.

        A task that is cancelled while it awaits gets its CancelledError when the outcome is known. After StoreDown
        the outcome is unknown: if the records landed, the next append with this lease raises Fenced.
        """
        handle = self._here()
        if handle is None:
            raise StoreDown(f"journal {self.address} is not open: a lease comes from create or claim")
        if not drafts:
            return None
        return handle.writer.submit(PostgresAppend(lease, drafts, blobs))

    async def release(self, lease: Lease) -> None:
        """Release the run after its queued jobs."""
        handle = await self._to_write()
        await handle.writer.call(PostgresRelease(lease))

    async def post(self, run_id: str, request: Posted) -> bool:
        """Post a request to a run; return False if its id was posted before. Raises RunUnknown, StoreDown."""
        handle = await self._to_write()
        return await handle.writer.call(PostgresPost(run_id, request))

    async def prune(self, *, older_than: float | None = None, keep_last: int | None = None) -> int:
        """Remove ended, released runs that meet every given condition; without a condition, none."""
        if older_than is None and keep_last is None:
            return 0
        handle = await self._to_write()
        removed = 0
        while some := await handle.writer.call(PostgresPrune(older_than, keep_last or 0)):
            removed += some
        return removed

    async def erase(self, run_id: str) -> None:
        """Remove a run and the blobs that only it names. Raises RunUnknown or Held.

        No query can read it any more. The server overwrites its pages and its log in its own cleanup; backups keep
        it.
        """
        handle = await self._to_write()
        await handle.writer.call(PostgresRemove(run_id))

    # ---- the contract: reading ----

    async def load(self, run_id: str, since: int = 0) -> Sequence[Record]:
        """Return the records from `since` on, with the whole chain verified. Raises RunUnknown, Corrupt, TooNew."""
        return await self._read(read.load, run_id, since)

    async def blob(self, digest: str) -> bytes:
        """Return a blob. Raises Corrupt."""
        return await self._read(read.blob, digest)

    async def head(self, run_id: str) -> RunHead:
        """Return the head of a run. Raises RunUnknown."""
        return await self._read(read.head, run_id)

    async def _page(
        self, query: RunQuery, before: read.Position | None
    ) -> tuple[list[RunHead], list[Corrupt], read.Position | None]:
        heads, position = await self._read(read.page, query, before)
        return heads, [], position

    async def excerpts(self, run_ids: Sequence[str]) -> dict[str, list[Draft]]:
        """Return the records of the first and the last appends of several runs, unverified."""
        return await self._read(read.excerpts, run_ids)

    async def count(self, **conditions: Unpack[RunConditions]) -> RunCounts:
        """Count the runs that meet every given condition, without those of engines. Raises ConfigError."""
        return await self._read(read.count, RunQuery.counting(conditions))

    def head_counts(self) -> HeadCounts:
        """Count the runs that have not ended, in the thread of the caller. Raises StoreDown."""
        return head_counts(self.address, self._open_with["tables"])

    async def names(self) -> list[tuple[str, str]]:
        """Return each pair of a machine and an agent that runs of the journal have, without those of engines."""
        return await self._read(read.names)

    async def agents(
        self, *, by_version: bool = False, **conditions: Unpack[RunConditions]
    ) -> list[AgentStatistics]:
        """Return the statistics of each agent, or of each version of each. Raises ConfigError, StoreDown."""
        return await self._read(read.agents, RunQuery.counting(conditions), by_version)

    async def version(self) -> str:
        """Return a text that is another one after each commit of any process."""
        return await self._read(read.version)

    async def newest(self, conversation_id: str) -> RunHead | None:
        """Return the newest run of a conversation."""
        return await self._read(read.newest, conversation_id)

    async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
        """Return the requests posted after number `since`. Raises RunUnknown, Corrupt."""
        return await self._read(read.inbox, run_id, since)

    async def news(self, since: int) -> tuple[int, list[str]]:
        """Return the runs with requests after position `since`, and the current position. Raises StoreDown."""
        return await self._read(read.news, since)

    # ---- maintenance ----

    def hurry(self, seconds: float) -> None:
        """Do not wait for an unreachable server for the given seconds: every call raises StoreDown at once."""
        if self._handle is not None:
            self._handle.hurry_until(time.monotonic() + seconds)

    async def holders(self) -> list[Holder]:
        """Return the processes that hold runs, or did within the last day, and whether they live. Raises StoreDown."""
        return await self._read(holders)

    async def size(self) -> int:
        """Return the bytes of the tables with their indexes. Raises StoreDown."""
        return await self._read(size)

    async def check(self) -> PostgresHealth:
        """Read and verify everything, for `doctor`. Problems are in the result, not raised."""
        return await self._read(examine)

    # ---- internals ----

    async def _open_aside(self) -> PostgresHandle:
        given_up = threading.Event()
        try:
            return await running_loop().run_in_executor(self._aside, self._open, given_up)
        except asyncio.CancelledError:
            given_up.set()  # else its thread continues, and the process waits for such threads at its end
            raise

    def _open(self, given_up: threading.Event) -> PostgresHandle:
        return self._open_once(
            functools.partial(PostgresHandle, self.address, **self._open_with, given_up=given_up)
        )

    async def _to_write(self) -> PostgresHandle:
        handle = await self._opened()
        if self._open_with["only_reads"]:
            raise StoreDown(f"journal {self.address} was opened read-only")
        return handle

    async def _read(self, reading: Callable[..., T], *arguments: Any) -> T:
        handle = await self._opened()
        return await self._run_aside(handle.read, functools.partial(_reading, reading, arguments))


def _reading(reading: Callable[..., T], arguments: tuple[Any, ...], db: psycopg.Connection[Any]) -> T:
    return reading(db, *arguments)
