"""An open journal: two sessions, the writer, the holder that says we live; and how it is let go of."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from orchestrator.errors import StoreDown
from orchestrator.journal.address import JournalAddress
from orchestrator.journal.postgres.error_mapping import POOL
from orchestrator.journal.postgres.presence import PostgresPresence
from orchestrator.journal.postgres.session import Db, PostgresSession, pooled, process
from orchestrator.journal.postgres.writer import PostgresWriter

T = TypeVar("T")


class PostgresHandle:
    """Everything that is open. Constructing opens it, or raises; `given_up`, once set, ends waiting for a server."""

    def __init__(
        self,
        address: JournalAddress,
        *,
        tables: str,
        name: str,
        ttl: float,
        patience: float,
        opening: float,
        queue: int,
        create: bool,
        only_reads: bool,
        given_up: threading.Event,
    ) -> None:
        self.pid = os.getpid()
        self.presence = PostgresPresence(name, ttl)
        self._reader = PostgresSession(
            address, tables=tables, patience=patience, create=create, only_reads=only_reads
        )
        self._reader.stopping = given_up
        self._reader.run(lambda _: None, opening)
        self._session = PostgresSession(address, tables=tables, patience=patience, greet=self.presence.greet)
        self._session.stopping = given_up
        self.writer = PostgresWriter(self._session, self.presence, limit=queue, name=str(address))
        try:
            self._refuse_shared(address)
            if not only_reads:
                self._session.run(self.presence.begin if name else lambda _: None)
        except BaseException:
            self._session.close()
            self._reader.close()
            raise
        # It is open: who gives up from now on does so too late, and is not to have others wait no more.
        self._reader.stopping, self._session.stopping = threading.Event(), threading.Event()
        self.writer.start()

    def _refuse_shared(self, address: JournalAddress) -> None:
        """Raise StoreDown where a pool is between that lets our two connections be one session of the server.

        A pool tells of a process of its own making, the server of its own. One that keeps a session for each client
        will do; of the others one is noticed here unless all its sessions are in use, and by their first error then.
        """
        if self._reader.run(pooled) and self._session.run(process) == self._reader.run(process):
            raise StoreDown(f"journal {address} {POOL}")

    def read(self, work: Callable[[Db], T]) -> T:
        """Read something. In the thread of the readers."""
        return self._reader.run(work)

    def hurry_until(self, then: float) -> None:
        """Wait for no server that is away until then (monotonic)."""
        self._reader.hurried_until = self._session.hurried_until = then

    def hurry(self) -> None:
        """Wait for no server any more: somebody wants to close."""
        self._reader.stopping.set()
        self._session.stopping.set()

    def close(self) -> None:
        """Write what is queued, then let go of everything. Twice is once; in a forked child it is not ours."""
        if self.pid != os.getpid():
            self.abandon()
            return
        self.hurry()
        self.writer.stop()
        self._reader.close()

    def abandon(self) -> None:
        """Forget everything without touching it."""
        self._session.abandon()
        self._reader.abandon()
