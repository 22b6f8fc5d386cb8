"""Open a journal for reads only, also on a full disk or where nothing can be written.

To read a journal, SQLite needs shared memory in a file beside it, which a full or read-only disk may not allow. A
process that writes has that file already, and then it is used. If it can be neither used nor created, there is no
writer: the journal is read as a file that does not change. If a log lies beside it, that would omit the records of
the log; then an error is raised instead.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import apsw

from orchestrator.errors import JournalError, StoreDown
from orchestrator.journal.sqlite.error_mapping import explain
from orchestrator.journal.sqlite.place import refuse_network, refuse_orphaned_log
from orchestrator.journal.sqlite.proof import IntegrityCheck, connect
from orchestrator.journal.sqlite.schema import (
    APPLICATION,
    JOURNAL,
    keep_shown,
    refuse_damaged_log,
    refuse_foreign,
)
from orchestrator.journal.sqlite.writer import SqliteWriter, Transaction

T = TypeVar("T")

_AS_IT_IS = "mode=ro"
_ALONE = "mode=ro&immutable=1"


class NoWriter(SqliteWriter):
    """Replaces a journal's writer, without a thread: it refuses everything but reads."""

    def __init__(self, path: Path, explain: Callable[[BaseException], JournalError]) -> None:
        self.poisoned = False
        self._path = path
        self._explain = explain

    def refuse_if_down(self) -> None:
        """Do nothing: each read stands alone, so no failure is permanent."""

    def poison(self, why: BaseException) -> JournalError:
        """Return one of our errors for an error."""
        return self._explain(why)

    def submit(self, work: Callable[[Transaction], T], first: Callable[[], None] | None = None) -> NoReturn:
        """Raise StoreDown."""
        del work, first
        raise StoreDown(f"journal {self._path} was opened read-only")

    async def call(
        self, work: Callable[[Transaction], T], first: Callable[[], None] | None = None
    ) -> NoReturn:
        """Raise StoreDown."""
        self.submit(work, first)

    def stop(self, timeout: float | None = None) -> None:
        """Do nothing: there is no thread."""


def connect_to_read(path: Path, *, busy: float) -> apsw.Connection:
    """Open a connection that changes nothing. Raises StoreDown, Corrupt or TooNew."""
    refuse_network(path.parent)
    refuse_orphaned_log(path)
    try:
        return connect(path, busy=busy, query_only=True)
    except StoreDown as error:
        if error.kind == "locked":
            raise
    try:
        return _opened(path, _AS_IT_IS, busy)
    except apsw.Error as error:
        if _size(path.with_name(f"{path.name}-wal")):
            raise StoreDown(
                f"journal {path} cannot be read in place: its log {path.name}-wal has further records, and nothing can "
                f"be written there: copy both and {path.name}-mark to a disk with room, and name that copy"
            ) from error
    try:
        return _opened(path, _ALONE, busy)
    except apsw.Error as error:
        raise explain(error, path, busy) from error


def _opened(path: Path, how: str, busy: float) -> apsw.Connection:
    """Open the file and read a value, because opening alone touches nothing. Raises apsw.Error, StoreDown or TooNew."""
    prove = IntegrityCheck(path)
    db = apsw.Connection(f"{path.as_uri()}?{how}", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        db.set_busy_timeout(int(busy * 1000))
        refuse_foreign(db, path)
        _refuse_empty(db, path)
        refuse_damaged_log(db, path)
        db.pragma("temp_store", 2)  # in memory: nothing is written anywhere
        prove(db)
        keep_shown(db, JOURNAL)
        for name, value in (
            ("query_only", 1),
            ("mmap_size", 0),
            ("cell_size_check", 1),
            ("trusted_schema", 0),
        ):
            db.pragma(name, value)
    except BaseException:
        db.close(force=True)
        raise
    return db


def _refuse_empty(db: apsw.Connection, path: Path) -> None:
    if db.pragma("application_id") != APPLICATION:
        raise StoreDown(f"journal {path} is empty")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
