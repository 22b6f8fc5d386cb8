from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.kernel.journal import Journal
from orchestrator.testing.journal_contract import JournalContract
from tests.postgres import Cluster


class OnAServer(JournalContract):
    """Each test has a schema of its own, named after its folder, in one database."""

    dsn: str

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def on_a_database(cls, postgres: Cluster) -> None:
        cls.dsn = postgres.database()

    def journal(self, folder: Path, *, queue: int = 1000) -> PostgresJournal:
        return PostgresJournal(self.dsn, schema=folder.name, queue=queue)


class TestPostgresJournal(OnAServer):
    def store(self, folder: Path) -> Journal:
        return self.journal(folder)


class TestPostgresJournalWithRoomForTwo(OnAServer):
    def store(self, folder: Path) -> Journal:
        return self.journal(folder, queue=2)


@pytest.mark.campaign  # make test has that store around SQLite, and a server without it
class TestCrashingJournalOnAServerThatNeverCrashes(OnAServer):
    def store(self, folder: Path) -> Journal:
        return CrashingJournal(self.journal(folder))
