"""The runs of a journal that have not ended, counted for metrics: alike in each store, thread and process."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Corrupt, StoreDown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, HeadCount, Lease, process_identity, write_records
from orchestrator.testing.journal_contract import BODY

Open = Callable[[], Any]


async def write(journal: Any, lease: Lease, kind: str, **body: object) -> None:
    await write_records(journal, lease, Draft(kind, body))


async def fill(journal: Any) -> None:
    """Record two running runs, three parked ones, an ended one, an engine, and one that nobody holds."""
    for name, agent in (
        ("a", "support"),
        ("b", "support"),
        ("c", ""),
        ("d", ""),
        ("e", ""),
        ("f", ""),
        ("g", ""),
    ):
        lease = await journal.create(name, "me", {**BODY, "graph": "llm_loop", "agent": agent})
        if name in "cde":
            await write(journal, lease, "parked", reason="paused" if name == "e" else "approval")
        if name == "f":
            await write(journal, lease, "ended", outcome="completed", reason="none")
        if name not in "ab":
            await journal.release(lease)
    await journal.create("engine", "me", {**BODY, "graph": "engine"})


EXPECTED = {
    ("llm_loop", "", "orphaned", ""): 1,
    ("llm_loop", "", "parked", "approval"): 2,
    ("llm_loop", "", "parked", "paused"): 1,
    ("llm_loop", "support", "running", ""): 2,
}


def numbers(counts: tuple[HeadCount, ...]) -> dict[tuple[str, str, str, str], int]:
    return {one[:4]: one.runs for one in counts}


@pytest.fixture(params=["sqlite", "postgres"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return a function that makes journals of one store, in a file or on a server."""
    database = request.getfixturevalue("database") if request.param == "postgres" else ""
    return lambda: PostgresJournal(database) if database else SqliteJournal(tmp_path / "journal.db")


async def test_each_process_counts_the_same_runs_of_a_store_and_its_owners_death_makes_orphans(
    made: Open,
) -> None:
    owner, other = made(), made()
    assert other.head_counts().counts == ()  # there is nothing yet, and nothing is created
    await fill(owner)
    found = other.head_counts()
    assert numbers(found.counts) == EXPECTED
    assert found == owner.head_counts()
    assert len(found.journal) == 8
    oldest = {one[:4]: one.oldest for one in found.counts}
    heads = [head async for head in owner.runs(status="parked", reason="approval")]
    assert oldest["llm_loop", "", "parked", "approval"] == min(head.updated_at for head in heads)
    await owner.close()
    assert numbers(other.head_counts().counts) == {
        **{key: runs for key, runs in EXPECTED.items() if key[2] != "running"},
        ("llm_loop", "support", "orphaned", ""): 2,
    }


async def test_a_count_needs_no_open_journal_and_works_in_any_thread(made: Open) -> None:
    owner, unopened = made(), made()
    await fill(owner)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(unopened.head_counts()))
    thread.start()
    thread.join()
    assert found == [owner.head_counts()]
    await owner.close()


async def test_a_journal_in_memory_is_counted_and_is_one_of_this_process() -> None:
    journal = MemoryJournal()
    await fill(journal)
    found = journal.head_counts()
    assert (found.journal, numbers(found.counts)) == (process_identity(), EXPECTED)
    journal.retire("a")  # its driver is gone, and nobody will resume it
    assert numbers(journal.head_counts().counts)["llm_loop", "support", "running", ""] == 1


async def test_a_file_is_the_same_journal_below_every_path_and_a_copy_of_a_backup_is_another(
    tmp_path: Path,
) -> None:
    path, link = tmp_path / "journal.db", tmp_path / "link.db"
    link.symlink_to(path)
    async with SqliteJournal(path) as journal:
        await fill(journal)
        await journal.backup(tmp_path / "copy.db")
        assert SqliteJournal(link).head_counts() == journal.head_counts()
        identity = journal.head_counts().journal
    async with SqliteJournal(tmp_path / "copy.db") as copy:
        lease = await copy.claim("c", "me", steal=True)
        await copy.release(lease)
        assert copy.head_counts().journal not in {"", identity}


async def test_a_file_that_lost_acknowledged_records_is_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        await fill(journal)
        (tmp_path / "cut").mkdir()
        for file in (path, path.with_name("journal.db-mark")):
            shutil.copy(file, tmp_path / "cut")
    with pytest.raises((Corrupt, StoreDown)):
        SqliteJournal(tmp_path / "cut" / "journal.db").head_counts()


def test_a_server_that_does_not_answer_is_one_error_within_seconds_without_a_password() -> None:
    journal = PostgresJournal("postgresql://me:secret@127.0.0.1:1/none")
    with pytest.raises(StoreDown, match=r"cannot be reached") as caught:
        journal.head_counts()
    assert "secret" not in str(caught.value)
