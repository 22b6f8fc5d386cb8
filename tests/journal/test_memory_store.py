from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import RunUnknown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.testing.journal_contract import ENDED, NOTE, PARKED, JournalContract, ended


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


async def listed(journal: MemoryJournal) -> list[str]:
    return [head.run_id async for head in journal.runs()]


async def test_a_retired_run_can_be_loaded_and_claimed_until_as_many_more_were_over() -> None:
    journal = MemoryJournal(ended=2)
    lease = await journal.create("left", "me", {"conversation_id": "talk"})
    journal.append(lease, [NOTE])
    await journal.post("left", Posted("a", "pause"))
    journal.retire("left")
    await ended(journal, "run 0")
    assert (len(await journal.load("left")), (await journal.head("left")).owner) == (2, None)
    assert await journal.news(0) == (1, ["left"])
    await ended(journal, "run 1")
    assert await listed(journal) == ["run 0", "run 1"]
    assert await journal.news(0) == (1, [])
    newest = await journal.newest("talk")
    assert newest is not None
    assert newest.run_id == "run 1"
    with pytest.raises(RunUnknown):
        await journal.claim("left", "me")


async def test_a_retired_run_that_is_claimed_is_kept() -> None:
    journal = MemoryJournal(ended=1)
    lease = await journal.create("left", "me", {})
    journal.append(lease, [PARKED])
    journal.retire("left")
    lease = await journal.claim("left", "you")
    for number in range(3):
        await ended(journal, f"run {number}")
    assert await listed(journal) == ["left", "run 2"]
    journal.append(lease, [NOTE])
    await journal.release(lease)
    await ended(journal, "run 3")
    assert await listed(journal) == ["left", "run 3"]


async def test_retiring_forgets_no_more_than_it_has_to() -> None:
    journal = MemoryJournal(ended=2)
    for number in range(3):
        await journal.create(f"run {number}", "me", {})
    for run_id in ("run 0", "run 1", "run 1", "run 0", "unknown"):
        journal.retire(run_id)
    assert await listed(journal) == ["run 0", "run 1", "run 2"]
    journal.retire("run 2")
    assert await listed(journal) == ["run 1", "run 2"]


async def test_an_ended_run_that_was_only_claimed_goes_as_others_do() -> None:
    journal = MemoryJournal(ended=1)
    await ended(journal, "again")
    lease = await journal.claim("again", "me")
    await ended(journal, "other")
    assert await listed(journal) == ["again", "other"]
    await journal.release(lease)
    assert await listed(journal) == ["again"]
    lease = await journal.claim("again", "me")
    journal.append(lease, [NOTE, ENDED])
    await ended(journal, "third")
    assert await listed(journal) == ["third"]


async def test_nothing_of_a_run_that_went_is_left() -> None:
    journal = MemoryJournal(ended=0)
    lease = await journal.create("run", "me", {"conversation_id": "talk"})
    await journal.post("run", Posted("a", "pause"))
    journal.append(lease, [ENDED])
    assert await listed(journal) == []
    assert not any((journal._runs, journal._over, journal._talks, journal._news, journal._blobs))


async def test_every_record_of_an_open_run_is_kept() -> None:
    journal = MemoryJournal()
    lease = await journal.create("run", "me", {})
    for _ in range(20_000):
        journal.append(lease, [NOTE])
    assert len(await journal.load("run")) == 20_001
