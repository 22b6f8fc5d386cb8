"""Open a journal for reads, and read it: each call in its own transaction, so that a run's row and records agree.

To read a journal, SQLite needs shared memory in a file beside it, which a full or read-only disk may not allow. A
process that writes has that file already, and then it is used. If it can be neither used nor created, there is no
writer: the journal is read as a file that does not change. If a log lies beside it, that would omit the records of
the log; then an error is raised instead.

A count of the runs that have not ended reads the row of every run. An index of those that have not ended would make
each append write one page more, because an append sets the status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

import apsw
import orjson

from orchestrator.errors import Corrupt, JournalError, StoreDown
from orchestrator.journal.codec import excerpts_of, records_of
from orchestrator.journal.run_query import (
    COUNTS,
    NAMES,
    RunQuery,
    agents_of_rows,
    counted,
    have_several_currencies,
)
from orchestrator.journal.sqlite import high_water
from orchestrator.journal.sqlite.error_mapping import explain
from orchestrator.journal.sqlite.high_water import IntegrityCheck, connect_proved
from orchestrator.journal.sqlite.owner import HolderState, SqlitePresence
from orchestrator.journal.sqlite.place import beside, refuse_network, refuse_orphaned_log
from orchestrator.journal.sqlite.schema import (
    APPLICATION,
    JOURNAL,
    LAST,
    RunRow,
    decoding,
    keep_shown,
    known,
    newest_row,
    proved,
    refuse_damaged_log,
    refuse_foreign,
    selected_rows,
    transaction,
)
from orchestrator.journal.sqlite.writer import SqliteWriter, Transaction, request_sum, span
from orchestrator.kernel.journal import (
    ENGINE,
    EXCERPT,
    EXCERPT_BYTES,
    AgentStatistics,
    Draft,
    HeadCounts,
    HeadRow,
    Posted,
    Record,
    RunCounts,
    RunHead,
    merged_counts,
)

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
        return connect_proved(path, busy=busy, query_only=True)
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


_ROWS = f"""SELECT key & {LAST}, epoch, kind, body, lower(hex(hash)) FROM record
    WHERE key BETWEEN ? AND ? ORDER BY key"""  # noqa: S608  the only text that is put into it is our own
StateOf = Callable[[str | None], HolderState]

Position: TypeAlias = tuple[float, int]
"""Value of the order and number of the last run of a page."""


@contextmanager
def moment(db: apsw.Connection, what: str) -> Iterator[apsw.Cursor]:
    """Read the state of one moment. Raises Corrupt for values that cannot have been written."""
    with decoding(what), transaction(db) as cursor:
        yield cursor


def head(db: apsw.Connection, run_id: str, state_of: StateOf) -> RunHead:
    """Return the head of a run. Raises RunUnknown or Corrupt."""
    with moment(db, f"run {run_id!r}: its row") as cursor:
        return known(cursor, run_id).summary(state_of)


def load(db: apsw.Connection, run_id: str, since: int, state_of: StateOf) -> Sequence[Record]:
    """Return the records from `since` on, with the whole chain verified. Raises RunUnknown, Corrupt or TooNew."""
    with moment(db, f"run {run_id!r}: a record") as cursor:
        row = known(cursor, run_id)
        return _records(cursor, row, row.summary(state_of), since)


def whole(db: apsw.Connection, run_id: str, state_of: StateOf) -> tuple[RunHead, list[Record]]:
    """Return a run of one moment, with its row, chain and requests verified. Raises RunUnknown, Corrupt or TooNew."""
    with moment(db, f"run {run_id!r}: a record") as cursor:
        row = known(cursor, run_id)
        found = row.summary(state_of)
        records = list(_records(cursor, row, found))
        _requests(cursor, row)
    return found, records


def _records(cursor: apsw.Cursor, row: RunRow, head: RunHead, since: int = 0) -> Sequence[Record]:
    found = cursor.execute(_ROWS, span(row.id))
    return records_of(row.run_id, found, head, row.last_hash, since)


def newest(db: apsw.Connection, conversation_id: str, state_of: StateOf) -> RunHead | None:
    """Return the newest run of a conversation, or None. Raises Corrupt."""
    with moment(db, f"conversation {conversation_id!r}: a run's row") as cursor:
        row = newest_row(cursor, conversation_id)
        return None if row is None else row.summary(state_of)


def page(
    db: apsw.Connection, query: RunQuery, before: Position | None, state_of: StateOf
) -> tuple[list[RunHead], list[Corrupt], Position | None]:
    """Return a page of a listing, the damaged runs in it, and the position before the next page.

    `before` is the position after the page before. Raises RunUnknown for an unknown run in `after`.
    """
    heads: list[RunHead] = []
    bad: list[Corrupt] = []
    with moment(db, "the list of runs") as cursor:
        if query.after is not None:
            known(cursor, query.after)
        rows: list[tuple[Any, ...]] = selected_rows(cursor, query, before)
        for raw in rows:
            try:
                heads.append(proved(raw[:-1]).summary(state_of))
            except Corrupt as error:
                bad.append(error)
    return heads, bad, (rows[-1][-1], rows[-1][0]) if len(rows) == query.page else None


_EXCERPT = f"""SELECT kind, body FROM (
    SELECT key, kind, body FROM (SELECT * FROM record WHERE key BETWEEN ?1 AND ?2 ORDER BY key LIMIT 1) UNION
    SELECT key, kind, body FROM (SELECT * FROM record WHERE key BETWEEN ?1 AND ?2 ORDER BY key DESC LIMIT {EXCERPT})
    ) WHERE length(body) <= {EXCERPT_BYTES} ORDER BY key"""  # noqa: S608  only our own text


def excerpts(db: apsw.Connection, run_ids: Sequence[str]) -> dict[str, list[Draft]]:
    """Return the records of the first append and of the last EXCERPT appends of several runs, unverified."""
    rows: list[tuple[str, str, bytes]] = []
    with moment(db, "the list of runs") as cursor:
        for run_id in run_ids:
            number = cursor.execute("SELECT id FROM run WHERE run_id=?", (run_id,)).get
            if number is not None:
                rows += [
                    (run_id, str(kinds), bytes(body))
                    for kinds, body in cursor.execute(_EXCERPT, span(number))
                ]
    return excerpts_of(rows)


def count(db: apsw.Connection, query: RunQuery) -> RunCounts:
    """Return the counts of the runs that meet the conditions. The rows are not verified."""
    where, values = query.where_counted("?")
    with moment(db, "the list of runs") as cursor:
        row = cursor.execute(f"SELECT {COUNTS} FROM run WHERE {where}", values).fetchone()  # noqa: S608
        return counted(row or ())


def names(db: apsw.Connection) -> list[tuple[str, str]]:
    """Return each pair of a machine and an agent. The rows are not verified."""
    with moment(db, "the list of runs") as cursor:
        return sorted((str(graph), str(agent)) for graph, agent in cursor.execute(NAMES))


def agents(db: apsw.Connection, query: RunQuery, *, by_version: bool) -> list[AgentStatistics]:
    """Return the statistics of agents. The rows are not verified."""
    with moment(db, "the list of runs") as cursor:
        rows = cursor.execute(*query.agents("?", by_version=by_version)).fetchall()
        several = have_several_currencies(rows)  # another pass over the rows, which few journals need
        return agents_of_rows(
            rows, cursor.execute(*query.costs("?", by_version=by_version)) if several else ()
        )


def version(db: apsw.Connection) -> str:
    """Return SQLite's own number, which changes with each commit of another connection."""
    return str(db.pragma("data_version"))


