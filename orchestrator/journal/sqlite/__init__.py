"""The embedded journal: one SQLite file, durable at every append, which other processes can read and post to.

The constructor opens nothing. The first call opens the file off the event loop; an error there is one sentence and
leaves no partial file. `open()` opens it early. Writes use one thread, which commits all queued jobs together; reads
use another. After an I/O error, a full disk or damage a handle refuses everything until `reopen()`. A handle that was
opened before a fork refuses everything in the child.

Beside `journal.db` are `journal.db-owners/` (locks and heartbeats of owners), `journal.db-blobs/` (big blobs) and
`journal.db-mark` (the last acknowledged commit: a journal that holds less is Corrupt, see `high_water`).

A new file has `auto_vacuum=INCREMENTAL`, so that free pages can be removed in small transactions while runs continue. A
file of an earlier version gets this mode by one full `VACUUM`, which writes the whole file once more into the log.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, Unpack

import apsw

from orchestrator.errors import ConfigError, Corrupt, JournalError, StoreDown
from orchestrator.journal.codec import disagreement
from orchestrator.journal.durable import DurableJournal
from orchestrator.journal.run_query import RunQuery
from orchestrator.journal.sqlite import high_water, place, read, schema, upgrade
from orchestrator.journal.sqlite.error_mapping import FAULTS, TRANSIENT, explain
from orchestrator.journal.sqlite.high_water import HighWaterMark
from orchestrator.journal.sqlite.owner import LEAST_TTL, TTL, SqlitePresence
from orchestrator.journal.sqlite.place import EVERY, GRANT, SIZE, Reserve, beside
from orchestrator.journal.sqlite.read import NoWriter, connect_to_read, head_counts
from orchestrator.journal.sqlite.schema import INCREMENTAL, Blobs, transaction
from orchestrator.journal.sqlite.upgrade import upgrade_file
from orchestrator.journal.sqlite.writer import (
    CHECKPOINT_PAGES,
    SqliteAppend,
    SqliteClaim,
    SqliteCreate,
    SqlitePost,
    SqlitePrune,
    SqliteRelease,
    SqliteRemove,
    SqliteWriter,
    nothing,
)
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

# ---- an open journal: two connections, the writer, the lock that proves the process lives, and their release ----

OPERATOR_PAGES = 100
"""Length of the log that triggers a checkpoint in a command of an operator: a short log needs little room."""

_abandoned: list[object] = []
"""Connections of a parent, kept by a forked child: closing them would touch locks that the child does not have."""


class SqliteHandle:
    """All open resources. The constructor opens them, or raises and changes nothing."""

    def __init__(
        self,
        path: Path,
        *,
        queue: int,
        busy: float,
        ttl: float = TTL,
        reserve: int = 0,
        only_reads: bool = False,
        operator: bool = False,
    ) -> None:
        # SQLite's log is beside the target of a link, and so are the other files.
        with contextlib.suppress(OSError, RuntimeError):  # a loop of links is refused at the open
            path = path.resolve()
        self.path = path
        self.busy = busy
        self.pid = os.getpid()
        self.presence = SqlitePresence(beside(path, "-owners"), ttl)
        self.blobs = Blobs(beside(path, "-blobs"), self.presence.begin)
        self.reserve = Reserve(path, 0 if only_reads else reserve, operator=operator)
        self.writer: SqliteWriter
        if only_reads:
            self.reader = connect_to_read(path, busy=busy)
            self.writer = NoWriter(path, self.explain)
            return
        place.refuse_orphaned_log(path)
        made = place.prepare(path, schema.JOURNAL.image)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(place.undo, made)
            self.reserve.grant()
            db = high_water.connect_proved(
                path, busy=busy, upgrade=functools.partial(upgrade_file, path=path, busy=busy)
            )
            on_failure.callback(high_water.close_connection, db)
            self.reader = high_water.connect_proved(path, busy=busy, query_only=True)
            on_failure.callback(high_water.close_connection, self.reader)
            try:
                HighWaterMark.identify(db)
                # Copy the log into the file. On a full disk the log keeps its length: its room is for further commits.
                if not self.reserve.operator or self.reserve.free() >= self.reserve.growth(db) + GRANT:
                    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                elif self.reserve.grant(self.reserve.growth(db) + GRANT) and self.reserve.fits(db):
                    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                with transaction(db, "IMMEDIATE") as cursor:
                    self.presence.sweep()
                    self.blobs.sweep(cursor, self.presence.holds_lock)
            except TRANSIENT:
                pass  # other processes are active: they do this, or the next one that opens the journal
            except apsw.Error as error:
                raise self.explain(error) from error
            self.writer = SqliteWriter(
                db,
                limit=queue,
                explain=self._explained,
                name=self.path.name,
                mark=HighWaterMark(self.path, self.presence, self.reserve.fits),
                heartbeat=self._beat,
                again=self._again,
                fits=self.reserve.fits,
                checkpoint_pages=OPERATOR_PAGES if self.reserve.operator else CHECKPOINT_PAGES,
            )
            on_failure.pop_all()

    def size(self) -> int:
        """Return the bytes of the file, of its log and of the blobs beside it."""
        files = [self.path, beside(self.path, "-wal")]
        blobs = beside(self.path, "-blobs")
        if blobs.is_dir():
            files += blobs.iterdir()
        total = 0
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                total += file.stat().st_size
        return total

    def explain(self, error: BaseException) -> JournalError:
        """Return one of our errors for an error."""
        return explain(error, self.path, self.busy)

    def _explained(self, error: BaseException) -> JournalError:
        """Return one of our errors for an error of the writer, and start nothing new after a full disk."""
        explained = self.explain(error)
        if getattr(explained, "kind", "") == "full":
            self.reserve.note_full()
        return explained

    def _beat(self) -> float | None:
        """Renew the heartbeat, keep the reserve, and return the seconds until the next heartbeat.

        In the writer's thread.
        """
        due = self.presence.renew()
        if due is not None or self.reserve.short:
            self.reserve.keep()
        return EVERY if due is None and self.reserve.short else due

    def _again(self) -> apsw.Connection | None:
        """Open another connection after a full disk; None while the disk has no room."""
        return high_water.connect_proved(self.path, busy=self.busy) if self.reserve.has_room() else None

    def sweep(self) -> None:
        """Remove the files of blobs that no run names any more. In the writer's thread.

        It runs before a batch and not in it: a rollback would restore a row that the batch removed, but not the file.
        """
        with transaction(self.writer.db, "IMMEDIATE") as cursor:
            self.blobs.sweep(cursor, self.presence.holds_lock)

    def truncate(self) -> None:
        """Empty the log, unless it has readers."""
        # Not through the reader, which may only query.
        db = high_water.connect_proved(self.path, busy=self.busy)
        try:
            with contextlib.suppress(*TRANSIENT):
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            high_water.close_connection(db)

    def close(self) -> None:
        """Write the queued jobs, then release everything.

        A second call has no effect. In a forked child the resources belong to the parent.
        """
        if self.pid != os.getpid():
            self.abandon()
            return
        poisoned = self.writer.poisoned
        self.writer.stop()
        if poisoned:
            with contextlib.suppress(apsw.Error):
                self.reader.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                self.reader.close(force=True)
        else:
            high_water.close_connection(self.reader)
        self.presence.end()

    def abandon(self) -> None:
        """Drop everything without touching it."""
        _abandoned.append(self)


# ---- care of a whole journal: backup, restore, the check behind `doctor`, and the return of free pages ----


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteHealth:
    """The result of a check. `problems` is empty if everything read equals what was written."""

    version: int
    sqlite: str
    pragmas: dict[str, object]
    runs: int
    records: int
    open: tuple[RunHead, ...]
    """Runs that are open or parked."""
    size: int
    """Bytes of the file and its log."""
    free: int
    """Free bytes on its disk."""
    problems: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def check(handle: SqliteHandle) -> SqliteHealth:
    """Verify every run, blob and request of a journal."""
    return examine(handle.path, handle)


def examine(path: Path, handle: SqliteHandle) -> SqliteHealth:
    """Read everything through a new connection; appends after its start are not included."""
    db = high_water.connect_proved(path, busy=handle.busy, query_only=True)
    try:
        problems = [
            f"integrity_check: {row[0]}" for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"
        ]
        heads, records, wrong = _prove_runs(db, handle)
        problems += wrong + _prove_blobs(db, handle)
        files = (path, beside(path, "-wal"))
        return SqliteHealth(
            version=int(str(db.pragma("user_version"))),
            sqlite=apsw.sqlite_lib_version(),
            pragmas=schema.read_back(db),
            runs=len(heads),
            records=records,
            open=tuple(head for head in heads if head.status != "ended"),
            size=sum(file.stat().st_size for file in files if file.exists()),
            free=shutil.disk_usage(path.parent).free,
            problems=tuple(problems),
        )
    finally:
        high_water.close_connection(db)


def _prove_runs(db: apsw.Connection, handle: SqliteHandle) -> tuple[list[RunHead], int, list[str]]:
    heads: list[RunHead] = []
    problems: list[str] = []
    records = 0
    old = schema.is_old(db, schema.JOURNAL)
    before, more = None, True
    while more:
        some, bad, before = read.page(db, RunQuery(), before, handle.presence.state)
        heads += some
        problems += map(str, bad)
        more = before is not None
    for head in heads:
        try:
            now, found = read.whole(db, head.run_id, handle.presence.state)
            records += len(found)
            if not old and (wrong := disagreement(now, found)):
                problems.append(wrong)
        except (JournalError, apsw.Error) as error:
            problems.append(str(error))
    return heads, records, problems


def _prove_blobs(db: apsw.Connection, handle: SqliteHandle) -> list[str]:
    problems: list[str] = []
    for (digest,) in db.execute("SELECT lower(hex(digest)) FROM blob").fetchall():
        try:
            handle.blobs.read(db.cursor(), str(digest))
        except (JournalError, apsw.Error, OSError) as error:
            problems.append(str(error))
    return problems


def write_backup(handle: SqliteHandle, target: Path) -> None:
    """Copy a journal that is in use. The copy is verified before it gets its name."""
    db = high_water.connect_proved(handle.path, busy=handle.busy)
    try:
        upgrade.write_copy(db, handle.blobs.folder, target, verify=_prove)
    finally:
        high_water.close_connection(db)


def salvage(path: Path, target: Path) -> None:
    """Copy the readable part of a refused journal, and do not change the journal. Raises JournalError."""
    if not path.is_file():
        raise StoreDown(f"journal {path} does not exist")
    log_missing = not beside(path, "-wal").exists()
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            schema.refuse_foreign(db, path)
            upgrade.write_copy(db, beside(path, "-blobs"), target, verify=_prove)
        finally:
            db.close(force=True)
            if log_missing:  # SQLite created an empty one
                beside(path, "-wal").unlink(missing_ok=True)
    except apsw.Error as error:
        raise explain(error, path, 1.0) from error


def restore(source: Path, path: Path) -> None:
    """Copy a backup to the path of a new journal."""
    if not source.is_file():
        raise StoreDown(f"backup {source} does not exist")
    upgrade.refuse_existing(path)
    part = beside(path, ".part")
    upgrade.remove(part)
    made: list[Path] = []
    try:
        made = place.prepare(part, bytes)
        shutil.copyfile(source, part)
        upgrade.copy_blobs(beside(source, "-blobs"), part)
        _prove(part)
        upgrade.close_for_good(part)
        upgrade.put(part, path)
    except OSError as error:
        raise StoreDown(f"journal {path} cannot be restored: {error.strerror or error}") from error
    finally:
        upgrade.remove(part)
        place.undo(made)


def _prove(part: Path) -> None:
    """Verify a copy as it is: a copy of an earlier version is not upgraded."""
    handle = SqliteHandle(part, queue=1, busy=1.0, only_reads=True)
    try:
        found = check(handle)
    finally:
        handle.close()
    if not found.ok:
        raise StoreDown(f"the copy is damaged: {'; '.join(found.problems[:3])}")


_STEP = 500
"""Pages that one transaction removes: writers wait no longer than that."""
_OPERATOR_STEP = 50
"""The same in a command of an operator, whose log must be short on a full disk."""
_FOLDERS = ("/var/tmp", "/usr/tmp", "/tmp")  # noqa: S108  SQLite's own search path
_ROOM = 1.1


def vacuum(handle: SqliteHandle) -> int:
    """Return the space of removed runs; return the bytes by which the files are shorter. Raises StoreDown."""
    before = handle.size()
    db = high_water.connect_proved(handle.path, busy=handle.busy)
    try:
        if db.pragma("auto_vacuum") == INCREMENTAL:
            reserve = handle.reserve
            step = _OPERATOR_STEP if reserve.operator else _STEP
            while free := int(str(db.pragma("freelist_count"))):
                reserve.grant()
                db.execute(f"PRAGMA incremental_vacuum({step})").fetchall()
                with contextlib.suppress(*TRANSIENT):  # it shortens the file, and the log starts again
                    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                if int(str(db.pragma("freelist_count"))) >= free:  # another process has freed more meanwhile
                    break
        else:
            _refuse_full_disk(handle.path)
            db.pragma("auto_vacuum", INCREMENTAL)
            db.execute("VACUUM")
        with contextlib.suppress(*TRANSIENT):  # readers need the log: the next checkpoint shortens the files
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        high_water.close_connection(db)
    return max(0, before - handle.size())


def _refuse_full_disk(path: Path) -> None:
    """Raise StoreDown without room for a second copy in SQLite's temporary folder and a third in the log."""
    needed = int(_ROOM * path.stat().st_size)
    places = [Path(os.environ.get("SQLITE_TMPDIR") or os.environ.get("TMPDIR") or "."), *map(Path, _FOLDERS)]
    temporary = next(
        (folder for folder in places if str(folder) != "." and os.access(folder, os.W_OK)), Path()
    )
    shared = path.parent.stat().st_dev == temporary.stat().st_dev
    for folder, amount in ((path.parent, needed * (2 if shared else 1)), (temporary, needed)):
        free = shutil.disk_usage(folder).free
        if free < amount:
            raise StoreDown(
                f"journal {path} keeps its free space: its first vacuum needs {amount:,} bytes in {folder}, and "
                f"{free:,} are free: free space there, or set TMPDIR to a folder on another disk",
                "full",
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

    async def load(self, run_id: str, since: int = 0) -> Sequence[Record]:
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

    async def excerpts(self, run_ids: Sequence[str]) -> dict[str, list[Draft]]:
        """Return the records of the first and the last appends of several runs, unverified."""
        return await self._read(lambda handle: read.excerpts(handle.reader, run_ids))

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

    async def agents(
        self, *, by_version: bool = False, **conditions: Unpack[RunConditions]
    ) -> list[AgentStatistics]:
        """Return the statistics of each agent, or of each version of each. Raises ConfigError, StoreDown."""
        query = RunQuery.counting(conditions)
        return await self._read(lambda handle: read.agents(handle.reader, query, by_version=by_version))

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
        await self._read(lambda handle: write_backup(handle, Path(target).absolute()))

    @staticmethod
    def restore(source: str | Path, path: str | Path) -> None:
        """Create a journal from a backup, verified first; `path` must not exist. Raises JournalError."""
        restore(Path(source).absolute(), Path(path).absolute())

    @staticmethod
    def salvage(path: str | Path, target: str | Path) -> None:
        """Write the readable part of a Corrupt journal to a new one; `target` must not exist.

        The damaged journal is not changed. The new one may lack records whose effects happened. Raises JournalError.
        """
        salvage(Path(path).resolve(), Path(target).absolute())

    async def vacuum(self) -> int:
        """Return the space of removed runs to the file system; return the bytes. Raises StoreDown.

        The first call on a file of an earlier version rewrites the whole file, which needs free space.
        """
        if self._only_reads:
            raise StoreDown(f"journal {self.path} was opened read-only")
        return await self._read(vacuum)

    async def size(self) -> int:
        """Return the bytes of the file, of its log and of the blobs beside it."""
        return await self._read(SqliteHandle.size)

    async def check(self) -> SqliteHealth:
        """Read and verify everything, for `doctor`. Problems are in the result, not raised."""
        return await self._read(check)

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
