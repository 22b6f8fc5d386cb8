"""The one thread that writes to the server: queued appends together, other jobs one by one.

Each statement that writes is one transaction. A process that freezes between two statements of a transaction keeps
its locked rows from the next owner. With a single statement the server has all of it, or nothing.

If the connection is lost while the statement is in flight, its outcome is looked up. If a record with the right
number and hash exists, the append landed. If the run has not moved, the append is sent again. Otherwise another owner
holds the run. The hash chain makes this exact, even if the owner has changed since, or the lost statement landed
late.

Any other job may run twice with the same result. `sent` is set before a statement whose outcome may be lost with the
connection: if it is set, the job first looks up the outcome.

It also sends the heartbeats, so that a busy event loop does not look like a dead process, and a frozen process does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors

from orchestrator.errors import (
    Corrupt,
    Fenced,
    Held,
    JournalError,
    RunError,
    RunExists,
    RunUnknown,
    StoreDown,
)
from orchestrator.journal.codec import (
    NOTHING,
    OPEN,
    UNCHANGED,
    Fixed,
    HeadChange,
    Identity,
    Row,
    chained,
    check_blob,
    encoded,
    encoded_append,
    head_change,
    only_claims,
)
from orchestrator.journal.durable import DeferredWork, Outcome, WriterJob, WriterThread
from orchestrator.journal.postgres.presence import LIVING, LOCKED, PostgresPresence
from orchestrator.journal.postgres.session import PostgresSession, explain
from orchestrator.kernel.journal import NO_HASH, Draft, Lease, Posted

# ruff: noqa: S608  the only text that is put into statements is our own


BLOBS: Final = 0x46534D62
"""`FSMb`: advisory lock, shared by processes that add blobs, exclusive for the removal of unnamed ones."""

CREATE: Final = """WITH made AS (
    INSERT INTO run(run_id, graph, fingerprint, created_at, parent_run_id, conversation_id, agent, agent_version, tags,
        currency, epoch, seq, last_hash, progress, status, reason, updated_at, owner, holder, tokens, cost,
        child_tokens, child_cost)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 1, 0, %b, 1, %s, '', extract(epoch FROM clock_timestamp()), %s, %s,
        %s::bigint, %s::bigint, %s::bigint, %s::bigint)
    ON CONFLICT (run_id) DO NOTHING RETURNING id),
tagged AS (
    INSERT INTO run_tag(name, value, run) SELECT t.name, t.value, made.id
    FROM made, unnest(%s::text[], %s::text[]) AS t(name, value)),
added AS (
    INSERT INTO record(run, seq, epoch, kind, body, hash) SELECT id, 0, 1, 'created', %b, %b FROM made)
SELECT id FROM made"""

_RUN: Final = {
    "run_id": "text",
    "epoch": "bigint",
    "was_seq": "bigint",
    "was_hash": "bytea",
    "seq": "bigint",
    "last_hash": "bytea",
    "status": "text",
    "reason": "text",
    "outcome": "text",
    "waiting": "text",
    "state": "text",
    "state_since": "float8",
    "tokens": "bigint",
    "cost": "bigint",
    "child_tokens": "bigint",
    "child_cost": "bigint",
    "fingerprint": "text",
    "agent": "text",
    "agent_version": "text",
    "progress": "boolean",
}
"""What is known of each run of an append: column -> type."""
_ROW: Final = {
    "part": "bigint",
    "seq": "bigint",
    "epoch": "bigint",
    "kind": "text",
    "body": "bytea",
    "hash": "bytea",
}
"""The same of each row; `part` is the number of the run in the statement, from 1."""
_BLOB: Final = {"part": "bigint", "digest": "bytea", "content": "bytea"}


def _mark(kind: str) -> str:
    return "%b" if kind.startswith("bytea") else "%s"


def _one(columns: Mapping[str, str]) -> str:
    """Return a table with one row of parameters."""
    return ", ".join(f"{_mark(kind)}::{kind} AS {name}" for name, kind in columns.items())


def _many(columns: Mapping[str, str]) -> str:
    """Return a table whose columns are parameters, one array each."""
    arrays = ", ".join(f"{_mark(kind)}::{kind}[]" for kind in columns.values())
    return f"* FROM unnest({arrays})"


def _append(runs: str, rows: str) -> str:
    """Return the statement that appends these rows to these runs.

    The fence: a writer that did not make the last claim, or does not know the last record, moves nothing.
    """
    return f"""WITH wanted AS (SELECT {runs}),
