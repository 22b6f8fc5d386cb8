"""Copy and verify a whole journal: online backup, restore, and the check behind `doctor`."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from orchestrator.errors import JournalError, StoreDown
from orchestrator.journal.sqlite import place, proof, read, schema
from orchestrator.journal.sqlite.error_mapping import explain
from orchestrator.journal.sqlite.handle import SqliteHandle, beside
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
    number: int | None = 0
    while number is not None:
        some, bad, number = read.page(db, number, handle.presence.state, {})
        heads += some
        problems += map(str, bad)
    for head in heads:
        try:
            records += len(read.load(db, head.run_id, 0, handle.presence.state))
            read.inbox(db, head.run_id, 0)
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
        _write(db, handle.blobs.folder, target, busy=handle.busy)
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
            _write(db, beside(path, "-blobs"), target, busy=1.0)
        finally:
            db.close(force=True)
            if log_missing:  # SQLite created an empty one
                beside(path, "-wal").unlink(missing_ok=True)
    except apsw.Error as error:
        raise explain(error, path, 1.0) from error


def _write(db: apsw.Connection, blobs: Path, target: Path, *, busy: float) -> None:
    _refuse_existing(target)
    part = beside(target, ".part")
    _remove(part)
    try:
        # One read transaction, beside which writers continue; the copy has no free pages and no log.
        db.execute("VACUUM INTO ?", (str(part),))
        part.chmod(0o600)
        _close_for_good(part)
        _copy_blobs(blobs, part)
        _prove(part, busy=busy)
        _close_for_good(part)  # the check opened it, which gave it an identity
        _put(part, target)
    except OSError as error:
        raise StoreDown(f"backup {target} cannot be written: {error.strerror or error}") from error
    except apsw.Error as error:
        raise StoreDown(f"backup {target} cannot be written: {error}") from error
    finally:
        _remove(part)


def _close_for_good(part: Path) -> None:
    """Mark a copy as not in use, and remove the identity of its original: no mark belongs to it."""
    db = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        if db.table_exists("main", "mark"):
            db.execute("DELETE FROM mark")
    finally:
        db.close()


def restore(source: Path, path: Path) -> None:
    """Copy a backup to the path of a new journal."""
    if not source.is_file():
        raise StoreDown(f"backup {source} does not exist")
    _refuse_existing(path)
    part = beside(path, ".part")
    _remove(part)
    made: list[Path] = []
    try:
        made = place.prepare(part, bytes)
        shutil.copyfile(source, part)
        _copy_blobs(beside(source, "-blobs"), part)
        _prove(part, busy=1.0)
        _close_for_good(part)
        _put(part, path)
    except OSError as error:
        raise StoreDown(f"journal {path} cannot be restored: {error.strerror or error}") from error
    finally:
        _remove(part)
        place.undo(made)


def _prove(part: Path, busy: float) -> None:
    handle = SqliteHandle(part, queue=1, busy=busy)
    try:
        found = check(handle)
    finally:
        handle.close()
    if not found.ok:
        raise StoreDown(f"the copy is damaged: {'; '.join(found.problems[:3])}")


def _copy_blobs(folder: Path, part: Path) -> None:
    if not folder.is_dir():
        return
    copy = beside(part, "-blobs")
    copy.mkdir(mode=0o700)
    for file in folder.iterdir():
        if not file.name.endswith(".tmp"):
            # A file may be removed meanwhile; if a run of the copy needs it, the check reports that.
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(file, copy / file.name)
                _sync(copy / file.name)
    place.sync_folder(copy)


def _put(part: Path, target: Path) -> None:
    """Make the parts durable, then give them their names: the blobs first, the file that names them last."""
    _sync(part)
    if beside(part, "-blobs").is_dir():
        beside(part, "-blobs").replace(beside(target, "-blobs"))
    os.link(part, target)  # unlike a rename it cannot replace a journal that was created meanwhile
    part.unlink()
    place.sync_folder(target.parent)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_existing(target: Path) -> None:
    for path in (target, beside(target, "-wal"), beside(target, "-blobs")):
        if path.exists():
            raise StoreDown(f"{path} exists and was not overwritten")


def _remove(part: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        beside(part, suffix).unlink(missing_ok=True)
    for suffix in ("-blobs", "-owners"):
        shutil.rmtree(beside(part, suffix), ignore_errors=True)
