from __future__ import annotations

from pathlib import Path

from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.testing.journal_contract import JournalContract


class TestSqliteJournal(JournalContract):
    def store(self, folder: Path) -> Journal:
        return SqliteJournal(folder / "journal.db")


class TestSqliteJournalWithRoomForTwo(JournalContract):
    def store(self, folder: Path) -> Journal:
        return SqliteJournal(folder / "journal.db", queue=2)


class TestCrashingJournalThatNeverCrashes(JournalContract):
    def store(self, folder: Path) -> Journal:
        return CrashingJournal(SqliteJournal(folder / "journal.db"))