moved AS (
    UPDATE run SET seq = w.seq, last_hash = w.last_hash, status = w.status, reason = w.reason,
        outcome = w.outcome, waiting = w.waiting,
        state = coalesce(w.state, run.state), state_since = coalesce(w.state_since, run.state_since),
        tokens = coalesce(w.tokens, run.tokens),
        cost = CASE WHEN w.tokens IS NULL THEN run.cost ELSE w.cost END,
        child_tokens = coalesce(w.child_tokens, run.child_tokens),
        child_cost = CASE WHEN w.child_tokens IS NULL THEN run.child_cost ELSE w.child_cost END,
        fingerprint = coalesce(w.fingerprint, run.fingerprint), agent = coalesce(w.agent, run.agent),
        agent_version = coalesce(w.agent_version, run.agent_version),
        progress = CASE WHEN w.progress THEN w.epoch ELSE run.progress END,
        updated_at = extract(epoch FROM clock_timestamp())
    FROM wanted w
    WHERE run.run_id = w.run_id AND run.epoch = w.epoch AND run.seq = w.was_seq AND run.last_hash = w.was_hash
    RETURNING run.id, w.part),
added AS (
    INSERT INTO record(run, seq, epoch, kind, body, hash)
    SELECT moved.id, r.seq, r.epoch, r.kind, r.body, r.hash
    FROM (SELECT {rows}) AS r JOIN moved ON moved.part = r.part)"""


_MOVED: Final = "\nSELECT part FROM moved"
_SINGLE: Final = _append(f"{_one(_RUN)}, 1::bigint AS part", _one(_ROW))
_BATCH: Final = _append(
    f"{_many(_RUN)} WITH ORDINALITY AS w({', '.join(_RUN)}, part)", f"{_many(_ROW)} AS r({', '.join(_ROW)})"
)
# The lock is taken before a blob is: a process that removes unnamed blobs waits for us, or we find them gone.
_NAMED: Final = f""",
gate AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared({BLOBS}) AS passed),
named AS MATERIALIZED (
    SELECT moved.id, b.digest, b.content
    FROM gate, (SELECT {_many(_BLOB)} AS b({", ".join(_BLOB)})) AS b
    JOIN moved ON moved.part = b.part WHERE gate.passed IS NOT NULL),
kept AS (
    INSERT INTO blob(digest, content) SELECT DISTINCT ON (digest) digest, content FROM named
    ON CONFLICT DO NOTHING),
used AS (
    INSERT INTO blob_use(run, digest) SELECT DISTINCT id, digest FROM named ON CONFLICT DO NOTHING)"""

APPEND: Final = f"{_SINGLE}{_MOVED}"
"""One row of one run. It takes half the time of the arrays, in the server and here."""
APPEND_BLOBS: Final = f"{_SINGLE}{_NAMED}{_MOVED}"
APPENDS: Final = f"{_BATCH}{_MOVED}"
"""Any number of rows of any number of runs."""
APPENDS_BLOBS: Final = f"{_BATCH}{_NAMED}{_MOVED}"

STANDS: Final = """SELECT w.part, run.epoch, run.seq, run.last_hash, record.hash
    FROM unnest(%s::text[], %s::bigint[]) WITH ORDINALITY AS w(run_id, seq, part)
    JOIN run ON run.run_id = w.run_id LEFT JOIN record ON record.run = run.id AND record.seq = w.seq"""
"""The position of runs, and the row at the intended last number."""

OWNED: Final = f"""SELECT run.epoch, run.seq, run.last_hash, run.owner, run.holder,
    coalesce((SELECT {LIVING} FROM holder h WHERE h.token = run.holder), false),
    coalesce((SELECT {LOCKED} FROM holder h WHERE h.token = run.holder), false), run.id
    FROM run WHERE run_id = %s"""
CLAIM: Final = """UPDATE run SET epoch = epoch + 1, owner = %s, holder = %s WHERE run_id = %s AND epoch = %s
    AND holder IS NOT DISTINCT FROM %s RETURNING epoch, seq, last_hash"""
RELEASE: Final = "UPDATE run SET owner = NULL, holder = NULL WHERE run_id = %s AND epoch = %s"

# The row of meta is locked until the commit: positions become visible in order, and no reader skips a gap.
POST: Final = """WITH counted AS (
    UPDATE run SET requests = requests + 1
    WHERE run_id = %s AND NOT EXISTS (SELECT FROM request q WHERE q.run = run.id AND q.id = %s)
    RETURNING id, requests),
