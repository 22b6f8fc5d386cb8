"""Upgrade a journal of an earlier version in place: one transaction, after a backup beside it.

The write lock is taken first, so nothing can be written between the backup and the upgrade, and of several processes
that open the journal only one upgrades it. A process that ends at any point leaves the earlier version or the present
one; what it leaves of a backup is reused or replaced. A process of an earlier version that uses the journal must end
first. One that only has it open cannot write to it afterwards, because its statements name a column that has another
name now.

A copy of a journal file with its blobs is durable and verified before it gets its name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import orjson

from orchestrator.errors import Corrupt, StoreDown
from orchestrator.journal.codec import HEAD_KINDS, head_of
from orchestrator.journal.sqlite import high_water, place, schema
from orchestrator.journal.sqlite.owner import SqlitePresence
from orchestrator.journal.sqlite.place import beside
from orchestrator.journal.sqlite.schema import (
    RunRow,
    checksum,
    hide_earlier,
    numbered_row,
    position_sum,
    usage_columns,
)

# ---- copies ----


def write_copy(
    db: apsw.Connection, blobs: Path, target: Path, *, verify: Callable[[Path], None], link: bool = False
) -> None:
    """Copy the journal that `db` has open to `target`, which must not exist. Raises StoreDown.

    `verify` raises StoreDown for a bad copy. With `link` the big blobs are hard links to the originals, which nothing
    ever changes.
    """
    refuse_existing(target)
    hide_earlier(db)  # the copy is of the same version
    part = beside(target, ".part")
    remove(part)
    try:
        # One read transaction, beside which writers continue; the copy has no free pages and no log.
        db.execute("VACUUM INTO ?", (str(part),))
        part.chmod(0o600)
        close_for_good(part)
        copy_blobs(blobs, part, link=link)
        verify(part)
        close_for_good(part)  # the check opened it, which may have given it an identity
        put(part, target)
    except OSError as error:
        raise StoreDown(f"backup {target} cannot be written: {error.strerror or error}") from error
    except apsw.Error as error:
        raise StoreDown(f"backup {target} cannot be written: {error}") from error
    finally:
        remove(part)


def close_for_good(part: Path) -> None:
    """Mark a copy as not in use, and remove the identity of its original: no mark belongs to it."""
    db = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        if db.table_exists("main", "mark"):
            db.execute("DELETE FROM mark")
    finally:
        db.close()


def copy_blobs(folder: Path, part: Path, *, link: bool = False) -> None:
    """Copy the files of big blobs beside a copy."""
    if not folder.is_dir():
        return
    copy = beside(part, "-blobs")
    copy.mkdir(mode=0o700)
    for file in folder.iterdir():
        if not file.name.endswith(".tmp"):
            # A file may be removed meanwhile; if a run of the copy needs it, the check reports that.
            with contextlib.suppress(FileNotFoundError):
                _copy(file, copy / file.name, link=link)
    place.sync_folder(copy)


def _copy(file: Path, copy: Path, *, link: bool) -> None:
    if link:
        with contextlib.suppress(OSError):  # a file system without hard links
            os.link(file, copy)
            return
    shutil.copyfile(file, copy)
    _sync(copy)


def put(part: Path, target: Path) -> None:
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


def refuse_existing(target: Path) -> None:
    """Raise StoreDown if there is a journal of this name, or a part of one."""
    for path in (target, beside(target, "-wal"), beside(target, "-blobs")):
        if path.exists():
            raise StoreDown(f"{path} exists and was not overwritten")


def remove(part: Path) -> None:
    """Remove a copy that did not get its name."""
    for suffix in ("", "-wal", "-shm"):
        beside(part, suffix).unlink(missing_ok=True)
    for suffix in ("-blobs", "-owners"):
        shutil.rmtree(beside(part, suffix), ignore_errors=True)


# ---- the upgrade ----

PATIENCE = 60.0
"""Seconds to wait for another process that upgrades the journal."""
_ROOM = 1.25
"""Free space that an upgrade needs, as a multiple of the file: the backup, and the log of the transaction."""


def upgrade_file(db: apsw.Connection, *, path: Path, busy: float) -> None:
    """Upgrade the journal that `db` has open to the present version. Raises StoreDown, and SQLite's errors."""
    db.set_busy_timeout(int(max(busy, PATIENCE) * 1000))
    with schema.transaction(db, "IMMEDIATE") as cursor:
        if schema.is_old(db, schema.JOURNAL):
            pids = SqlitePresence(beside(path, "-owners")).living()
            if pids:
                named = ", ".join(str(pid) for pid in pids if pid) or "(of another container)"
                raise StoreDown(
                    f"journal {path} has version {_version(db)} and is used by process {named} of an earlier version "
                    "of fsm-orchestrator: end it, then open the journal again to upgrade it to version "
                    f"{schema.VERSION}"
                )
            _back_up(db, path, busy)
            found = _version(db)
            schema.make_present(db, schema.JOURNAL)
            if found < _HEADS_SINCE:
                _fill_heads(db)
            cursor.execute("COMMIT")
    db.set_busy_timeout(int(busy * 1000))


