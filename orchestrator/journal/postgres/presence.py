"""Decide which owners live, by the clock and the locks of the database, never by the clock of a worker.

Each open journal that owns runs is a *holder*: a row with the time of its last heartbeat, and an advisory lock that
its connection holds. A killed process loses the lock at once; a frozen one keeps it and sends no heartbeat. So a
holder is dead after `ttl` seconds without a heartbeat, or after the shorter `grace` if its lock is free. The grace
gives a holder time to replace a lost connection.

After a start of the server, no holder is dead before it had the time to return. If the server's clock is set back,
times that it wrote before lie in its future: only the lock shows then whether a holder lives, until its next heartbeat.
A wrong suspicion costs a repeated step: the epoch fences the next append of a living holder that was taken for dead,
independent of this module.
"""

# ruff: noqa: S608  the only text that is put into statements is our own

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any, Final

import psycopg

BEATS: Final = 4
"""Minimum heartbeats in the time after which a holder counts as frozen."""
SLOWEST_BEAT: Final = 1.0
"""Maximum seconds between two heartbeats."""
GRACE: Final = 2.5
"""Grace of a holder that lost its connection, in heartbeat intervals."""

_LOCKED: Final = """EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.classid::bigint = (h.token >> 32) AND l.objid::bigint = (h.token & 4294967295))"""
_STARTED: Final = (
    "CASE WHEN pg_postmaster_start_time() <= clock_timestamp() THEN pg_postmaster_start_time() END"
)
_SINCE: Final = f"greatest(h.seen, {_STARTED})"

LIVING: Final = f"""(abs(extract(epoch FROM clock_timestamp() - {_SINCE})) < h.grace
    OR (clock_timestamp() < {_SINCE} + h.ttl * interval '1 second' AND {_LOCKED}))"""
"""Whether holder `h` lives."""
LOCKED: Final = _LOCKED
"""Whether holder `h` has a connection."""

_BEAT: Final = """INSERT INTO holder(token, name, seen, ttl, grace) VALUES (%s, %s, clock_timestamp(), %s, %s)
    ON CONFLICT (token) DO UPDATE SET seen = excluded.seen"""
_LOCK: Final = "SELECT pg_try_advisory_lock(%s)"
_IN_TURN: Final = "SELECT FROM run WHERE run_id = %s FOR UPDATE"
"""A claim whose connection was lost may still wait for the row: it gets the row before this statement."""
_BACK: Final = """UPDATE run SET owner = NULL, holder = NULL
    WHERE run_id = %s AND epoch = %s AND owner = %s AND holder = %s"""
_FORGET: Final = (
    """DELETE FROM holder WHERE seen < clock_timestamp() - interval '1 day' - ttl * interval '1 second'"""
)
"""The row of a holder that died long ago carries no more information than its absence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """An open journal that owns runs, or may own some."""

    token: int
    name: str
    """The name passed to PostgresJournal; several holders may share it."""
    alive: bool
    age: float
    """Seconds since its last heartbeat."""
    runs: int
    """Number of runs that it holds."""


class PostgresPresence:
    """This journal as a holder. Only the writer's thread uses it; `token` and `begun` never change back."""

    def __init__(self, name: str, ttl: float) -> None:
        self.token = secrets.randbits(63)
        self.begun = False
        self.beat = min(ttl / BEATS, SLOWEST_BEAT)
        self._name = name
        self._ttl = ttl
        self._locked = False
        self._due = 0.0
        self._doubtful: list[tuple[str, int, str]] = []
        """Run, epoch and owner of claims whose answers were lost and whose callers gave up."""

    def begin(self, db: psycopg.Connection[Any]) -> int:
        """Register as a holder; return the token for the rows of the runs."""
        if not self.begun:
            self._write(db)
            db.execute(_FORGET)
            self.begun = True
        return self.token

    def greet(self, db: psycopg.Connection[Any]) -> None:
        """Prepare a new connection: first release the runs that may be ours and have no driver.

        Otherwise they would stay held for the life of this process. A later release would be too late: the next claim
        of the run may get the same epoch.
        """
        self._locked = False
        if self.begun:
            self._write(db)
        for run_id, epoch, owner in self._doubtful:
            db.execute(_IN_TURN, (run_id,))
            db.execute(_BACK, (run_id, epoch, owner, self.token))
        self._doubtful.clear()

    def wait(self) -> float | None:
        """Return the seconds until the next heartbeat; None before this journal is a holder."""
        return max(0.0, self._due - time.monotonic()) if self.begun else None

    def write(self, db: psycopg.Connection[Any]) -> None:
        """Write a heartbeat."""
        self._write(db)

    def postpone(self) -> None:
        """Schedule the next heartbeat one interval from now, whatever the outcome of this one."""
        self._due = time.monotonic() + self.beat

    def doubt(self, run_id: str, epoch: int, owner: str) -> None:
        """Record a run that may be ours without its caller's knowledge. Only while there is no connection."""
        self._doubtful.append((run_id, epoch, owner))

    def end(self, db: psycopg.Connection[Any]) -> None:
        """Unregister: all runs of this journal may be claimed."""
        if self.begun:
            db.execute("DELETE FROM holder WHERE token = %s", (self.token,))

    def _write(self, db: psycopg.Connection[Any]) -> None:
        self.postpone()
        if not self._locked:
            # Try without waiting: the server may not have noticed yet that the previous connection is lost.
            row = db.execute(_LOCK, (self.token,)).fetchone()
            self._locked = bool(row and row[0])
        db.execute(_BEAT, (self.token, self._name, self._ttl, GRACE * self.beat))


def holders(db: psycopg.Connection[Any]) -> list[Holder]:
    """Return every known holder, including those that died within the last day."""
    rows = db.execute(
        f"""SELECT h.token, h.name, {LIVING}, extract(epoch FROM clock_timestamp() - h.seen)::float8,
        (SELECT count(*) FROM run WHERE run.holder = h.token) FROM holder h ORDER BY h.name, h.token""".encode()
    )
    names = ("token", "name", "alive", "age", "runs")
    return [Holder(**dict(zip(names, row, strict=True))) for row in rows]
