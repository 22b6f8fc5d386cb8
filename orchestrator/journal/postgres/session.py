"""A connection that comes back: what is asked of it is asked again when it is lost, for as long as there is patience.

The work itself must bear being done twice: reading does, and each kind of writing knows how to find out whether it
landed (`work`). A server that restarts costs those who wait its seconds, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import errors

from orchestrator.address import Dsn
from orchestrator.errors import StoreDown
from orchestrator.journal.postgres import schema
from orchestrator.journal.postgres.trouble import AGAIN, explain, is_hopeless, is_lost, unreachable

T = TypeVar("T")
Db: TypeAlias = psycopg.Connection[Any]

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5
"""Seconds between two attempts to connect, after the second."""
ATTEMPTS: Final = 10
"""At one statement that others were in the way of."""

CLIENT: Final = {
    "connect_timeout": "10",
    "application_name": "orchestrator",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "4",
    "tcp_user_timeout": "15000",  # milliseconds: a host that is gone answers nothing, not even "no"
}
"""What the address does not say itself."""

_abandoned: list[object] = []
"""Connections of a parent, kept by a forked child: closing them would speak to the parent's server session."""


class Session:
    """One connection, for one thread at a time. `patience` is in seconds; `greet` is done with each new connection."""

    def __init__(
        self,
        address: Dsn,
        *,
        tables: str,
        patience: float,
        create: bool = False,
        only_reads: bool = False,
        greet: Callable[[Db], None] = lambda _: None,
    ) -> None:
        self.address = address
        self.tables = tables
        self.stopping = threading.Event()
        """Nobody waits for a server any more."""
        self.hurried_until = 0.0
        """Until when nobody does (monotonic)."""
        self._patience = patience
        self._create = create
        self._only_reads = only_reads
        self._greet = greet
        self._db: Db | None = None
        self._found = False
        """There was a connection ever: what is wrong with the address now may be so for a moment only."""
        self._parameters = self._read(address)

    @property
    def lost(self) -> bool:
        """There is no connection now: the next thing that is done is to greet a new one."""
        return self._db is None

    def run(self, work: Callable[[Db], T], patience: float | None = None) -> T:
        """Do some work, on a new connection if this one gets lost. Raises JournalError, and what the work raises."""
        end = time.monotonic() + (self._patience if patience is None else patience)
        pause, attempts = 0.0, 0  # most who lose a connection find the server there
        while True:
            try:
                return work(self._connected())
            except psycopg.Error as error:
                attempts += isinstance(error, AGAIN)
                if isinstance(error, AGAIN) and attempts < ATTEMPTS:
                    continue
                if not is_lost(error, self._db):
                    if isinstance(error, errors.ReadOnlySqlTransaction):
                        self._drop()  # after a failover the next connection leads to whoever took over
                    raise explain(error, self.address) from error
                self._drop()
                if (
                    (is_hopeless(error) and not self._found)
                    or time.monotonic() >= end
                    # Also in a hurry one whose connection is gone may try once.
                    or (pause and time.monotonic() < self.hurried_until)
                    or self.stopping.wait(pause)
                ):
                    raise unreachable(error, self.address) from error
                pause = min(max(pause * 2, FIRST_PAUSE), LONGEST_PAUSE)

    def close(self, last: Callable[[Db], None] = lambda _: None) -> None:
        """Do something last if there is a connection, and let go of it."""
        if self._db is not None:
            with contextlib.suppress(psycopg.Error):
                last(self._db)
        self._drop()

    def abandon(self) -> None:
        """Forget the connection without touching it: it is the parent's."""
        _abandoned.append(self._db)
        self._db = None

    def _connected(self) -> Db:
        if self._db is None:
            # Every row is written by a statement of its own: nothing but these is ever under way.
            db = psycopg.connect(**self._parameters, autocommit=True, prepare_threshold=2)
            try:
                if self._only_reads:
                    db.execute(b"SET default_transaction_read_only = on")
                schema.prepare(db, self.tables, str(self.address), create=self._create)
                self._greet(db)
            except BaseException:
                db.close()
                raise
            self._db, self._found = db, True
        return self._db

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                db.close()

    def _read(self, address: Dsn) -> dict[str, Any]:
        try:
            given = psycopg.conninfo.conninfo_to_dict(address.secret)
        except psycopg.Error:
            # Without what libpq says of it: that repeats parts of the text, and one of them may be the password.
            raise StoreDown(
                f"{address} is no address of a database that PostgreSQL's client understands"
            ) from None
        environment = "PGAPPNAME" in os.environ
        defaults = {
            name: value for name, value in CLIENT.items() if name != "application_name" or not environment
        }
        return {**defaults, **given}


def process(db: Db) -> int:
    """Return which process of the server answers."""
    row = db.execute(b"SELECT pg_backend_pid()").fetchone()
    return int(row[0]) if row else 0


def pooled(db: Db) -> bool:
    """Tell whether it is another one than we were told of as we connected: there is something between, then."""
    return process(db) != db.info.backend_pid
