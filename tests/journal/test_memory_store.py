from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import RunUnknown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import Journal
from orchestrator.testing.journal_case import ENDED, NOTE, ended
from orchestrator.testing.journal_contract import JournalContract


class TestMemoryJournal(JournalContract):
    def setup_method(self) -> None:
        self.made = MemoryJournal()

    def store(self, folder: Path) -> Journal:
        return self.made

    async def die(self, journal: Journal, owner: str) -> None:
        self.made.bury(owner)


def test_an_append_is_done_when_it_returns() -> None:
    assert MemoryJournal.append.__annotations__["return"] == "None"


async def test_only_the_last_runs_that_ended_are_kept() -> None:
    journal = MemoryJournal(ended=2)
    running = await journal.create("running", "me", {})
    for number in range(5):
        await ended(journal, f"run {number}")
    journal.append(running, [NOTE])
    assert [head.run_id async for head in journal.runs()] == ["running", "run 3", "run 4"]
    with pytest.raises(RunUnknown):
        await journal.load("run 0")


async def test_a_run_that_goes_on_after_its_end_is_kept() -> None:
    journal = MemoryJournal(ended=1)
    await ended(journal, "again")
    lease = await journal.claim("again", "me")
    journal.append(lease, [NOTE])
    await ended(journal, "other")
    assert len(await journal.load("again")) == 3
    journal.append(lease, [ENDED])
    assert [head.run_id async for head in journal.runs()] == ["again"]


async def test_every_record_of_an_open_run_is_kept() -> None:
    journal = MemoryJournal()
    lease = await journal.create("run", "me", {})
    for _ in range(20_000):
        journal.append(lease, [NOTE])
    assert len(await journal.load("run")) == 20_001
