"""The tables, their rows, and how a connection is made.

The pragmas of a connection are set, read back, and refused if they did not take effect.

A record's key is its run's number and its own in one integer, so that the records of a run are neighbours in one tree
and an append touches two pages. A run's row has six checksums, because SQLite pages have none: `identity_sum` over
the columns that no step changes, `sum` over the position of the run, `state_sum`, `usage_sum` and `child_sum` over
what a listing shows of it, `requests_sum` over the number of posted requests. An append writes each group that it
changes, and reads none.
`owner` and `holder` are outside: they only name who is alive.

A group of columns that has only its defaults adds nothing to a checksum: so the row of an earlier version, which lacks
these columns, is a valid row of the present version.

Blobs are stored by their SHA-256. The file of a big one is complete and durable (temporary file, sync, rename, sync of
the folder) before the row that names it is committed. `sweep` removes a file whose row was never committed or was
deleted.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import apsw
import orjson

from orchestrator.errors import Corrupt, RunUnknown, StoreDown, TooNew, see_guide
from orchestrator.journal.codec import NOTHING, Fixed, HeadChange, total, verified_blob
from orchestrator.journal.run_query import ORDERS, RunQuery
from orchestrator.journal.sqlite import log
from orchestrator.journal.sqlite.error_mapping import explain
from orchestrator.journal.sqlite.owner import HolderState
from orchestrator.journal.sqlite.place import sync_folder
from orchestrator.kernel.journal import RunHead

VERSION = 3
"""Version of the tables, in `user_version`."""
APPLICATION = 0x46534D6F
"""`FSMo`, in `application_id`: identifies a journal, also for file(1)."""
OLDEST_SQLITE = (3, 53, 0)
"""Has the checkpoint that only reads, which finds damage to the log. 3.7.0 to 3.51.2 can corrupt a database in WAL mode
if two processes write and checkpoint at once."""

OLDEST = 1
"""Oldest version that is upgraded."""

TABLES = (
    """CREATE TABLE run(
        id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL UNIQUE,
        graph TEXT NOT NULL, fingerprint TEXT NOT NULL, created_at REAL NOT NULL,
        parent_run_id TEXT, conversation_id TEXT, fixed_sum INTEGER NOT NULL,
        epoch INTEGER NOT NULL, seq INTEGER NOT NULL, head BLOB NOT NULL, progress INTEGER NOT NULL,
        status TEXT NOT NULL, reason TEXT NOT NULL, updated_at REAL NOT NULL, sum INTEGER NOT NULL,
        requests INTEGER NOT NULL, requests_sum INTEGER NOT NULL, owner TEXT, holder TEXT) STRICT""",
    """CREATE TABLE record(
        key INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL,
        hash BLOB NOT NULL) STRICT""",
    """CREATE TABLE request(
        key INTEGER PRIMARY KEY, run INTEGER NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL,
        by TEXT NOT NULL, at REAL NOT NULL, sum INTEGER NOT NULL, UNIQUE(run, id)) STRICT""",
    "CREATE TABLE blob(digest BLOB PRIMARY KEY, size INTEGER NOT NULL, content BLOB) STRICT",
    "CREATE TABLE blob_use(run INTEGER, digest BLOB, PRIMARY KEY(run, digest)) STRICT, WITHOUT ROWID",
)

UPGRADES = {
    2: (
        # Old statements name the column, so that a process of an earlier version cannot write any more.
        "ALTER TABLE run RENAME COLUMN head TO last_hash",
        "ALTER TABLE run ADD COLUMN agent TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE run ADD COLUMN agent_version TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE run ADD COLUMN tags TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE run ADD COLUMN outcome TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE run ADD COLUMN waiting TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE run ADD COLUMN state TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE run ADD COLUMN state_since REAL",
        "ALTER TABLE run ADD COLUMN state_sum INTEGER",
        "ALTER TABLE run ADD COLUMN tokens INTEGER",
        "ALTER TABLE run ADD COLUMN cost INTEGER",
        "ALTER TABLE run ADD COLUMN usage_sum INTEGER",
        "ALTER TABLE run ADD COLUMN child_tokens INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE run ADD COLUMN child_cost INTEGER",
        "ALTER TABLE run ADD COLUMN child_sum INTEGER",
        """CREATE TABLE run_tag(name TEXT, value TEXT, run INTEGER, PRIMARY KEY(name, value, run))
        STRICT, WITHOUT ROWID""",
    ),
    3: (
        # An earlier version computes the sum without the currency, so its statements that write the sum must fail.
        "ALTER TABLE run RENAME COLUMN fixed_sum TO identity_sum",
        "ALTER TABLE run ADD COLUMN currency TEXT NOT NULL DEFAULT ''",
    ),
}
"""Version -> the statements that make its tables from those of the version before. A new file runs them too, so that
an upgraded file has the same tables."""

ADDED = {
    # At most one row per run: the position of its last request among those of the whole store.
    "news": """CREATE TABLE IF NOT EXISTS news(
        position INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL UNIQUE) STRICT""",
    "run_of_conversation": """CREATE INDEX IF NOT EXISTS run_of_conversation
        ON run(conversation_id) WHERE conversation_id IS NOT NULL""",
    "run_of_parent": """CREATE INDEX IF NOT EXISTS run_of_parent
        ON run(parent_run_id) WHERE parent_run_id IS NOT NULL""",
    # At most one row: whether processes write, and the identity of the mark that records their progress.
    "mark": """CREATE TABLE IF NOT EXISTS mark(
        id INTEGER PRIMARY KEY CHECK(id=1), identity BLOB NOT NULL, in_use INTEGER NOT NULL,
        sum INTEGER NOT NULL) STRICT""",
}
"""Tables that a file of this version may lack and gets when it is opened. A missing table from the list above was
lost to damage, and an empty one in its place would hide that."""

SHOWN = {
    1: (
        """CREATE TEMP VIEW run AS SELECT *, head AS last_hash, '' AS agent, '' AS agent_version, '{}' AS tags,
        '' AS outcome, '' AS waiting, '' AS state, NULL AS state_since, NULL AS state_sum,
        NULL AS tokens, NULL AS cost, NULL AS usage_sum, 0 AS child_tokens, NULL AS child_cost, NULL AS child_sum,
        fixed_sum AS identity_sum, '' AS currency FROM main.run""",
        "CREATE TEMP TABLE run_tag(name TEXT, value TEXT, run INTEGER)",
        "CREATE TEMP TABLE news(position INTEGER, run INTEGER)",
    ),
    2: (
        "CREATE TEMP VIEW run AS SELECT *, fixed_sum AS identity_sum, '' AS currency FROM main.run",
        "CREATE TEMP TABLE news(position INTEGER, run INTEGER)",
    ),
}
"""Version -> what a connection that only reads needs, to read a file of that version like one of the present version.
Names of the temporary schema hide those of the file. `news` is only for files that lack the table."""

PRAGMAS: dict[str, tuple[object, object]] = {
    "journal_mode": ("wal", "wal"),
    "synchronous": ("full", 2),
    "locking_mode": ("normal", "normal"),
    "mmap_size": (0, 0),  # a page that the kernel changes in memory is no proof of anything
    "secure_delete": (1, 1),  # an erased run must be gone from the file
    "cell_size_check": (1, 1),
    "trusted_schema": (0, 0),
    "fullfsync": (int(sys.platform == "darwin"), int(sys.platform == "darwin")),
    "checkpoint_fullfsync": (int(sys.platform == "darwin"), int(sys.platform == "darwin")),
}
"""Name -> value to set, value that must be read back."""


INCREMENTAL = 2
"""`auto_vacuum` of a new file: the space of removed rows can be returned to the file system."""
_FORMAT = slice(18, 20)
"""Part of a SQLite file's header: the format versions that a writer and a reader need."""
_WAL = 2


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: its name in sentences, how it is identified, its tables and those that it may lack."""

    noun: str
    application: int
    version: int
    tables: tuple[str, ...]
    added: Mapping[str, str] = field(default_factory=dict)
    upgrades: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    shown: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    remedy: str = "nothing of it is used: restore a copy"
    """Advice after damage."""

    def image(self) -> bytes:
        """Return the content of a new file: the empty tables, in WAL mode."""
        db = apsw.Connection(":memory:")
        try:
            db.pragma("auto_vacuum", INCREMENTAL)
            _make(db, self)
            content = bytearray(db.serialize("main"))
        finally:
            db.close()
        content[_FORMAT] = bytes((_WAL, _WAL))
        return bytes(content)


JOURNAL = FileKind(
    "journal",
    APPLICATION,
    VERSION,
    TABLES,
    ADDED,
    UPGRADES,
    SHOWN,
    "nothing of it is used: restore a backup, or write what is left to a new file with "
    f"`orchestrator doctor --salvage NEW.db`; {see_guide('journals')}",
)

SHIFT = 32
LAST = (1 << SHIFT) - 1


def checksum(*parts: object) -> int:
    """Return the checksum of plain values."""
    return zlib.crc32(orjson.dumps(parts))


def refuse_old_sqlite(version: str) -> None:
    """Raise StoreDown for a SQLite that can corrupt a journal, or cannot check its log."""
    if tuple(map(int, version.split("."))) < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise StoreDown(
            f"apsw contains SQLite {version}, which can corrupt a journal or miss damage to its log: "
            f"install apsw>={wanted}"
        )


def connect(
    path: Path,
    *,
    busy: float,
    query_only: bool = False,
    kind: FileKind = JOURNAL,
    prove: Callable[[apsw.Connection], None] | None = None,
    upgrade: Callable[[apsw.Connection], None] | None = None,
) -> apsw.Connection:
    """Open a connection to a file and create missing tables. Raises StoreDown, Corrupt or TooNew.

    `prove` is called before anything is written, and raises Corrupt for a file that must not be used. `upgrade` is
    called for a file of an earlier version; without it, the file is not changed and can only be read.
    """
    refuse_old_sqlite(apsw.sqlite_lib_version())
    db: apsw.Connection | None = None
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # a refused file is not changed
        db.set_busy_timeout(int(busy * 1000))
        db.pragma("temp_store", 2)  # in memory: `show_as_present` writes nothing anywhere
        _examine(db, path, kind, prove)
        _prepare(db, path, kind, upgrade)
        if query_only:
            db.pragma("query_only", 1)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except BaseException as error:
        if db is not None:
            db.close(force=True)
        if isinstance(error, apsw.Error):
            raise explain(error, path, busy, kind.noun) from error
        raise
    return db


def _examine(
    db: apsw.Connection, path: Path, kind: FileKind, prove: Callable[[apsw.Connection], None] | None
) -> None:
    """Refuse a file that must not be written, before anything is."""
    refuse_foreign(db, path, kind)
    if db.readonly("main"):
        raise StoreDown(f"{kind.noun} {path} is read-only")
    if db.pragma("application_id") == kind.application:
        refuse_damaged_log(db, path, kind)
        if prove is not None:
            prove(db)


def is_old(db: apsw.Connection, kind: FileKind) -> bool:
    """Return whether a file of this kind has an earlier version."""
    return (
        db.pragma("application_id") == kind.application and int(str(db.pragma("user_version"))) < kind.version
    )


def show_as_present(db: apsw.Connection, kind: FileKind) -> None:
    """Let this connection read a file of an earlier version like one of the present version.

    Call it within a transaction, because another process may upgrade the file meanwhile. What it makes is removed with
    that transaction if it is rolled back.
    """
    if not is_old(db, kind):
        return
    lacking = _lacking(db, kind)
    for statement in kind.shown[int(str(db.pragma("user_version")))]:
        if "TABLE news" not in statement or "news" in lacking:
            db.execute(statement)


def keep_shown(db: apsw.Connection, kind: FileKind) -> None:
    """Let every later read of this connection see the file like one of the present version."""
    with transaction(db) as cursor:
        show_as_present(db, kind)
        cursor.execute("COMMIT")


def hide_earlier(db: apsw.Connection) -> None:
    """Remove what `keep_shown` made."""
    for kind, name in db.execute("SELECT type, name FROM sqlite_temp_schema").fetchall():
        db.execute(f"DROP {kind} temp.{name}")


def refuse_damaged_log(db: apsw.Connection, path: Path, kind: FileKind = JOURNAL) -> None:
    """Raise Corrupt if the log has later transactions behind those that SQLite recovered."""
    try:
        frames = int(db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0])
    except apsw.ReadOnlyError:
        frames = 0
    if frames < 0:  # no log
        return
    name = path.with_name(f"{path.name}-wal")
    if wrong := log.damaged_frame(name, frames):
        raise Corrupt(
            f"{kind.noun} {path}: its log {name.name} is damaged at frame {wrong}, behind which later transactions "
            f"stand; {kind.remedy}"
        )


def _prepare(
    db: apsw.Connection, path: Path, kind: FileKind, upgrade: Callable[[apsw.Connection], None] | None
) -> None:
    for name, (value, _) in PRAGMAS.items():
        db.pragma(name, value)
    if not is_old(db, kind):
        # Create the missing tables in one transaction; a second process waits and then finds them.
        if db.pragma("application_id") != kind.application or _lacking(db, kind):
            with transaction(db, "IMMEDIATE") as cursor:
                refuse_foreign(db, path, kind)
                _make(db, kind)
                cursor.execute("COMMIT")
    elif upgrade is not None:
        upgrade(db)
    else:
        keep_shown(db, kind)
    if wrong := misset(db):
        raise StoreDown(f"{kind.noun} {path} refused {wrong}")


def read_back(db: apsw.Connection) -> dict[str, object]:
    """Return the pragmas as they are."""
    return {name: db.pragma(name) for name in PRAGMAS}


def misset(db: apsw.Connection) -> str:
    """Return the pragmas that have a wrong value, as text; empty if there are none."""
    found = read_back(db)
    return ", ".join(
        f"{name}={found[name]}" for name, (_, wanted) in PRAGMAS.items() if found[name] != wanted
    )


def refuse_foreign(db: apsw.Connection, path: Path, kind: FileKind = JOURNAL) -> None:
    """Raise TooNew, Corrupt or StoreDown for a file of another kind or version; an empty file is accepted."""
    # In one moment: another process may create the tables meanwhile.
    with nullcontext() if db.in_transaction else transaction(db):
        version, application, tables = (
            db.pragma("user_version"),
            db.pragma("application_id"),
            int(db.execute("SELECT count(*) FROM sqlite_schema").get),
        )
    noun = kind.noun
    if application == kind.application and isinstance(version, int) and version > kind.version:
        raise TooNew(
            f"{noun} {path} has version {version}; this version of fsm-orchestrator reads up to {kind.version}"
        )
    if application == kind.application and int(str(version)) < kind.version - len(kind.upgrades):
        raise Corrupt(f"{noun} {path} has version {version}, which never existed; {kind.remedy}")
    if application != kind.application and (application or version or tables):
        raise StoreDown(f"{path} is a SQLite database, but not a {noun}")


@contextmanager
def transaction(db: apsw.Connection, how: str = "") -> Iterator[apsw.Cursor]:
    """Run a transaction, and roll it back unless it was committed; `how` IMMEDIATE takes the write lock."""
    db.execute(f"BEGIN {how}")
    try:
        yield db.cursor()
    finally:
        if db.in_transaction:  # an I/O error ends it
            db.execute("ROLLBACK")


def _lacking(db: apsw.Connection, kind: FileKind) -> set[str]:
    return kind.added.keys() - {str(row[0]) for row in db.execute("SELECT name FROM sqlite_schema")}


def _make(db: apsw.Connection, kind: FileKind) -> None:
    if db.pragma("application_id") != kind.application:
        for table in kind.tables:
            db.execute(table)
        db.pragma("user_version", kind.version - len(kind.upgrades))
        db.pragma("application_id", kind.application)
    make_present(db, kind)


def make_present(db: apsw.Connection, kind: FileKind) -> None:
    """Make the tables of the present version from those of an earlier one, within the caller's transaction."""
    for version in range(int(str(db.pragma("user_version"))) + 1, kind.version + 1):
        for statement in kind.upgrades[version]:
            db.execute(statement)
    for statement in kind.added.values():
        db.execute(statement)
    db.pragma("user_version", kind.version)