def inbox(db: apsw.Connection, run_id: str, since: int) -> list[Posted]:
    """Return the requests posted after number `since`. Raises RunUnknown or Corrupt."""
    with moment(db, f"run {run_id!r}: a request") as cursor:
        return _requests(cursor, known(cursor, run_id), since)


def _requests(cursor: apsw.Cursor, run: RunRow, since: int = 0) -> list[Posted]:
    first, last = span(run.id)
    rows = cursor.execute(
        "SELECT key, id, kind, body, by, at, sum FROM request WHERE key BETWEEN ? AND ? ORDER BY key",
        (first + since + 1, last),
    )
    found = [_posted(run.run_id, row) for row in rows]
    if [request.number for request in found] != list(range(since + 1, run.requests + 1)):
        raise Corrupt(f"run {run.run_id!r}: {run.requests} requests were posted, and some are missing")
    return found


def news(db: apsw.Connection, since: int) -> tuple[int, list[str]]:
    """Return the runs with requests after position `since`, by their last ones, and the current position."""
    with moment(db, "the news") as cursor:
        # Not the last row's position: that row may have been removed with its run.
        position = cursor.execute("SELECT seq FROM sqlite_sequence WHERE name='news'").get or 0
        if not 0 <= since < position:
            return position, []
        found = cursor.execute(
            "SELECT run_id FROM news JOIN run ON id=run WHERE position>? ORDER BY position", (since,)
        )
        return position, [str(run_id) for (run_id,) in found]


def _posted(run_id: str, row: tuple[Any, ...]) -> Posted:
    key, name, kind, body, by, at, total = row
    number = key & LAST
    if request_sum(run_id, number, name, kind, body, by, at) != total:
        raise Corrupt(f"run {run_id!r}: request {number} is damaged")
    return Posted(name, kind, orjson.loads(body), by, at, number)


_BUSY = 1.0
"""Seconds to wait for a lock. A reader of a log waits for nobody but a process that recovers it."""
_DIGITS = 8
"""Hexadecimal digits of the identity that tell journals apart."""
_COUNTS = f"""SELECT graph, agent, status, reason, holder, count(*), min(updated_at) FROM run
    WHERE status <> 'ended' AND graph <> '{ENGINE}' GROUP BY graph, agent, status, reason, holder"""  # noqa: S608


def head_counts(path: Path) -> HeadCounts:
    """Count the runs of a file; a file that does not exist yet has none. Raises StoreDown, Corrupt or TooNew.

    The identity is that of the file itself (see `high_water`), so it is the same below every path and on every host.
    """
    path = path.resolve()
    if not path.exists() or path.stat().st_size == 0:
        return HeadCounts("")
    presence = SqlitePresence(beside(path, "-owners"))
    db = connect_to_read(path, busy=_BUSY)
    try:
        with moment(db, "the list of runs") as cursor:
            usage = high_water.usage(cursor)
            found: list[tuple[Any, ...]] = cursor.execute(_COUNTS).fetchall()
    finally:
        high_water.close_connection(db)
    lives = {holder: presence.alive(holder) for holder in {row[4] for row in found}}
    rows = (
        HeadRow(machine, agent, status, reason, lives[holder], runs, oldest)
        for machine, agent, status, reason, holder, runs, oldest in found
    )
    return HeadCounts(usage.identity.hex()[:_DIGITS] if usage else "", merged_counts(rows))
