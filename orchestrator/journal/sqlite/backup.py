"""Copy and verify a whole journal: online backup, restore, and the check behind `doctor`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from orchestrator.errors import JournalError, StoreDown
from orchestrator.journal.head_change import disagreement
from orchestrator.journal.run_query import RunQuery
from orchestrator.journal.sqlite import file_copy, place, proof, read, schema
from orchestrator.journal.sqlite.error_mapping import explain
from orchestrator.journal.sqlite.handle import SqliteHandle
from orchestrator.journal.sqlite.place import beside
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
    db = proof.connect(path, busy=handle.busy, query_only=True)
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
        proof.close(db)


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
    db = proof.connect(handle.path, busy=handle.busy)
    try:
        file_copy.write_copy(db, handle.blobs.folder, target, verify=_prove)
    finally:
        proof.close(db)


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