told AS (UPDATE meta SET news = news + 1 WHERE EXISTS (SELECT FROM counted) RETURNING news),
posted AS (
    INSERT INTO request(run, number, id, kind, body, by, at)
    SELECT counted.id, counted.requests, %s, %s, %b, %s, %s FROM counted),
placed AS (
    INSERT INTO news(run, position) SELECT counted.id, told.news FROM counted, told
    ON CONFLICT (run) DO UPDATE SET position = excluded.position)
SELECT requests FROM counted"""
POSTED: Final = """SELECT q.kind, q.body, q.by, q.at FROM run LEFT JOIN request q ON q.run = run.id AND q.id = %s
    WHERE run.run_id = %s"""

PRUNABLE: Final = f"""SELECT id, epoch, seq FROM run WHERE status = 'ended'
    AND (%s::float8 IS NULL OR updated_at < %s::float8)
    AND id NOT IN (SELECT id FROM run WHERE status = 'ended' ORDER BY updated_at DESC, id DESC LIMIT %s)
    AND NOT EXISTS (SELECT FROM holder h WHERE h.token = run.holder AND {LIVING})
    ORDER BY id LIMIT %s"""
DROP: Final = """WITH doomed AS (SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS d(id, epoch, seq)),
gone AS (DELETE FROM run USING doomed d WHERE run.id = d.id AND run.epoch = d.epoch AND run.seq = d.seq
    RETURNING run.id),
records AS (DELETE FROM record USING gone WHERE record.run = gone.id),
requests AS (DELETE FROM request USING gone WHERE request.run = gone.id),
news AS (DELETE FROM news USING gone WHERE news.run = gone.id),
tags AS (DELETE FROM run_tag USING gone WHERE run_tag.run = gone.id),
uses AS (DELETE FROM blob_use USING gone WHERE blob_use.run = gone.id)
SELECT count(*) FROM gone"""
"""A run that was claimed or written since its selection stays. A claim of a removed run finds nothing."""
UNNAMED: Final = """DELETE FROM blob WHERE NOT EXISTS (SELECT FROM blob_use u WHERE u.digest = blob.digest)"""


Db: TypeAlias = psycopg.Connection[Any]

_STATEMENTS: Final = {
    (True, False): APPEND.encode(),
    (True, True): APPEND_BLOBS.encode(),
    (False, False): APPENDS.encode(),
    (False, True): APPENDS_BLOBS.encode(),
}
"""Whether there is a single row, whether there are blobs -> statement."""
_STANDS: Final = STANDS.encode()


class PostgresAppend:
    """Records for a run, with the blobs they name."""

    __slots__ = ("blobs", "body", "change", "count", "kinds", "lease")

    def __init__(self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None) -> None:
        self.lease = lease
        self.kinds, self.body = encoded_append(drafts)
        self.count = len(drafts)
        self.change = head_change(drafts)
        self.blobs = dict(blobs) if blobs else None

    def __call__(self, _: object) -> None:
        """Do nothing: the batch writes appends."""

    def check(self) -> None:
        """Raise JournalError for a blob whose name is not its digest."""
        for digest, content in (self.blobs or {}).items():
            check_blob(digest, content)


@dataclass(slots=True)
class Part:
    """The part of one run: the queued appends of one lease, combined."""

    lease: Lease
    was_seq: int
    was_head: str
    seq: int
    head: str
    rows: list[Row] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    change: HeadChange = UNCHANGED
    progress: bool = False
    landed: bool | None = None
    """None: not known yet. False: fenced."""

    @classmethod
    def of(cls, lease: Lease) -> Part:
        """Start at the position of a lease."""
        return cls(lease, lease.seq, lease.head, lease.seq, lease.head)

    def add(self, append: PostgresAppend) -> None:
        """Add one more append."""
        lease, kinds, body = self.lease, append.kinds, append.body
        self.seq += append.count
        self.head = chained(self.head, lease.run_id, self.seq, lease.epoch, kinds, body)
        self.rows.append((self.seq, lease.epoch, kinds, body, self.head))
        self.change = self.change.then(append.change)
        self.progress |= not only_claims(kinds)
        self.blobs.update(append.blobs or {})

    def judge(self, epoch: int, seq: int, head: bytes, there: bytes | None) -> None:
        """Set the outcome from the position of the run and the hash of the row at this part's last number."""
        if there is not None and there.hex() == self.head:
            self.landed = True
        elif (epoch, seq, head.hex()) != (self.lease.epoch, self.was_seq, self.was_head):
            self.landed = False


