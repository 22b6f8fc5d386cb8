"""The tables, and how a connection is made: pragmas set, read back, and refused when they did not take.

A record's key is its run's number and its own in one integer, so that the records of a run lie side by side in
one tree and an append touches two pages. A run's row has three checksums, because SQLite pages have none:
`fixed_sum` over what never changes, `sum` over where the run stands, `requests_sum` over how many
were posted. `owner` and `holder` are outside: they only
say who is alive.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import apsw
import orjson

from orchestrator.errors import StoreDown, TooNew
from orchestrator.journal.sqlite.trouble import explain

VERSION = 1
"""Of the tables, in `user_version`."""
APPLICATION = 0x46534D6F
"""`FSMo`, in `application_id`: file(1) and we know a journal by it."""
OLDEST_SQLITE = (3, 51, 3)
"""3.7.0 to 3.51.2 can corrupt a database in WAL mode that two processes write and checkpoint at once."""

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

ADDED = {
    # At most one row a run: where its last request stands among those of the whole store.
    "news": """CREATE TABLE IF NOT EXISTS news(
        position INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL UNIQUE) STRICT""",
    "run_of_conversation": """CREATE INDEX IF NOT EXISTS run_of_conversation
        ON run(conversation_id) WHERE conversation_id IS NOT NULL""",
    "run_of_parent": """CREATE INDEX IF NOT EXISTS run_of_parent
        ON run(parent_run_id) WHERE parent_run_id IS NOT NULL""",
}
"""What a file of this version may lack, and gets when it is opened. The tables above it may not: one that is gone was
lost to damage, and an empty one in its place would be a lie."""

PRAGMAS: dict[str, tuple[object, object]] = {
    "journal_mode": ("wal", "wal"),
    "synchronous": ("full", 2),
    "locking_mode": ("normal", "normal"),
    "mmap_size": (0, 0),  # a page that the kernel changes under us is no proof of anything
    "secure_delete": (1, 1),  # an erased run is gone from the file
    "cell_size_check": (1, 1),
    "trusted_schema": (0, 0),
    "fullfsync": (int(sys.platform == "darwin"), int(sys.platform == "darwin")),
    "checkpoint_fullfsync": (int(sys.platform == "darwin"), int(sys.platform == "darwin")),
}
"""Name -> what to set, what must be read back."""

SHIFT = 32
LAST = (1 << SHIFT) - 1


def checksum(*parts: object) -> int:
    """Return the checksum of plain values."""
    return zlib.crc32(orjson.dumps(parts))


def refuse_old_sqlite(version: str) -> None:
    """Raise StoreDown for a SQLite with the WAL-reset bug."""
    if tuple(map(int, version.split("."))) < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise StoreDown(f"apsw brings SQLite {version}, which can corrupt a journal: install apsw>={wanted}")


def connect(path: Path, *, busy: float, query_only: bool = False) -> apsw.Connection:
    """Open a connection to a file, its tables made where there are none. Raises StoreDown, Corrupt or TooNew."""
    refuse_old_sqlite(apsw.sqlite_lib_version())
    db: apsw.Connection | None = None
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        db.set_busy_timeout(int(busy * 1000))
        _prepare(db, path)
        if query_only:
            db.pragma("query_only", 1)
    except BaseException as error:
        if db is not None:
            db.close(force=True)
        if isinstance(error, apsw.Error):
            raise explain(error, path, busy) from error
        raise
    return db


def _prepare(db: apsw.Connection, path: Path) -> None:
    refuse_foreign(db, path)
    if db.readonly("main"):
        raise StoreDown(f"journal {path} is read-only")
    for name, (value, _) in PRAGMAS.items():
        db.pragma(name, value)
    _create(db, path)
    if wrong := misset(db):
        raise StoreDown(f"journal {path} refused {wrong}")


def read_back(db: apsw.Connection) -> dict[str, object]:
    """Return the pragmas as they are."""
    return {name: db.pragma(name) for name in PRAGMAS}


def misset(db: apsw.Connection) -> str:
    """Return the pragmas that are not what they must be, as text; empty when all is well."""
    found = read_back(db)
    return ", ".join(
        f"{name}={found[name]}" for name, (_, wanted) in PRAGMAS.items() if found[name] != wanted
    )


def refuse_foreign(db: apsw.Connection, path: Path) -> None:
    """Raise TooNew or StoreDown for a file that is not a journal of ours; an empty one will be."""
    version, application = db.pragma("user_version"), db.pragma("application_id")
    if application == APPLICATION and isinstance(version, int) and version > VERSION:
        raise TooNew(
            f"journal {path} has version {version}; this version of fsm-orchestrator reads up to {VERSION}"
        )
    if application != APPLICATION and (application or version or _tables(db)):
        raise StoreDown(f"{path} is a SQLite database of something else, not a journal")


def _tables(db: apsw.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM sqlite_schema").get)


def _lacking(db: apsw.Connection) -> set[str]:
    return ADDED.keys() - {str(row[0]) for row in db.execute("SELECT name FROM sqlite_schema")}


def _create(db: apsw.Connection, path: Path) -> None:
    """Make what is missing in one transaction; a second process that comes meanwhile waits and finds it."""
    if db.pragma("application_id") == APPLICATION and not _lacking(db):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        refuse_foreign(db, path)
        if db.pragma("application_id") != APPLICATION:
            for table in TABLES:
                db.execute(table)
            db.pragma("user_version", VERSION)
            db.pragma("application_id", APPLICATION)
        for statement in ADDED.values():
            db.execute(statement)
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
