"""Upgrade a journal of an earlier version in place: one transaction, after a backup beside it.

The write lock is taken first, so nothing can be written between the backup and the upgrade, and of several processes
that open the journal only one upgrades it. A process that ends at any point leaves the earlier version or the present
one; what it leaves of a backup is reused or replaced. A process of an earlier version that uses the journal must end
first. One that only has it open cannot write to it afterwards, because its statements name a column that has another
name now.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from pathlib import Path

import apsw
import orjson

from orchestrator.errors import Corrupt, StoreDown
from orchestrator.journal.codec import HEAD_KINDS, head_of
from orchestrator.journal.sqlite import file_copy, high_water, schema
from orchestrator.journal.sqlite.owner import SqlitePresence
from orchestrator.journal.sqlite.place import beside
from orchestrator.journal.sqlite.row import COLUMNS, RunRow, position_sum, proved, usage_columns
from orchestrator.journal.sqlite.schema import checksum

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
            schema.make_present(db, schema.JOURNAL)
            _fill_heads(db)
            cursor.execute("COMMIT")
    db.set_busy_timeout(int(busy * 1000))


def _fill_heads(db: apsw.Connection) -> None:
    """Derive the head of each run from its records. A damaged row of a run stays damaged, and without a head."""
    runs = db.execute(f"SELECT {COLUMNS} FROM run ORDER BY id")  # noqa: S608
    for raw in runs.fetchall():
        with contextlib.suppress(Corrupt, ValueError, TypeError):
            _fill_head(db, proved(raw))


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
        file_copy.write_copy(source, blobs, target, verify=functools.partial(_verify, db), link=True)
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
    return [*counts, *db.execute("SELECT id, fixed_sum, sum, requests_sum FROM run ORDER BY id")]