class AppendBatch:
    """Several appends, those of each run by one lease. It is called until the outcome of each is known."""

    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}
        self._sent = False

    def add(self, append: PostgresAppend) -> JournalError | None:
        """Add an append, or return the error that refuses it."""
        try:
            append.check()
        except JournalError as error:
            return error
        lease = append.lease
        self.parts.setdefault(lease.run_id, Part.of(lease)).add(append)
        return None

    def outcome(self, append: PostgresAppend) -> Fenced | None:
        """Return the error of an append, or None if it landed."""
        lease = append.lease
        return None if self.parts[lease.run_id].landed else Fenced(lease.run_id, lease.epoch)

    def settle(self) -> None:
        """Advance the leases."""
        for part in self.parts.values():
            if part.landed:
                part.lease.seq, part.lease.head = part.seq, part.head

    def __call__(self, db: Db) -> None:
        """Write the parts whose outcome is not known."""
        resent, self._sent = self._sent, True
        if resent:
            self._look(db, self._unknown())
        waiting = self._unknown()
        if not waiting:
            return
        moved = _write(db, waiting)
        refused = [part for number, part in enumerate(waiting, 1) if number not in moved]
        for number in moved:
            waiting[number - 1].landed = True
        if (
            refused and resent
        ):  # the lost statement may still have been in flight at the check, and may have landed since
            self._look(db, refused)
        for part in refused:
            part.landed = bool(part.landed)

    def _unknown(self) -> list[Part]:
        return [part for part in self.parts.values() if part.landed is None]

    @staticmethod
    def _look(db: Db, parts: list[Part]) -> None:
        asked = ([part.lease.run_id for part in parts], _numbers([part.seq for part in parts]))
        found = {row[0]: row[1:] for row in db.execute(_STANDS, asked, binary=True)}
        for number, part in enumerate(parts, 1):
            if number in found:
                part.judge(*found[number])
            else:
                part.landed = False  # the run was removed


def _write(db: Db, parts: list[Part]) -> set[int]:
    """Send the statement; return the numbers of the parts that it wrote, from 1."""
    runs = [
        (
            part.lease.run_id,
            part.lease.epoch,
            part.was_seq,
            bytes.fromhex(part.was_head),
            part.seq,
            bytes.fromhex(part.head),
            *part.change.status,
            *(part.change.state or (None, None)),
            *(part.change.usage or (None, None)),
            *(part.change.children or (None, None)),
            *(part.change.identity or Identity()),
            part.progress,
        )
        for part in parts
    ]
    rows = [
        (number, *row, bytes.fromhex(digest))
        for number, part in enumerate(parts, 1)
        for *row, digest in part.rows
    ]
    blobs = [
        (number, bytes.fromhex(digest), content)
        for number, part in enumerate(parts, 1)
        for digest, content in part.blobs.items()
    ]
    single = len(rows) == 1
    given = _values if single else _arrays
    values = [*given(_RUN, runs), *given(_ROW, rows), *(_arrays(_BLOB, blobs) if blobs else ())]
    found = db.execute(_STATEMENTS[single, bool(blobs)], values, prepare=True)
    return {row[0] for row in found}


