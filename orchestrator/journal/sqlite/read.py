"""Read the journal, each call in its own transaction, so that a run's row and its records are of one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import apsw
import orjson

from orchestrator.errors import Corrupt
from orchestrator.journal.codec import Row, records_of
from orchestrator.journal.run_query import COUNTS, NAMES, RunQuery, counted
from orchestrator.journal.sqlite.owner import HolderState
from orchestrator.journal.sqlite.row import RunRow, decoding, known, newest_row, proved, selected_rows
from orchestrator.journal.sqlite.schema import LAST, transaction
from orchestrator.journal.sqlite.work import request_sum, span
from orchestrator.kernel.journal import Posted, Record, RunCounts, RunHead

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


def load(db: apsw.Connection, run_id: str, since: int, state_of: StateOf) -> list[Record]:
    """Return the records from `since` on, with the whole chain verified. Raises RunUnknown, Corrupt or TooNew."""
    with moment(db, f"run {run_id!r}: a record") as cursor:
        row = known(cursor, run_id)
        return _records(cursor, row, row.summary(state_of), since)


def whole(db: apsw.Connection, run_id: str, state_of: StateOf) -> tuple[RunHead, list[Record]]:
    """Return a run of one moment, with its row, chain and requests verified. Raises RunUnknown, Corrupt or TooNew."""
    with moment(db, f"run {run_id!r}: a record") as cursor:
        row = known(cursor, run_id)
        found = row.summary(state_of)
        records = _records(cursor, row, found)
        _requests(cursor, row)
    return found, records


def _records(cursor: apsw.Cursor, row: RunRow, head: RunHead, since: int = 0) -> list[Record]:
    found = cursor.execute(
        "SELECT key, epoch, kind, body, hash FROM record WHERE key BETWEEN ? AND ? ORDER BY key", span(row.id)
    )
    rows = [Row(key & LAST, epoch, kinds, body, digest.hex()) for key, epoch, kinds, body, digest in found]
    return records_of(row.run_id, rows, head, row.last_hash, since)


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