# ---- blobs and rows ----

BIG = 1 << 20
"""Minimum bytes of a blob that becomes a file: a row of that length would lengthen the write-ahead log twice."""


class Blobs:
    """The blobs of one journal. The first big blob creates `folder`."""

    def __init__(self, folder: Path, token: Callable[[], str]) -> None:
        self.folder = folder
        self._token = token

    @staticmethod
    def is_big(content: bytes) -> bool:
        """Return whether the content is stored as a file."""
        return len(content) >= BIG

    def write(self, digest: str, content: bytes) -> None:
        """Write a file, durable when this returns. Raises OSError."""
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self.folder.parent)
        temporary = self.folder / f"{digest}.{self._token()}.tmp"
        try:
            descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                written = 0
                while written < len(content):
                    written += os.write(descriptor, memoryview(content)[written:])
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(self.folder / digest)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(self.folder)

    def insert(self, cursor: apsw.Cursor, run: int, blobs: Mapping[str, bytes]) -> None:
        """Add the rows of the blobs that a run names, within its append."""
        for digest, content in blobs.items():
            name, big = bytes.fromhex(digest), self.is_big(content)
            if big and not (self.folder / digest).exists():
                self.write(digest, content)  # swept meanwhile, because it had no row yet
            row = (name, len(content), None if big else content)
            cursor.execute("INSERT INTO blob VALUES (?,?,?) ON CONFLICT DO NOTHING", row)
            cursor.execute("INSERT INTO blob_use VALUES (?,?) ON CONFLICT DO NOTHING", (run, name))

    def read(self, cursor: apsw.Cursor, digest: str) -> bytes:
        """Return a blob. Raises Corrupt."""
        # No bytes.fromhex: a malformed digest is simply not here.
        row = cursor.execute("SELECT content FROM blob WHERE digest=unhex(?)", (digest,)).fetchone()
        if row is None or row[0] is not None:
            return verified_blob(digest, None if row is None else row[0])
        try:
            content: bytes | None = (self.folder / digest).read_bytes()
        except FileNotFoundError:
            content = None
        return verified_blob(digest, content)

    def sweep(self, cursor: apsw.Cursor, alive: Callable[[str | None], bool]) -> None:
        """Remove files without a row, and incomplete files of dead writers.

        It runs under the write lock, so that no process is unnoticed between a file and its row, and in a transaction
        that removed no row itself: a failed commit restores a row, but not a file.
        """
        if not self.folder.is_dir():
            return
        rows = cursor.execute("SELECT digest FROM blob WHERE content IS NULL")
        named = {bytes(row[0]).hex() for row in rows}
        for file in self.folder.iterdir():
            digest, _, rest = file.name.partition(".")
            if not (alive(rest.removesuffix(".tmp")) if rest else digest in named):
                file.unlink(missing_ok=True)