def _values(columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """Yield the values of the only row.

    A number is text: the driver would choose a type by its size, and prepare the statement again.
    """
    for kind, value in zip(columns.values(), rows[0], strict=True):
        yield value if kind in _AS_THEY_ARE or value is None else str(value)


def _arrays(columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """Yield an array for each column, of numbers as text for the same reason."""
    for kind, values in zip(columns.values(), zip(*rows, strict=True), strict=True):
        yield list(values) if kind in _AS_THEY_ARE else _numbers(values)


_AS_THEY_ARE: Final = frozenset(("text", "bytea"))


def _numbers(values: Sequence[float | None]) -> str:
    """Return an array of numbers as text."""
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


_OWNED: Final = OWNED.encode()


@dataclass(slots=True)
class PostgresCreate:
    """PostgresCreate a run."""

    run_id: str
    owner: str
    body: Mapping[str, Any]
    presence: PostgresPresence
    line: bytes = field(init=False)
    sent: bool = False

    def __post_init__(self) -> None:
        self.line = encoded("created", self.body)

    def __call__(self, db: Db) -> Lease:
        body, holder = self.body, self.presence.begin(db)
        head = chained(NO_HASH, self.run_id, 0, 1, "created", self.line)
        resent, self.sent = self.sent, True
        change = head_change([("created", body)])
        tags: Mapping[str, str] = body.get("tags") or {}
        row = (
            *Fixed.of(self.run_id, body, time.time()),
            bytes.fromhex(head),
            OPEN,
            self.owner,
            holder,
            *(change.usage or (None, None)),
            *(change.children or NOTHING),
            list(tags.keys()),
            list(tags.values()),
            self.line,
            bytes.fromhex(head),
        )
        made = db.execute(CREATE, row, prepare=True).fetchone()
        if made is None and not (resent and self._is_ours(db, head, holder)):
            raise RunExists(self.run_id)
        return Lease(self.run_id, self.owner, 1, 0, head)

    def doubt(self) -> None:
        """Record that no caller will ask for the outcome."""
        if self.sent:
            self.presence.doubt(self.run_id, 1, self.owner)

    def _is_ours(self, db: Db, head: str, holder: int) -> bool:
        row = db.execute(_OWNED, (self.run_id,)).fetchone()
        return row is not None and row[:5] == (1, 0, bytes.fromhex(head), self.owner, holder)


@dataclass(slots=True)
class PostgresClaim:
    """PostgresClaim a run. Returns None if its holder has just lost its connection; then retry soon."""

    run_id: str
    owner: str
    presence: PostgresPresence
    steal: bool
    sent: int = -1
    """The requested epoch, once it was requested."""

    def __call__(self, db: Db) -> Lease | None:
        mine = self.presence.begin(db)
        while True:
            row = db.execute(_OWNED, (self.run_id,), prepare=True).fetchone()
            if row is None:
                raise RunUnknown(self.run_id)
            epoch, seq, head, owner, holder, alive, locked, _ = row
            ours = (owner, holder) == (self.owner, mine)
            if ours and epoch == self.sent:
                return Lease(self.run_id, self.owner, epoch, seq, head.hex())
            if alive and not ours and not self.steal:
                if not locked:
                    return None
                raise Held(self.run_id, str(owner))
            self.sent = epoch + 1
            values = (self.owner, mine, self.run_id, epoch, holder)
            taken = db.execute(CLAIM, values, prepare=True).fetchone()
            if taken is not None:
                return Lease(self.run_id, self.owner, taken[0], taken[1], taken[2].hex())

    def doubt(self) -> None:
        """Record that no caller will ask for the outcome."""
        if self.sent >= 0:
            self.presence.doubt(self.run_id, self.sent, self.owner)


@dataclass(slots=True)
class PostgresPost:
    """PostgresPost a request to a run. It needs no lease: the run's row orders the posts."""

    run_id: str
    request: Posted
    values: tuple[Any, ...] = field(init=False)
    sent: bool = False

    def __post_init__(self) -> None:
        request = self.request
        body = encoded(request.kind, request.body)
        self.values = (request.id, request.kind, body, request.by, request.at or time.time())

    def __call__(self, db: Db) -> bool:
        resent, self.sent = self.sent, True
        try:
            row = db.execute(POST, (self.run_id, self.request.id, *self.values)).fetchone()
        except errors.UniqueViolation:  # another request with this id came first, at the same moment
            row = None
        if row is not None:
            return True
        there = db.execute(POSTED, (self.request.id, self.run_id)).fetchone()
        if there is None:
            raise RunUnknown(self.run_id)
        return resent and there == self.values[1:]


@dataclass(slots=True)
class PostgresRelease(DeferredWork):
    """PostgresRelease a run; a lease that is out of date changes nothing."""

    lease: Lease

    def __call__(self, db: Db) -> None:
        db.execute(RELEASE, (self.lease.run_id, self.lease.epoch), prepare=True)


@dataclass(slots=True)
class PostgresPrune:
    """Remove ended runs that meet every condition, up to `most` at once; return their number."""

    older_than: float | None
    keep_last: int
    most: int = 100

    def __call__(self, db: Db) -> int:
        values = (self.older_than, self.older_than, self.keep_last, self.most)
        return _drop(db, db.execute(PRUNABLE.encode(), values).fetchall())


@dataclass(slots=True)
class PostgresRemove:
    """PostgresRemove one run in any state, unless it is held."""

    run_id: str
    sent: bool = False

    def __call__(self, db: Db) -> None:
        while True:
            row = db.execute(_OWNED, (self.run_id,)).fetchone()
            if row is None and self.sent:
                return
            if row is None:
                raise RunUnknown(self.run_id)
            epoch, seq, _, owner, _, alive, _, number = row
            if alive:
                raise Held(self.run_id, str(owner))
            self.sent = True
            if _drop(db, [(number, epoch, seq)]):
                return


def _drop(db: Db, chosen: list[Any]) -> int:
    """Remove runs, (id, epoch, seq) each, that have not moved since, and blobs that no run names any more."""
    if not chosen:
        return 0
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (BLOBS,))
        columns: list[list[int]] = [list(column) for column in zip(*chosen, strict=True)]
        row = db.execute(DROP, columns).fetchone()
        db.execute(UNNAMED)
    return int(row[0]) if row else 0


_Job: TypeAlias = WriterJob[Db, Any]

SOON: Final = 0.5
"""Seconds to wait for an unreachable server to release a run; after that the release is owed."""


class PostgresWriter(WriterThread[Db]):
    """Owns the writing session from its start on."""

    def __init__(
        self, session: PostgresSession, presence: PostgresPresence, *, limit: int, name: str
    ) -> None:
        super().__init__(limit=limit, name=name)
        self._session = session
        self._presence = presence

    def stop(self, timeout: float | None = None) -> None:
        """Write the queued jobs without waiting for an unreachable server, then end the thread."""
        self._session.stopping.set()
        super().stop(timeout)

    def _commit(self, jobs: Sequence[_Job]) -> None:
        for group in _groups(jobs):
            if isinstance(group[0].work, PostgresAppend):
                batch = AppendBatch()
                try:
                    added = [
                        (job, job.work, batch.add(job.work))
                        for job in group
                        if isinstance(job.work, PostgresAppend)
                    ]
                    self._session.run(batch)
                except (StoreDown, Corrupt) as error:
                    self._fail(group, error)
                except Exception as error:  # noqa: BLE001  a job that cannot be stored must not fail the others
                    self._one_by_one(group, self._explained(error))
                else:
                    batch.settle()
                    self.commits += 1
                    self._deliver(
                        [(job, None, fault or batch.outcome(append)) for job, append, fault in added]
                    )
            else:
                self._alone(group[0])
            self._idle()

    def _alone(self, job: _Job) -> None:
        outcome: Outcome
        gives_back = isinstance(job.work, DeferredWork)
        try:
            outcome = job, self._session.run(job.work, SOON if gives_back else None), None
            self.commits += 1
        except StoreDown as away:
            if gives_back:
                self._owe(job)
                return
            if isinstance(job.work, PostgresCreate | PostgresClaim) and self._session.lost:
                job.work.doubt()
            outcome = job, None, away
        except RunError as refused:
            outcome = job, None, refused
        except Exception as error:  # noqa: BLE001  passed to the caller of the job
            outcome = job, None, self._explained(error)
        self._deliver([outcome])

    def _explained(self, error: Exception) -> JournalError:
        return explain(error, self._session.address)

    def _idle(self) -> float | None:
        wait = self._presence.wait()
        if wait:
            return wait
        if wait is not None:
            self._presence.postpone()
            # If this fails, the next job reports it, or the next heartbeat succeeds.
            with contextlib.suppress(JournalError):
                self._session.run(self._presence.write, 0.0)
                while self._owed:
                    self._session.run(self._owed[0].work, 0.0)
                    del self._owed[0]
        return self._presence.wait()

    def _close(self) -> None:
        self._session.close(self._presence.end)


def _groups(jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
    """Yield the jobs in groups, in order: appends with one lease for each run, or one other job."""
    group: list[_Job] = []
    leases: dict[str, Lease] = {}
    for job in jobs:
        work = job.work
        lease = work.lease if isinstance(work, PostgresAppend) else None
        if lease is not None and leases.setdefault(lease.run_id, lease) is lease:
            group.append(job)
            continue
        if group:
            yield group
        group, leases = [], {}
        if lease is None:
            yield [job]
        else:
            group, leases = [job], {lease.run_id: lease}
    if group:
        yield group
