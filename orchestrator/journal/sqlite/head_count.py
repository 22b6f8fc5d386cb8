"""Count the runs that have not ended, in the thread of the caller, on a separate connection.

It reads the row of every run. An index of those that have not ended would make each append write one page more, because
an append sets the status.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.journal.sqlite import proof
from orchestrator.journal.sqlite.owner import SqlitePresence
from orchestrator.journal.sqlite.place import beside
from orchestrator.journal.sqlite.read import moment
from orchestrator.journal.sqlite.reading import connect_to_read
from orchestrator.kernel.head_count import HeadCounts, HeadRow, merged_counts
from orchestrator.kernel.journal import ENGINE

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
            usage = proof.usage(cursor)
            found: list[tuple[Any, ...]] = cursor.execute(_COUNTS).fetchall()
    finally:
        proof.close(db)
    lives = {holder: presence.alive(holder) for holder in {row[4] for row in found}}
    rows = (
        HeadRow(machine, agent, status, reason, lives[holder], runs, oldest)
        for machine, agent, status, reason, holder, runs, oldest in found
    )
    return HeadCounts(usage.identity.hex()[:_DIGITS] if usage else "", merged_counts(rows))
