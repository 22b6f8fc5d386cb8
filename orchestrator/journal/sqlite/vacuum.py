"""Return the free pages of a journal file to the file system.

A new file has `auto_vacuum=INCREMENTAL`, so that free pages can be removed in small transactions while runs continue. A
file of an earlier version gets this mode by one full `VACUUM`, which writes the whole file once more into the log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import apsw

from orchestrator.errors import StoreDown
from orchestrator.journal.sqlite import proof
from orchestrator.journal.sqlite.error_mapping import TRANSIENT
from orchestrator.journal.sqlite.handle import SqliteHandle
from orchestrator.journal.sqlite.reserve import Reserve
from orchestrator.journal.sqlite.schema import INCREMENTAL

_STEP = 500
"""Pages that one transaction removes: writers wait no longer than that."""
_OPERATOR_STEP = 50
"""The same in a command of an operator, whose log must be short on a full disk."""
_FOLDERS = ("/var/tmp", "/usr/tmp", "/tmp")  # noqa: S108  SQLite's own search path
_ROOM = 1.1


def vacuum(handle: SqliteHandle) -> int:
    """Return the space of removed runs; return the bytes by which the files are shorter. Raises StoreDown."""
    before = handle.size()
    db = proof.connect(handle.path, busy=handle.busy)
    try:
        if db.pragma("auto_vacuum") == INCREMENTAL:
            _remove_free_pages(db, handle.reserve)
        else:
            _refuse_full_disk(handle.path)
            db.pragma("auto_vacuum", INCREMENTAL)
            db.execute("VACUUM")
        with contextlib.suppress(*TRANSIENT):  # readers need the log: the next checkpoint shortens the files
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        proof.close(db)
    return max(0, before - handle.size())


def _remove_free_pages(db: apsw.Connection, reserve: Reserve) -> None:
    step = _OPERATOR_STEP if reserve.operator else _STEP
    while free := int(str(db.pragma("freelist_count"))):
        reserve.grant()
        db.execute(f"PRAGMA incremental_vacuum({step})").fetchall()
        with contextlib.suppress(*TRANSIENT):  # it shortens the file, and the log starts again
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if int(str(db.pragma("freelist_count"))) >= free:  # another process has freed more meanwhile
            break


def _refuse_full_disk(path: Path) -> None:
    """Raise StoreDown without room for a second copy in SQLite's temporary folder and a third in the log."""
    needed = int(_ROOM * path.stat().st_size)
    places = [Path(os.environ.get("SQLITE_TMPDIR") or os.environ.get("TMPDIR") or "."), *map(Path, _FOLDERS)]
    temporary = next((place for place in places if str(place) != "." and os.access(place, os.W_OK)), Path())
    shared = path.parent.stat().st_dev == temporary.stat().st_dev
    for place, amount in ((path.parent, needed * (2 if shared else 1)), (temporary, needed)):
        free = shutil.disk_usage(place).free
        if free < amount:
            raise StoreDown(
                f"journal {path} keeps its free space: its first vacuum needs {amount:,} bytes in {place}, and "
                f"{free:,} are free: free space there, or set TMPDIR to a folder on another disk",
                "full",
            )
