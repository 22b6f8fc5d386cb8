"""Who is alive, told by the database: its clock and its locks, never by the clock of a worker.

Each open journal that owns runs is a *holder*: a row with the time of its last heartbeat, and an advisory lock that its
connection holds. A process that was killed loses the lock at once, a frozen one keeps it and stops beating; so a
holder is dead when it has not beaten for `ttl` seconds, or for the shorter `grace` while its lock is free. The grace
is for those whose connection was lost and who are about to make another.

After the server started nobody is dead before he had the time to come back. A wrong suspicion costs a repeated step:
whoever is taken for dead and lives is fenced by the epoch in his next append, on which nothing here has any bearing.
"""

# ruff: noqa: S608  the only text that is put into statements is our own

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any, Final

import psycopg

BEATS: Final = 4
"""Heartbeats in the time after which somebody is taken for frozen, at least."""
SLOWEST_BEAT: Final = 1.0
"""Seconds between two."""
GRACE: Final = 2.5
"""Of such intervals, for whoever lost the connection."""

_LOCKED: Final = """EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.classid::bigint = (h.token >> 32) AND l.objid::bigint = (h.token & 4294967295))"""
_SINCE: Final = "greatest(h.seen, pg_postmaster_start_time())"

LIVING: Final = f"""(clock_timestamp() < {_SINCE} + h.grace * interval '1 second'
    OR (clock_timestamp() < {_SINCE} + h.ttl * interval '1 second' AND {_LOCKED}))"""
"""Whether holder `h` lives."""
LOCKED: Final = _LOCKED
"""Whether holder `h` has a connection."""

_BEAT: Final = """INSERT INTO holder(token, name, seen, ttl, grace) VALUES (%s, %s, clock_timestamp(), %s, %s)
    ON CONFLICT (token) DO UPDATE SET seen = excluded.seen"""
_LOCK: Final = "SELECT pg_try_advisory_lock(%s)"
_IN_TURN: Final = "SELECT FROM run WHERE run_id = %s FOR UPDATE"
"""A claim whose connection was lost may wait for the row still: it gets it before this does."""
_BACK: Final = """UPDATE run SET owner = NULL, holder = NULL
    WHERE run_id = %s AND epoch = %s AND owner = %s AND holder = %s"""
_FORGET: Final = (
    """DELETE FROM holder WHERE seen < clock_timestamp() - interval '1 day' - ttl * interval '1 second'"""
)
"""Of those who are dead for long the row says nothing that its absence does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """An open journal that owns runs, or may."""

    token: int
    name: str
    """As it was given to PostgresJournal; several may have one name."""
    alive: bool
    age: float
    """Seconds since its last heartbeat."""
    runs: int
    """How many runs it holds."""


class PostgresPresence:
    """This journal as a holder. All of it belongs to the writer's thread; `token` and `begun` never change back."""

    def __init__(self, name: str, ttl: float) -> None:
        self.token = secrets.randbits(63)
        self.begun = False
        self.beat = min(ttl / BEATS, SLOWEST_BEAT)
        self._name = name
        self._ttl = ttl
        self._locked = False
        self._due = 0.0
        self._doubtful: list[tuple[str, int, str]] = []
        """Run, epoch and owner of claims whose answers got lost, and whoever made them gave them up."""

    def begin(self, db: psycopg.Connection[Any]) -> int:
        """Be a holder from now on; return the token that stands in the rows of the runs."""
        if not self.begun:
            self._write(db)
            db.execute(_FORGET)
            self.begun = True
        return self.token

    def greet(self, db: psycopg.Connection[Any]) -> None:
        """Take a new connection. Before all else what may be ours and nobody carries is given back.

        Else it would be held for as long as this process lives. Later would be too late: whoever claims the run again
        may get the very epoch that is given back.
        """
        self._locked = False
        if self.begun:
            self._write(db)
        for run_id, epoch, owner in self._doubtful:
            db.execute(_IN_TURN, (run_id,))
            db.execute(_BACK, (run_id, epoch, owner, self.token))
        self._doubtful.clear()

    def wait(self) -> float | None:
        """Return in how many seconds a heartbeat is due; None where there is nobody to be heard of."""
        return max(0.0, self._due - time.monotonic()) if self.begun else None

    def write(self, db: psycopg.Connection[Any]) -> None:
        """Beat."""
        self._write(db)

    def postpone(self) -> None:
        """Let the next heartbeat be due a beat from now, whatever became of this one."""
        self._due = time.monotonic() + self.beat

    def doubt(self, run_id: str, epoch: int, owner: str) -> None:
        """Note a run that may be ours though nobody here knows. Only while there is no connection."""
        self._doubtful.append((run_id, epoch, owner))

    def end(self, db: psycopg.Connection[Any]) -> None:
        """Be no holder any more: whatever this journal owned may be claimed."""
        if self.begun:
            db.execute("DELETE FROM holder WHERE token = %s", (self.token,))

    def _write(self, db: psycopg.Connection[Any]) -> None:
        self.postpone()
        if not self._locked:
            # Not waited for: the server may not have noticed yet that the connection before this one is gone.
            row = db.execute(_LOCK, (self.token,)).fetchone()
            self._locked = bool(row and row[0])
        db.execute(_BEAT, (self.token, self._name, self._ttl, GRACE * self.beat))


def holders(db: psycopg.Connection[Any]) -> list[Holder]:
    """Return every holder that is known, those that died within the last day included."""
    rows = db.execute(
        f"""SELECT h.token, h.name, {LIVING}, extract(epoch FROM clock_timestamp() - h.seen)::float8,
        (SELECT count(*) FROM run WHERE run.holder = h.token) FROM holder h ORDER BY h.name, h.token""".encode()
    )
    names = ("token", "name", "alive", "age", "runs")
    return [Holder(**dict(zip(names, row, strict=True))) for row in rows]