class Values(NamedTuple):
    """The values that `sum` covers, in its order."""

    run_id: str
    epoch: int
    seq: int
    last_hash: str
    progress: int
    status: str
    reason: str
    updated_at: float
    outcome: str = ""
    waiting: str = ""


def identity_sum(values: Fixed) -> int:
    """Return the checksum of the values that no step changes."""
    known = values[:_SINCE_3] if values.currency == "" else values
    return checksum(*(known[:_SINCE_2] if known[_SINCE_2:] == ("", "", "{}") else known))


_SINCE_2, _SINCE_3 = Fixed._fields.index("agent"), Fixed._fields.index("currency")
"""The first value that version 2, or 3, has added."""


def usage_columns(run_id: str, change: HeadChange) -> tuple[int | None, ...]:
    """Return the values of the columns of usage with their checksums: those of the run, then those of child runs."""
    own = (None, None, None) if change.usage is None else (*change.usage, checksum(run_id, *change.usage))
    below = change.children or NOTHING
    return *own, *below, None if below == NOTHING else checksum(run_id, *below)


def position_sum(values: Values) -> int:
    """Return the checksum of the position of a run."""
    return checksum(*(values[:8] if values[8:] == ("", "") else values))


class RunRow(NamedTuple):
    """One row of `run`."""

    id: int
    run_id: str
    graph: str
    fingerprint: str
    created_at: float
    parent_run_id: str | None
    conversation_id: str | None
    agent: str
    agent_version: str
    tags: str
    currency: str
    identity_sum: int
    epoch: int
    seq: int
    last_hash: str
    progress: int
    status: str
    reason: str
    updated_at: float
    outcome: str
    waiting: str
    sum: int
    state: str
    state_since: float | None
    state_sum: int | None
    tokens: int | None
    cost: int | None
    usage_sum: int | None
    child_tokens: int
    child_cost: int | None
    child_sum: int | None
    requests: int
    requests_sum: int
    owner: str | None
    holder: str | None

    def values(self) -> Values:
        """Return the values that `sum` covers."""
        return Values._make((self.run_id, *self[_EPOCH : _EPOCH + 9]))

    @property
    def tag_values(self) -> dict[str, str]:
        """The tags."""
        tags: dict[str, str] = orjson.loads(self.tags)
        return tags

    def is_right(self) -> bool:
        """Return whether the values are those that were written."""
        state, usage = (self.state, self.state_since), (self.tokens, self.cost)
        children = (self.child_tokens, self.child_cost)
        return (
            identity_sum(Fixed._make(self[1:_IDENTITY_SUM])) == self.identity_sum
            and position_sum(self.values()) == self.sum
            and self.state_sum == (None if state == ("", None) else checksum(self.run_id, *state))
            and self.usage_sum == (None if usage == (None, None) else checksum(self.run_id, *usage))
            and self.child_sum
            in ({None} if children == NOTHING else set()) | {checksum(self.run_id, *children)}
            and checksum(self.run_id, self.requests) == self.requests_sum
        )

    def summary(self, state_of: Callable[[str | None], HolderState]) -> RunHead:
        """Return the head of the run."""
        holder = state_of(self.holder)
        tokens, cost = total(self.tokens, self.cost, self.child_tokens, self.child_cost)
        return RunHead(
            run_id=self.run_id,
            graph=self.graph,
            fingerprint=self.fingerprint,
            status=self.status,
            seq=self.seq,
            epoch=self.epoch,
            owner=self.owner if holder.alive else None,
            created_at=self.created_at,
            updated_at=self.updated_at,
            reason=self.reason,
            parent_run_id=self.parent_run_id,
            conversation_id=self.conversation_id,
            stuck_claims=self.epoch - self.progress,
            lease_expires_in=holder.expires_in if holder.alive and holder.overdue else None,
            lease_renewed_at=holder.renewed_at,
            expired_owner=self.owner if holder.pid and not holder.alive else None,
            agent=self.agent,
            agent_version=self.agent_version,
            tags=self.tag_values,
            state=self.state,
            state_since=self.state_since,
            outcome=self.outcome,
            waiting=self.waiting,
            tokens=tokens,
            cost_micros=cost,
            currency=self.currency,
        )


