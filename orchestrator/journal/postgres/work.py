"""The other jobs of the writer's thread, one class for each kind. Each may run twice with the same result.

`sent` is set before a statement whose outcome may be lost with the connection: if it is set, the job first looks up
the outcome.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors

from orchestrator.errors import Held, RunExists, RunUnknown
from orchestrator.journal.codec import chained, encoded
from orchestrator.journal.head_change import NOTHING, OPEN, Fixed, head_change
from orchestrator.journal.postgres import statement
from orchestrator.journal.postgres.presence import PostgresPresence
from orchestrator.journal.writer_thread import DeferredWork
from orchestrator.kernel.journal import NO_HASH, Lease, Posted

Db: TypeAlias = psycopg.Connection[Any]
_OWNED: Final = statement.OWNED.encode()


@dataclass(slots=True)
class PostgresCreate:
    """PostgresCreate a run."""

    run_id: str
    owner: str
    body: Mapping[str, Any]
    presence: PostgresPresence
    line: bytes = field(init=False)
    sent: bool = False

    def __post_init__(self) -> None:
        self.line = encoded("created", self.body)

    def __call__(self, db: Db) -> Lease:
        body, holder = self.body, self.presence.begin(db)
        head = chained(NO_HASH, self.run_id, 0, 1, "created", self.line)
        resent, self.sent = self.sent, True
        change = head_change([("created", body)])
        tags: Mapping[str, str] = body.get("tags") or {}
        row = (
            *Fixed.of(self.run_id, body, time.time()),
            bytes.fromhex(head),
            OPEN,
            self.owner,
            holder,
            *(change.usage or (None, None)),
            *(change.children or NOTHING),
            list(tags.keys()),
            list(tags.values()),
            self.line,
            bytes.fromhex(head),
        )
        made = db.execute(statement.CREATE, row, prepare=True).fetchone()
        if made is None and not (resent and self._is_ours(db, head, holder)):
            raise RunExists(self.run_id)
        return Lease(self.run_id, self.owner, 1, 0, head)

    def doubt(self) -> None:
        """Record that no caller will ask for the outcome."""
        if self.sent:
            self.presence.doubt(self.run_id, 1, self.owner)

    def _is_ours(self, db: Db, head: str, holder: int) -> bool:
        row = db.execute(_OWNED, (self.run_id,)).fetchone()
        return row is not None and row[:5] == (1, 0, bytes.fromhex(head), self.owner, holder)


@dataclass(slots=True)
class PostgresClaim:
    """PostgresClaim a run. Returns None if its holder has just lost its connection; then retry soon."""

    run_id: str
    owner: str
    presence: PostgresPresence
    steal: bool
    sent: int = -1
    """The requested epoch, once it was requested."""

    def __call__(self, db: Db) -> Lease | None:
        mine = self.presence.begin(db)
        while True:
            row = db.execute(_OWNED, (self.run_id,), prepare=True).fetchone()
            if row is None:
                raise RunUnknown(self.run_id)
            epoch, seq, head, owner, holder, alive, locked, _ = row
            ours = (owner, holder) == (self.owner, mine)
            if ours and epoch == self.sent:
                return Lease(self.run_id, self.owner, epoch, seq, head.hex())
            if alive and not ours and not self.steal:
                if not locked:
                    return None
                raise Held(self.run_id, str(owner))
            self.sent = epoch + 1
            values = (self.owner, mine, self.run_id, epoch, holder)
            taken = db.execute(statement.CLAIM, values, prepare=True).fetchone()
            if taken is not None:
                return Lease(self.run_id, self.owner, taken[0], taken[1], taken[2].hex())

    def doubt(self) -> None:
        """Record that no caller will ask for the outcome."""
        if self.sent >= 0:
            self.presence.doubt(self.run_id, self.sent, self.owner)


@dataclass(slots=True)
class PostgresPost:
    """PostgresPost a request to a run. It needs no lease: the run's row orders the posts."""

    run_id: str
    request: Posted
    values: tuple[Any, ...] = field(init=False)
    sent: bool = False

    def __post_init__(self) -> None:
        request = self.request
        body = encoded(request.kind, request.body)
        self.values = (request.id, request.kind, body, request.by, request.at or time.time())

    def __call__(self, db: Db) -> bool:
        resent, self.sent = self.sent, True
        try:
            row = db.execute(statement.POST, (self.run_id, self.request.id, *self.values)).fetchone()
        except errors.UniqueViolation:  # another request with this id came first, at the same moment
            row = None
        if row is not None:
            return True
        there = db.execute(statement.POSTED, (self.request.id, self.run_id)).fetchone()
        if there is None:
            raise RunUnknown(self.run_id)
        return resent and there == self.values[1:]


@dataclass(slots=True)
class PostgresRelease(DeferredWork):
    """PostgresRelease a run; a lease that is out of date changes nothing."""

    lease: Lease

    def __call__(self, db: Db) -> None:
        db.execute(statement.RELEASE, (self.lease.run_id, self.lease.epoch), prepare=True)


@dataclass(slots=True)
class PostgresPrune:
    """Remove ended runs that meet every condition, up to `most` at once; return their number."""

    older_than: float | None
    keep_last: int
    most: int = 100

    def __call__(self, db: Db) -> int:
        values = (self.older_than, self.older_than, self.keep_last, self.most)
        return _drop(db, db.execute(statement.PRUNABLE.encode(), values).fetchall())


@dataclass(slots=True)
class PostgresRemove:
    """PostgresRemove one run in any state, unless it is held."""

    run_id: str
    sent: bool = False

    def __call__(self, db: Db) -> None:
        while True:
            row = db.execute(_OWNED, (self.run_id,)).fetchone()
            if row is None and self.sent:
                return
            if row is None:
                raise RunUnknown(self.run_id)
            epoch, seq, _, owner, _, alive, _, number = row
            if alive:
                raise Held(self.run_id, str(owner))
            self.sent = True
            if _drop(db, [(number, epoch, seq)]):
                return


def _drop(db: Db, chosen: list[Any]) -> int:
    """Remove runs, (id, epoch, seq) each, that have not moved since, and blobs that no run names any more."""
    if not chosen:
        return 0
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (statement.BLOBS,))
        columns: list[list[int]] = [list(column) for column in zip(*chosen, strict=True)]
        row = db.execute(statement.DROP, columns).fetchone()
        db.execute(statement.UNNAMED)
    return int(row[0]) if row else 0
