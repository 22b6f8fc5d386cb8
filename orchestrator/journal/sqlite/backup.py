"""Care of a whole journal: online backup, restore, the check behind `doctor`, and the return of free pages.

A new file has `auto_vacuum=INCREMENTAL`, so that free pages can be removed in small transactions while runs continue. A
file of an earlier version gets this mode by one full `VACUUM`, which writes the whole file once more into the log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from orchestrator.errors import JournalError, StoreDown
from orchestrator.journal.codec import disagreement
from orchestrator.journal.run_query import RunQuery
from orchestrator.journal.sqlite import file_copy, high_water, place, read, schema
from orchestrator.journal.sqlite.error_mapping import TRANSIENT, explain
from orchestrator.journal.sqlite.handle import SqliteHandle
from orchestrator.journal.sqlite.place import beside
from orchestrator.journal.sqlite.schema import INCREMENTAL
from orchestrator.kernel.journal import RunHead


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


def write(handle: SqliteHandle, target: Path) -> None:
    """Copy a journal that is in use. The copy is verified before it gets its name."""
    db = high_water.connect_proved(handle.path, busy=handle.busy)
    try:
        file_copy.write_copy(db, handle.blobs.folder, target, verify=_prove)
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
            file_copy.write_copy(db, beside(path, "-blobs"), target, verify=_prove)
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
    file_copy.refuse_existing(path)
    part = beside(path, ".part")
    file_copy.remove(part)
    made: list[Path] = []
    try:
        made = place.prepare(part, bytes)
        shutil.copyfile(source, part)
        file_copy.copy_blobs(beside(source, "-blobs"), part)
        _prove(part)
        file_copy.close_for_good(part)
        file_copy.put(part, path)
    except OSError as error:
        raise StoreDown(f"journal {path} cannot be restored: {error.strerror or error}") from error
    finally:
        file_copy.remove(part)
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
