"""The one thread that writes: it takes all queued jobs, commits them together, then reports each outcome.

One sync makes a whole batch durable (group commit), which makes synchronous=FULL cheap. A refused job (Fenced, Held,
RunExists, RunUnknown) has changed nothing, so its batch continues. An error that makes the connection doubtful
poisons the writer permanently: `down` has the reason, and nothing is retried, least of all a sync, which may report
success for pages that the kernel has already dropped.

Each job checks first and writes after that, so that a refused job leaves nothing behind in its batch.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, product
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from orchestrator.errors import Corrupt, Fenced, Held, JournalError, RunError, RunExists
from orchestrator.journal.codec import (
    ENDED,
    OPEN,
    Fixed,
    chained,
    check_blob,
    encoded,
    encoded_append,
    head_change,
    only_claims,
)
from orchestrator.journal.durable import DeferredWork, Outcome, WriterJob, WriterThread
from orchestrator.journal.sqlite import log
from orchestrator.journal.sqlite.error_mapping import FAULTS, TRANSIENT
from orchestrator.journal.sqlite.high_water import REMOVED, HighWater, HighWaterMark, close_connection
from orchestrator.journal.sqlite.owner import SqlitePresence
from orchestrator.journal.sqlite.place import Reserve
from orchestrator.journal.sqlite.schema import (
    LAST,
    SHIFT,
    Blobs,
    RunRow,
    Values,
    checksum,
    identity_sum,
    known,
    position_sum,
    row_of,
    usage_columns,
)
from orchestrator.kernel.journal import NO_HASH, Draft, Lease, Posted

CHECKPOINT_PAGES = 1000
"""Length of the write-ahead log that triggers a checkpoint. We run it, because SQLite would swallow errors."""

_FRAMES = 8
"""Pages of a commit of one job, about. The commits of groups are few: they wait for the file to grow."""

_log = logging.getLogger("orchestrator")

RecordRow: TypeAlias = tuple[int, int, str, bytes, bytes]
"""A row of the table `record`: key, epoch, kinds, body, hash."""
_INSERTS = {
    size: f"INSERT INTO record VALUES {','.join(('(?,?,?,?,?)',) * size)}"  # noqa: S608  only our own text
    for size in (64, 16, 4, 1)
}
"""Number of rows -> the statement that inserts them: few texts, so that each is compiled once."""
_AGAIN = 1.0
"""Seconds between two attempts to release runs that are owed."""


class Transaction:
    """The tools of a job: a cursor, the new rows of records, and the position of each lease within this batch."""

    __slots__ = ("_moved", "_rows", "cursor", "high_water")

    def __init__(self, cursor: apsw.Cursor) -> None:
        self.cursor = cursor
        self.high_water: HighWater | None = None
        """The position of a run after the last job changed it."""
        self._moved: dict[int, tuple[Lease, int, str]] = {}
        self._rows: list[RecordRow] = []

    def insert(self, row: RecordRow) -> None:
        """Insert the records of an append: at the end of the batch, together with those of other appends.

        Each statement competes with a busy event loop for the interpreter's lock.
        """
        self._rows.append(row)

    def flush(self) -> None:
        """Insert the rows that wait."""
        rows, self._rows = self._rows, []
        while rows:
            count = next(size for size in _INSERTS if size <= len(rows))
            self.cursor.execute(_INSERTS[count], [value for row in rows[:count] for value in row])
            del rows[:count]

    def position(self, lease: Lease) -> tuple[int, str]:
        """Return seq and head of a lease, with the earlier appends of this batch."""
        moved = self._moved.get(id(lease))
        return (lease.seq, lease.head) if moved is None else moved[1:]

    def move(self, lease: Lease, seq: int, head: str) -> None:
        """Advance a lease once the batch is committed."""
        self._moved[id(lease)] = lease, seq, head

    def landed(self) -> None:
        """Advance the leases after the commit."""
        for lease, seq, head in self._moved.values():
            lease.seq, lease.head = seq, head


class SqliteWriter(WriterThread[Transaction]):
    """Owns the writing connection from its start on. `poison` may be called from any thread."""

    def __init__(
        self,
        db: apsw.Connection,
        *,
        limit: int,
        explain: Callable[[BaseException], JournalError],
        name: str,
        noun: str = "journal",
        mark: HighWaterMark | None = None,
        heartbeat: Callable[[], float | None] = lambda: None,
        again: Callable[[], apsw.Connection | None] | None = None,
        fits: Callable[[apsw.Connection], bool] = lambda _: True,
        checkpoint_pages: int = CHECKPOINT_PAGES,
    ) -> None:
        super().__init__(limit=limit, name=name, noun=noun)
        self._mark = mark
        self._again = again
        """Opens another connection after a full disk; None while the disk has no room."""
        self._fits = fits
        """Whether the disk has room for a checkpoint."""
        self._checkpoint_pages = checkpoint_pages
        self._heartbeat = heartbeat
        """Renews the lease if that is due; returns the seconds until it is due again."""
        self.poisoned = False
        """The connection is doubtful: it is not synced again, not even when it is closed."""
        self.db = db
        """The connection; for the thread alone."""
        self._explain = explain
        self._due = 0.0
        """Earliest time to release runs that are owed, or to open the file again (monotonic)."""
        self._pages = 0
        """Pages in the write-ahead log, as SQLite reported after the last commit."""
        self._room = 0
        """Pages that fit into the file of the log as it was when this process extended it."""
        db.set_wal_hook(self._note_pages)
        self.start()

    def poison(self, why: BaseException) -> JournalError:
        """Refuse everything and return the reason: until there is room if the disk is full, else from now on."""
        if self.down is None:
            reason = self._explain(why)
            self.suspended = self._again is not None and getattr(reason, "kind", "") == "full"
            self.poisoned = not self.suspended
            self.down = reason
            self._bell.put(self.suspended)
        return self.down

    def _commit(self, jobs: Sequence[WriterJob[Transaction, Any]]) -> None:
        try:
            outcomes = self._transact(jobs)
        except TRANSIENT as error:
            self._due = time.monotonic() + _AGAIN
            self._put_off(jobs, self._explain(error))
        except FAULTS as error:
            self._due = time.monotonic() + _AGAIN
            reason = self.poison(error)
            fail = self._put_off if self.suspended else self._fail
            fail(jobs, reason)
        except Exception as error:  # noqa: BLE001  a job that fails must not fail the others
            self._one_by_one(jobs, error)
        else:
            self._deliver(outcomes)
            try:
                if self._mark is not None:
                    self._mark.settle(self.db)
                if self._pages >= self._checkpoint_pages and self._fits(self.db):
                    self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            except TRANSIENT:
                pass  # another process does it
            except FAULTS as error:
                self.poison(error)

    def _idle(self) -> float | None:
        due = self._heartbeat()
        if not (self._owed or self.suspended):
            return due
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _AGAIN
            if self.suspended:
                self._continue()
            if self.down is None:
                owed, self._owed = self._owed, []
                self._commit(owed)
        return _AGAIN if due is None else min(due, _AGAIN)

    def _continue(self) -> None:
        """Open the file again after a full disk, if the disk has room. What is wrong with it poisons the writer."""
        try:
            db = None if self._again is None else self._again()
        except (*TRANSIENT, *FAULTS, JournalError) as error:
            if getattr(self._explain(error), "kind", "") not in ("full", "locked"):
                self.down = None
                self.poison(error)
            return
        if db is None:
            return
        former, self.db, self._pages = self.db, db, 0
        _close_unsynced(former)
        db.set_wal_hook(self._note_pages)
        reason, self.down = self.down, None
        self.suspended = False
        _log.warning("the %s continues: its disk has room again. Before: %s", self._noun, reason)

    def _transact(self, jobs: Sequence[WriterJob[Transaction, Any]]) -> list[Outcome]:
        if self._mark is not None:
            self._mark.begin(self.db)
        for job in jobs:
            if job.first is not None:
                job.first()
        transaction = Transaction(self.db.cursor())
        transaction.cursor.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [_attempt(job, transaction) for job in jobs]
            transaction.flush()
            if len(jobs) == 1 and self._pages + _FRAMES > self._room:
                self._extend_log()
            transaction.cursor.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(apsw.Error):
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
            raise
        if self._mark is not None and transaction.high_water is not None:
            self._mark.advance(transaction.high_water)
        transaction.landed()
        self.commits += 1
        return outcomes

    def _extend_log(self) -> None:
        """Make room in the log's file for the next lone commits, if the disk has room for a checkpoint."""
        with contextlib.suppress(OSError):
            self._room = log.extend(Path(f"{self.db.filename}-wal")) if self._fits(self.db) else 0

    def _note_pages(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def _close(self) -> None:
        if self.poisoned:
            _close_unsynced(self.db)
            return
        self.db.set_wal_hook(None)
        if self._mark is not None:
            with contextlib.suppress(
                apsw.Error, OSError, Corrupt
            ):  # the next process that opens it closes it too
                self._mark.end(self.db)
        close_connection(self.db)


def _close_unsynced(db: apsw.Connection) -> None:
    """Close a doubtful connection: the last one to close would checkpoint, and so sync once more."""
    with contextlib.suppress(apsw.Error):
        db.set_wal_hook(None)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.close(force=True)


def _attempt(job: WriterJob[Transaction, Any], transaction: Transaction) -> Outcome:
    try:
        return job, job.work(transaction), None
    except RunError as refused:
        return job, None, refused


Now = Callable[[], float]

INSERT_RUN = """INSERT INTO run(run_id, graph, fingerprint, created_at, parent_run_id, conversation_id,
    agent, agent_version, tags, currency, identity_sum,
    epoch, seq, last_hash, progress, status, reason, updated_at, sum, requests, requests_sum,
    owner, holder, tokens, cost, usage_sum, child_tokens, child_cost, child_sum)
    VALUES (?,?,?,?,?,?,?,?,?,?,?,1,0,?,1,?,'',?,?,0,?,?,?,?,?,?,?,?,?) RETURNING id"""
CLAIM = "UPDATE run SET epoch=?, owner=?, holder=?, sum=? WHERE id=?"
# The fence: a writer that did not make the last claim, or does not know the last record, updates no row.
_GROUPS = (
    ", state=?, state_since=?, state_sum=?",
    ", tokens=?, cost=?, usage_sum=?",
    ", child_tokens=?, child_cost=?, child_sum=?",
)


def _append(changed: tuple[bool, ...]) -> str:
    groups = "".join(compress(_GROUPS, changed))
    return f"""UPDATE run SET seq=?, last_hash=?, progress=?, status=?, reason=?, outcome=?, waiting=?,
    updated_at=?, sum=?{groups} WHERE run_id=? AND epoch=? AND seq=? AND last_hash=? RETURNING id"""  # noqa: S608  only our own text


APPEND = {changed: _append(changed) for changed in product((False, True), repeat=len(_GROUPS))}
"""Whether the state, the usage and that of child runs change -> statement."""
_REMOVAL = 64 << 10
"""Bytes that the removal of a run writes beside the pages of its records."""
RELEASE = "UPDATE run SET owner=NULL, holder=NULL WHERE run_id=? AND epoch=?"
IDENTITY = "UPDATE run SET fingerprint=?, agent=?, agent_version=?, identity_sum=? WHERE run_id=?"
CANCELLED = "SELECT 1 FROM request WHERE run=? AND kind='cancel' LIMIT 1"
PROGRESS = "SELECT progress FROM run WHERE run_id=?"


@dataclass(slots=True)
class SqliteCreate:
    """SqliteCreate a run."""

    run_id: str
    owner: str
    body: Mapping[str, Any]
    presence: SqlitePresence
    now: Now

    def __call__(self, tx: Transaction) -> Lease:
        if row_of(tx.cursor, self.run_id) is not None:
            raise RunExists(self.run_id)
        body = self.body
        line = encoded("created", body)
        head = chained(NO_HASH, self.run_id, 0, 1, "created", line)
        now = self.now()
        fixed = Fixed.of(self.run_id, body, now)
        total = position_sum(Values(self.run_id, 1, 0, head, 1, OPEN, "", now))
        stands = (bytes.fromhex(head), OPEN, now, total, checksum(self.run_id, 0))
        change = head_change([("created", body)])
        usage = usage_columns(self.run_id, change)
        row = (*fixed, identity_sum(fixed), *stands, self.owner, self.presence.begin(), *usage)
        number = tx.cursor.execute(INSERT_RUN, row).get
        for tag in (body.get("tags") or {}).items():
            tx.cursor.execute("INSERT INTO run_tag VALUES (?,?,?)", (*tag, number))
        tx.insert((number << SHIFT, 1, "created", line, bytes.fromhex(head)))
        tx.high_water = HighWater(number, 1, 0, 0, bytes.fromhex(head))
        return Lease(self.run_id, self.owner, 1, 0, head)


@dataclass(slots=True)
class SqliteClaim:
    """SqliteClaim a run."""

    run_id: str
    owner: str
    presence: SqlitePresence
    steal: bool
    reserve: Reserve

    def __call__(self, tx: Transaction) -> Lease:
        row = known(tx.cursor, self.run_id)
        if self.reserve.short and not tx.cursor.execute(CANCELLED, (row.id,)).get:
            self.reserve.refuse_new_run()
        mine = self.presence.begin()
        if not self.steal and (row.owner, row.holder) != (self.owner, mine):
            _refuse_owned(row, self.presence)
        epoch = row.epoch + 1
        total = position_sum(row.values()._replace(epoch=epoch))
        tx.cursor.execute(CLAIM, (epoch, self.owner, mine, total, row.id))
        tx.high_water = HighWater(row.id, epoch, row.seq, row.requests, bytes.fromhex(row.last_hash))
        return Lease(self.run_id, self.owner, epoch, row.seq, row.last_hash)


class SqliteAppend:
    """Add records to a run, with the blobs they name."""

    __slots__ = ("_blobs", "_body", "_change", "_count", "_kinds", "_lease", "_now", "_store")

    def __init__(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None, store: Blobs, now: Now
    ) -> None:
        self._lease = lease
        self._kinds, self._body = encoded_append(drafts)
        self._count = len(drafts)
        self._change = head_change(drafts)
        self._blobs = dict(blobs) if blobs else None
        self._store = store
        self._now = now

    @property
    def first(self) -> Callable[[], None] | None:
        """The data that must be on disk before the transaction: blobs too big for a row."""
        return self._files if self._blobs and any(map(self._store.is_big, self._blobs.values())) else None

    def _files(self) -> None:
        for digest, content in (self._blobs or {}).items():
            check_blob(digest, content)
            if self._store.is_big(content):
                self._store.write(digest, content)

    def __call__(self, tx: Transaction) -> None:
        lease = self._lease
        run_id, epoch = lease.run_id, lease.epoch
        for digest, content in (self._blobs or {}).items():
            check_blob(digest, content)
        was_seq, was_head = tx.position(lease)
        seq = was_seq + self._count
        head = chained(was_head, run_id, seq, epoch, self._kinds, self._body)
        stored_hash = bytes.fromhex(head)
        progress = tx.cursor.execute(PROGRESS, (run_id,)).get if only_claims(self._kinds) else epoch
        now, (status, *parts, identity) = self._now(), self._change
        total = position_sum(Values(run_id, epoch, seq, head, progress or 0, *status[:2], now, *status[2:]))
        moved = [seq, stored_hash, progress, *status, now, total]
        for part in parts:
            if part is not None:
                moved += (*part, checksum(run_id, *part))
        state, usage, children = parts
        statement = APPEND[state is not None, usage is not None, children is not None]
        number = tx.cursor.execute(statement, (*moved, run_id, epoch, was_seq, bytes.fromhex(was_head))).get
        if number is None:
            raise Fenced(run_id, epoch)
        if identity is not None:
            query = f"SELECT {', '.join(Fixed._fields)} FROM run WHERE run_id=?"  # noqa: S608  only our own text
            was = Fixed._make(tx.cursor.execute(query, (run_id,)).fetchall()[0])
            changed = was._replace(
                **{name: value for name, value in identity._asdict().items() if value is not None}
            )
            values = (
                changed.fingerprint,
                changed.agent,
                changed.agent_version,
                identity_sum(changed),
                run_id,
            )
            tx.cursor.execute(IDENTITY, values)
        tx.insert((number << SHIFT | seq, epoch, self._kinds, self._body, stored_hash))
        if self._blobs:
            self._store.insert(tx.cursor, number, self._blobs)
        tx.move(lease, seq, head)
        tx.high_water = HighWater(number, epoch, seq, 0, stored_hash)


@dataclass(slots=True)
class SqlitePost:
    """SqlitePost a request to a run. It needs no lease: the write lock of the store orders the posts."""

    run_id: str
    request: Posted
    now: Now

    def __call__(self, tx: Transaction) -> bool:
        request = self.request
        run = known(tx.cursor, self.run_id)
        if tx.cursor.execute("SELECT 1 FROM request WHERE run=? AND id=?", (run.id, request.id)).get:
            return False
        number = run.requests + 1
        values = (
            request.id,
            request.kind,
            encoded(request.kind, request.body),
            request.by,
            request.at or self.now(),
        )
        total = request_sum(self.run_id, number, *values)
        row = (run.id << SHIFT | number, run.id, *values, total)
        tx.cursor.execute("INSERT INTO request VALUES (?,?,?,?,?,?,?,?)", row)
        counted = (number, checksum(self.run_id, number), run.id)
        tx.cursor.execute("UPDATE run SET requests=?, requests_sum=? WHERE id=?", counted)
        tx.cursor.execute("INSERT OR REPLACE INTO news(run) VALUES (?)", (run.id,))
        tx.high_water = HighWater(run.id, run.epoch, run.seq, number, bytes.fromhex(run.last_hash))
        return True


@dataclass(slots=True)
class SqliteRemove:
    """SqliteRemove one run in any state, unless it is held."""

    run_id: str
    presence: SqlitePresence

    def __call__(self, tx: Transaction) -> None:
        row = known(tx.cursor, self.run_id)
        _refuse_owned(row, self.presence)
        drop(tx, row)
        drop_unnamed_blobs(tx)


@dataclass(slots=True)
class SqlitePrune:
    """Remove ended runs that meet every condition, up to `most` at once; return their number.

    On a full disk, a run that has more data than the reserve is left.
    """

    presence: SqlitePresence
    older_than: float | None
    keep_last: int
    reserve: Reserve
    most: int = 50

    def __call__(self, tx: Transaction) -> int:
        query = """SELECT run_id FROM run WHERE status=? AND (?2 IS NULL OR updated_at < ?2) AND id NOT IN
            (SELECT id FROM run WHERE status=?1 ORDER BY updated_at DESC, id DESC LIMIT ?3) ORDER BY id"""
        found = tx.cursor.execute(query, (ENDED, self.older_than, self.keep_last)).fetchall()
        removed = written = 0
        for (run_id,) in found:
            row = known(tx.cursor, str(run_id))
            if self.presence.alive(row.holder):
                continue
            size = removal_size(tx, row)
            if self.reserve.grant(written + size) < written + size:
                continue
            drop(tx, row)
            removed, written = removed + 1, written + size
            if removed == self.most:
                break
        drop_unnamed_blobs(tx)
        return removed


@dataclass(slots=True)
class SqliteRelease(DeferredWork):
    """SqliteRelease a run; a lease that is out of date changes nothing."""

    lease: Lease

    def __call__(self, tx: Transaction) -> None:
        tx.cursor.execute(RELEASE, (self.lease.run_id, self.lease.epoch))


def _refuse_owned(row: RunRow, presence: SqlitePresence) -> None:
    """Raise Held if the lease of a run is valid."""
    state = presence.state(row.holder)
    if state.alive:
        raise Held(row.run_id, str(row.owner), state.warning)


def nothing(_: Transaction) -> None:
    """Write nothing: the job for work before a batch."""


def span(run: int) -> tuple[int, int]:
    """Return the first and last key of a run."""
    return run << SHIFT, run << SHIFT | LAST


def request_sum(run_id: str, number: int, *values: object) -> int:
    """Return the checksum of a request's row."""
    return checksum(
        run_id, number, *(value.decode() if isinstance(value, bytes) else value for value in values)
    )


def drop(tx: Transaction, row: RunRow) -> None:
    """Delete a run with all its rows."""
    tx.flush()
    tx.cursor.execute("DELETE FROM record WHERE key BETWEEN ? AND ?", span(row.id))
    tx.cursor.execute("DELETE FROM request WHERE key BETWEEN ? AND ?", span(row.id))
    tx.cursor.execute("DELETE FROM blob_use WHERE run=?", (row.id,))
    tx.cursor.execute("DELETE FROM news WHERE run=?", (row.id,))
    for tag in row.tag_values.items():
        tx.cursor.execute("DELETE FROM run_tag WHERE name=? AND value=? AND run=?", (*tag, row.id))
    tx.cursor.execute("DELETE FROM run WHERE id=?", (row.id,))
    tx.high_water = HighWater(row.id, seq=REMOVED)


def removal_size(tx: Transaction, row: RunRow) -> int:
    """Return the bytes that the removal of a run may write into the log: all pages of the run, as zeros."""
    stored = tx.cursor.execute(
        "SELECT sum(length(body)) FROM record WHERE key BETWEEN ? AND ?", span(row.id)
    ).get
    return 2 * int(stored or 0) + _REMOVAL


def drop_unnamed_blobs(tx: Transaction) -> None:
    """Delete the blobs that no run names any more."""
    tx.cursor.execute("DELETE FROM blob WHERE digest NOT IN (SELECT digest FROM blob_use)")
