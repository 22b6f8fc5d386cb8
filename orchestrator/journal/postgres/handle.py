"""An open journal: two sessions, the writer, the holder that proves the process lives, and their release."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from orchestrator.errors import StoreDown
from orchestrator.journal.address import JournalAddress
from orchestrator.journal.postgres.presence import PostgresPresence
from orchestrator.journal.postgres.session import POOL, Db, PostgresSession, pooled, process
from orchestrator.journal.postgres.writer import PostgresWriter

T = TypeVar("T")


class PostgresHandle:
    """All open resources. The constructor opens them or raises; `given_up`, once set, ends the wait for a server."""

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
        self._session = PostgresSession(
            address, tables=tables, patience=patience, only_reads=only_reads, greet=self.presence.greet
        )
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
        # Open now: a caller that gives up from here on is too late, and must not stop the waits of others.
        self._reader.stopping, self._session.stopping = threading.Event(), threading.Event()
        self.writer.start()

    def _refuse_shared(self, address: JournalAddress) -> None:
        """Raise StoreDown if a pool between us and the server lets our two connections share one session.

        A pool reports a process number of its own, the server another. A pool that keeps a session for each client is
        accepted. Another kind of pool is noticed here unless all its sessions are in use; then its first error
        reveals it.
        """
        if self._reader.run(pooled) and self._session.run(process) == self._reader.run(process):
            raise StoreDown(f"journal {address} {POOL}")

    def read(self, work: Callable[[Db], T]) -> T:
        """Read something, in the thread of the readers."""
        return self._reader.run(work)

    def hurry_until(self, then: float) -> None:
        """Do not wait for an unreachable server until `then` (monotonic seconds)."""
        self._reader.hurried_until = self._session.hurried_until = then

    def hurry(self) -> None:
        """Do not wait for a server any more, because the journal is being closed."""
        self._reader.stopping.set()
        self._session.stopping.set()

    def close(self) -> None:
        """Write the queued jobs, then release everything.

        A second call has no effect. In a forked child the resources belong to the parent.
        """
        if self.pid != os.getpid():
            self.abandon()
            return
        self.hurry()
        self.writer.stop()
        self._reader.close()

    def abandon(self) -> None:
        """Drop everything without touching it."""
        self._session.abandon()
        self._reader.abandon()