def _fill_heads(db: apsw.Connection) -> None:
    """Derive the head of each run from its records. A damaged row of a run stays damaged, and without a head."""
    for (number,) in db.execute("SELECT id FROM run ORDER BY id").fetchall():
        with contextlib.suppress(Corrupt, ValueError, TypeError):
            row = numbered_row(db.cursor(), int(str(number)))
            if row is not None:
                _fill_head(db, row)


def _fill_head(db: apsw.Connection, row: RunRow) -> None:
    kinds = ",".join(f"'{kind}'" for kind in sorted(HEAD_KINDS))
    found = db.execute(
        f"SELECT kind, body FROM record WHERE key BETWEEN ? AND ? AND kind IN ({kinds}) ORDER BY key",  # noqa: S608
        (row.id << schema.SHIFT, row.id << schema.SHIFT | schema.LAST),
    )
    change = head_of((str(kind), orjson.loads(body)) for kind, body in found)
    status, state = change.status, change.state
    values = row.values()
    if status.status == row.status:
        values = values._replace(outcome=status.outcome, waiting=status.waiting)
    db.execute(
        """UPDATE run SET outcome=?, waiting=?, sum=?, state=?, state_since=?, state_sum=?,
        tokens=?, cost=?, usage_sum=?, child_tokens=?, child_cost=?, child_sum=? WHERE id=?""",
        (
            *(values.outcome, values.waiting, position_sum(values)),
            *(("", None, None) if state is None else (*state, checksum(row.run_id, *state))),
            *usage_columns(row.run_id, change),
            row.id,
        ),
    )


def _version(db: apsw.Connection) -> int:
    return int(str(db.pragma("user_version")))


def _back_up(db: apsw.Connection, path: Path, busy: float) -> None:
    """Write a backup, unless an interrupted upgrade has left one of the same content."""
    name = f"{path.name}.version-{_version(db)}"
    names = (path.with_name(f"{name}{more}.backup") for more in ("", *(f".{n}" for n in range(2, 1_000))))
    target = next(found for found in names if not found.exists() or _is_copy(found, db))
    if target.exists():
        remove(beside(target, ".part"))  # of a process that ended after it had given the copy its name
        return
    needed = int(_ROOM * sum(file.stat().st_size for file in (path, beside(path, "-wal")) if file.exists()))
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise StoreDown(
            f"journal {path} is not upgraded: the backup {target.name} and the upgrade need {needed:,} bytes, and "
            f"{free:,} are free on its disk: free space, then open the journal again",
            "full",
        )
    shutil.rmtree(beside(target, "-blobs"), ignore_errors=True)  # of an interrupted backup
    source = high_water.connect_proved(
        path, busy=busy
    )  # beside the open transaction, which `VACUUM INTO` cannot be part of
    try:
        blobs = beside(path, "-blobs")
        write_copy(source, blobs, target, verify=functools.partial(_verify, db), link=True)
    finally:
        high_water.close_connection(source)


def _verify(db: apsw.Connection, part: Path) -> None:
    if not _is_copy(part, db):
        raise StoreDown(f"the copy {part} is incomplete; the journal was not upgraded")


def _is_copy(file: Path, db: apsw.Connection) -> bool:
    """Return whether a file that nobody writes has the same runs and rows as a journal."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        copy = apsw.Connection(f"{file.as_uri()}?mode=ro&immutable=1", flags=flags)
        try:
            return _version(copy) == _version(db) and _content(copy) == _content(db)
        finally:
            copy.close()
    except apsw.Error:
        return False


def _content(db: apsw.Connection) -> list[tuple[object, ...]]:
    """Return the checksums of every run, which cover the position of each, and the number of rows of each table."""
    names = db.execute(
        "SELECT name FROM sqlite_schema WHERE type='table' AND name<>'mark' ORDER BY name"
    ).fetchall()
    counts = [(name, db.execute(f"SELECT count(*) FROM {name}").get) for (name,) in names]  # noqa: S608
    identity = "fixed_sum" if _version(db) < _RENAMED else "identity_sum"
    return [*counts, *db.execute(f"SELECT id, {identity}, sum, requests_sum FROM run ORDER BY id")]  # noqa: S608


_HEADS_SINCE = 2
"""The first version with the heads of runs."""
_RENAMED = 3
"""The first version with this name of the checksum."""