COLUMNS = ", ".join(f"run.{name}" for name in RunRow._fields)
_IDENTITY_SUM = RunRow._fields.index("identity_sum")
_EPOCH = RunRow._fields.index("epoch")
_LAST_HASH = RunRow._fields.index("last_hash")


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Report a value of another type, or text that cannot be decoded, as damage."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Corrupt(f"{what} is damaged: {error}") from error


def proved(row: tuple[object, ...]) -> RunRow:
    """Return a row of the columns above as a value. Raises Corrupt."""
    with decoding(f"run {row[1]!r}: its row"):
        digest = bytes(row[_LAST_HASH]).hex()  # type: ignore[call-overload]
        found = RunRow._make((*row[:_LAST_HASH], digest, *row[_LAST_HASH + 1 :]))
        right = found.is_right()
    if not right:
        raise Corrupt(f"run {found.run_id!r}: its row is damaged; nothing of the run is used")
    return found


def row_of(cursor: apsw.Cursor, run_id: str) -> RunRow | None:
    """Return the row of a run, or None. Raises Corrupt."""
    with decoding(f"run {run_id!r}: its row"):
        row = cursor.execute(f"SELECT {COLUMNS} FROM run WHERE run_id=?", (run_id,)).fetchone()  # noqa: S608
    if row is None:
        return None
    found = proved(row)
    if found.run_id != run_id:
        raise Corrupt(f"run {run_id!r}: the index leads to another run")
    return found


