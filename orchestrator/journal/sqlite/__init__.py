"""The embedded journal: one SQLite file, durable at every append, which other processes can read and post to.

The constructor opens nothing. The first call opens the file off the event loop; an error there is one sentence and
leaves no partial file. `open()` opens it early. Writes use one thread, which commits all queued jobs together; reads
use another. After an I/O error, a full disk or damage a handle refuses everything until `reopen()`. A handle that was
opened before a fork refuses everything in the child.

Beside `journal.db` are `journal.db-owners/` (locks and heartbeats of owners), `journal.db-blobs/` (big blobs) and
`journal.db-mark` (the last acknowledged commit: a journal that holds less is Corrupt, see `high_water`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import apsw

from orchestrator.errors import ConfigError, Corrupt, StoreDown
from orchestrator.journal.durable import DurableJournal
from orchestrator.journal.run_query import RunQuery
from orchestrator.journal.sqlite import backup, read
from orchestrator.journal.sqlite.backup import SqliteHealth as SqliteHealth
from orchestrator.journal.sqlite.error_mapping import FAULTS, TRANSIENT
from orchestrator.journal.sqlite.handle import SqliteHandle
from orchestrator.journal.sqlite.owner import LEAST_TTL, TTL
from orchestrator.journal.sqlite.place import SIZE
from orchestrator.journal.sqlite.read import head_counts
from orchestrator.journal.sqlite.writer import (
    SqliteAppend,
    SqliteClaim,
    SqliteCreate,
    SqlitePost,
    SqlitePrune,
    SqliteRelease,
    SqliteRemove,
    nothing,
)
from orchestrator.kernel.cancellation import running_loop
from orchestrator.kernel.journal import (
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


class SqliteJournal(DurableJournal[SqliteHandle]):
    """A journal in one SQLite file; implements `kernel.journal.Journal`.

    Args:
        path: Path of the file. It and its folders are created if they do not exist.
        queue: Maximum jobs in one commit. Beyond it new runs, claims and requests wait for room; appends never wait,
            because a run has only one in flight.
        busy: Seconds that another process may hold the write lock.
        now: Clock of the timestamps; the owner of a run never depends on it.
        ttl: Seconds (1 or more) after the last heartbeat of a frozen process until its lease expires. The lease of a
            process that has ended expires at once.
        reserve: Bytes on the disk that are kept for commands of operators on a full disk (`reserve`); 0 keeps none.
        only_reads: Write, create and clean nothing, so that a full or read-only disk is no obstacle. Every call but
            reads raises StoreDown.
        operator: The journal is opened by a command of an operator, which uses the reserve if the disk is full.

    Raises:
        ConfigError: `ttl` or `reserve` is invalid.

    Example:
        journal = SqliteJournal(".orchestrator/journal.db")
        agent = Agent(my_llm, journal=journal)
    """

    backend = "sqlite"
    address: Path

    def __init__(
        self,
        path: str | Path,
        *,
        queue: int = 1000,
        busy: float = 5.0,
        now: Callable[[], float] = time.time,
        ttl: float = TTL,
        reserve: int = SIZE,
        only_reads: bool = False,
        operator: bool = False,
    ) -> None:
        if not ttl >= LEAST_TTL:
            raise ConfigError(f"ttl is {ttl!r}; it must be a number of seconds, {LEAST_TTL:g} or more")
        self.path = Path(path).absolute()
        super().__init__(self.path, f"journal {self.path.name} read")
        self._queue = queue
        self._busy = busy
        self._now = now
        self._ttl = ttl
        if reserve < 0:
            raise ConfigError(f"reserve is {reserve!r}; it must be a number of bytes, 0 (no reserve) or more")
        self._reserve = reserve
        self._only_reads = only_reads
        self._operator = operator

    # ---- the contract: writing ----

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        """Create a run and claim it. Raises RunExists or StoreDown."""
        handle = await self._opened()
        handle.reserve.refuse_new_run()
        return await handle.writer.call(SqliteCreate(run_id, owner, body, handle.presence, self._now))

    async def claim(self, run_id: str, owner: str, *, steal: bool = False) -> Lease:
        """Claim an existing run. Raises RunUnknown, Held, Corrupt, StoreDown."""
        handle = await self._opened()
        return await handle.writer.call(SqliteClaim(run_id, owner, handle.presence, steal, handle.reserve))

    def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None] | None:
        """Queue records and return an awaitable that ends when they are durable. Raises Fenced, StoreDown.

        A task that is cancelled while it awaits gets its CancelledError when the outcome is known.
        """
        handle = self._here()
        if handle is None:
            raise StoreDown(f"journal {self.path} is not open: a lease comes from create or claim")
        if not drafts:
            return None
        job = SqliteAppend(lease, drafts, blobs, handle.blobs, self._now)
        return handle.writer.submit(job, job.first)

    async def release(self, lease: Lease) -> None:
        """Release the run after its queued jobs; on a full disk, when there is room again."""
        handle = self._here() or await self._opened()
        await handle.writer.call(SqliteRelease(lease))

    async def post(self, run_id: str, request: Posted) -> bool:
        """Post a request to a run; return False if its id was posted before. Raises RunUnknown, StoreDown."""
        handle = await self._opened()
        return await handle.writer.call(SqlitePost(run_id, request, self._now))

    async def prune(self, *, older_than: float | None = None, keep_last: int | None = None) -> int:
        """Remove ended, released runs that meet every given condition; without a condition, none."""
        if older_than is None and keep_last is None:
            return 0
        handle = await self._opened()
        removed = 0
        while some := await handle.writer.call(
            SqlitePrune(handle.presence, older_than, keep_last or 0, handle.reserve)
        ):
            removed += some
        await self._forget(handle)
        return removed

    async def erase(self, run_id: str) -> None:
        """Remove a run and the blobs that only it names, from file and log. Raises RunUnknown or Held."""
        handle = await self._opened()
        await handle.writer.call(SqliteRemove(run_id, handle.presence))
        await self._forget(handle)

    # ---- the contract: reading ----

    async def load(self, run_id: str, since: int = 0) -> list[Record]:
        """Return the records from `since` on, with the whole chain verified. Raises RunUnknown, Corrupt, TooNew."""
        return await self._read(lambda handle: read.load(handle.reader, run_id, since, handle.presence.state))

    async def blob(self, digest: str) -> bytes:
        """Return a blob. Raises Corrupt."""
        return await self._read(lambda handle: handle.blobs.read(handle.reader.cursor(), digest))

    async def head(self, run_id: str) -> RunHead:
        """Return the head of a run. Raises RunUnknown, Corrupt."""
        return await self._read(lambda handle: read.head(handle.reader, run_id, handle.presence.state))

    async def _page(
        self, query: RunQuery, before: read.Position | None
    ) -> tuple[list[RunHead], list[Corrupt], read.Position | None]:
        return await self._read(lambda handle: read.page(handle.reader, query, before, handle.presence.state))

    async def count(self, **conditions: Unpack[RunConditions]) -> RunCounts:
        """Count the runs that meet every given condition, without those of engines. Raises ConfigError."""
        query = RunQuery.counting(conditions)
        return await self._read(lambda handle: read.count(handle.reader, query))

    def head_counts(self) -> HeadCounts:
        """Count the runs that have not ended, in the thread of the caller. Raises StoreDown, Corrupt or TooNew."""
        return head_counts(self.path)

    async def names(self) -> list[tuple[str, str]]:
        """Return each pair of a machine and an agent that runs of the journal have, without those of engines."""
        return await self._read(lambda handle: read.names(handle.reader))

    async def version(self) -> str:
        """Return a text that is another one after each commit of any process."""
        return await self._read(lambda handle: read.version(handle.reader))

    async def newest(self, conversation_id: str) -> RunHead | None:
        """Return the newest run of a conversation. Raises Corrupt."""
        return await self._read(
            lambda handle: read.newest(handle.reader, conversation_id, handle.presence.state)
        )

    async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
        """Return the requests posted after number `since`. Raises RunUnknown, Corrupt."""
        return await self._read(lambda handle: read.inbox(handle.reader, run_id, since))

    async def news(self, since: int) -> tuple[int, list[str]]:
        """Return the runs with requests after position `since`, and the current position. Raises StoreDown."""
        return await self._read(lambda handle: read.news(handle.reader, since))

    # ---- maintenance ----

    async def backup(self, target: str | Path) -> None:
        """Write a verified copy of one moment while runs continue; `target` must not exist. Raises StoreDown."""
        await self._read(lambda handle: backup.write(handle, Path(target).absolute()))

    @staticmethod
    def restore(source: str | Path, path: str | Path) -> None:
        """Create a journal from a backup, verified first; `path` must not exist. Raises JournalError."""
        backup.restore(Path(source).absolute(), Path(path).absolute())

    @staticmethod
    def salvage(path: str | Path, target: str | Path) -> None:
        """Write the readable part of a Corrupt journal to a new one; `target` must not exist.

        The damaged journal is not changed. The new one may lack records whose effects happened. Raises JournalError.
        """
        backup.salvage(Path(path).resolve(), Path(target).absolute())

    async def vacuum(self) -> int:
        """Return the space of removed runs to the file system; return the bytes. Raises StoreDown.

        The first call on a file of an earlier version rewrites the whole file, which needs free space.
        """
        if self._only_reads:
            raise StoreDown(f"journal {self.path} was opened read-only")
        return await self._read(backup.vacuum)

    async def size(self) -> int:
        """Return the bytes of the file, of its log and of the blobs beside it."""
        return await self._read(SqliteHandle.size)

    async def check(self) -> SqliteHealth:
        """Read and verify everything, for `doctor`. Problems are in the result, not raised."""
        return await self._read(backup.check)

    # ---- internals ----

    async def _opened(self) -> SqliteHandle:
        handle = await super()._opened()
        handle.writer.refuse_if_down()
        return handle

    async def _open_aside(self) -> SqliteHandle:
        make = functools.partial(
            SqliteHandle,
            self.path,
            queue=self._queue,
            busy=self._busy,
            ttl=self._ttl,
            reserve=self._reserve,
            only_reads=self._only_reads,
            operator=self._operator,
        )
        return await running_loop().run_in_executor(self._aside, self._open_once, make)

    async def _forget(self, handle: SqliteHandle) -> None:
        await handle.writer.call(nothing, handle.sweep)
        await self._read(SqliteHandle.truncate)

    async def _read(self, reading: Callable[[SqliteHandle], T]) -> T:
        return await self._run_aside(_guarded, await self._opened(), reading)


def _guarded(handle: SqliteHandle, reading: Callable[[SqliteHandle], T]) -> T:
    """Read, and map errors to ours; a doubtful read poisons the writer too."""
    handle.writer.refuse_if_down()
    try:
        return reading(handle)
    except TRANSIENT as error:
        raise handle.explain(error) from error
    except FAULTS as error:
        raise handle.writer.poison(error) from error
    except apsw.Error as error:
        raise handle.explain(error) from error