def known(cursor: apsw.Cursor, run_id: str) -> RunRow:
    """Return the row of a run. Raises RunUnknown, or Corrupt, also if only the index has lost it."""
    row = row_of(cursor, run_id)
    if row is not None:
        return row
    if cursor.execute("SELECT 1 FROM run NOT INDEXED WHERE run_id=?", (run_id,)).fetchone():
        raise Corrupt(f"run {run_id!r}: the index has lost it")
    raise RunUnknown(run_id)


def selected_rows(
    cursor: apsw.Cursor, query: RunQuery, before: tuple[float, int] | None
) -> list[tuple[object, ...]]:
    """Return the next page of unverified rows, each with its value of the order at the end."""
    where, values = query.where("?", before)
    # The rows are sorted by number and order alone, and read after that.
    chosen = f"SELECT run.id FROM run WHERE {where} ORDER BY {query.ordered} LIMIT ? OFFSET ?"  # noqa: S608
    text = f"SELECT {COLUMNS}, {ORDERS[query.order_by]} FROM run WHERE run.id IN ({chosen}) ORDER BY {query.ordered}"  # noqa: S608
    return cursor.execute(text, (*values, query.page, query.skipped(before))).fetchall()


def numbered_row(cursor: apsw.Cursor, number: int) -> RunRow | None:
    """Return the row of this number, or None. Raises Corrupt."""
    with decoding(f"run number {number}: its row"):
        row = cursor.execute(f"SELECT {COLUMNS} FROM run WHERE id=?", (number,)).fetchone()  # noqa: S608
    return None if row is None else proved(row)


def newest_row(cursor: apsw.Cursor, conversation_id: str) -> RunRow | None:
    """Return the row of the newest run of a conversation, or None. Raises Corrupt."""
    row = cursor.execute(
        f"SELECT {COLUMNS} FROM run WHERE conversation_id=? ORDER BY id DESC LIMIT 1",  # noqa: S608
        (conversation_id,),
    ).fetchone()
    return None if row is None else proved(row)
