"""The space of removed runs goes back to the file system."""

from __future__ import annotations

import asyncio
import shutil
from collections import namedtuple
from pathlib import Path

import apsw
import pytest

from orchestrator.errors import StoreDown
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.sqlite.schema import INCREMENTAL
from orchestrator.kernel.journal import Draft
from orchestrator.testing.journal_contract import BODY, ENDED, NOTE, write
from tests.journal import format_1

TEXT = Draft("note", {"text": "x" * 3_000})


async def filled(journal: SqliteJournal, runs: int = 40) -> None:
    for number in range(runs):
        lease = await journal.create(f"run {number}", "me", BODY)
        await write(journal, lease, *[TEXT] * 20)
        await write(journal, lease, ENDED)
        await journal.release(lease)


def mode(path: Path) -> object:
    db = apsw.Connection(
        f"{path.as_uri()}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    try:
        return db.pragma("auto_vacuum")
    finally:
        db.close()


async def test_a_new_file_returns_the_space_of_pruned_runs_while_others_are_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal, SqliteJournal(path) as other:
        await filled(journal)
        assert await journal.prune(keep_last=2) == 38
        lease = await other.create("active", "me", BODY)

        async def appends() -> None:
            for _ in range(30):
                await write(other, lease, NOTE)

        _, returned = await asyncio.gather(appends(), journal.vacuum())
        assert returned > 1_000_000
        assert (await journal.check()).ok
        assert len(await journal.load("run 39")) == 22
        assert len(await other.load("active")) == 31
    assert mode(path) == INCREMENTAL
    assert path.stat().st_size < 400_000


async def test_an_older_file_is_rewritten_once_and_then_shrinks_in_steps(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        await filled(journal)
    format_1.rewrite(path)
    db = apsw.Connection(str(path))
    db.pragma("auto_vacuum", 0)
    db.execute("VACUUM")
    db.close()
    assert mode(path) == 0
    async with SqliteJournal(path) as journal:
        assert await journal.prune(keep_last=20) == 20
        assert await journal.vacuum() > 1_000_000
        assert await journal.prune(keep_last=1) == 19
        assert await journal.vacuum() > 1_000_000
        assert await journal.vacuum() == 0
        assert (await journal.check()).ok
    assert mode(path) == INCREMENTAL


async def test_the_first_vacuum_of_an_older_file_needs_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        await filled(journal, 2)
    db = apsw.Connection(str(path))
    db.pragma("auto_vacuum", 0)
    db.execute("VACUUM")
    db.close()
    usage = namedtuple("usage", "total used free")  # noqa: PYI024  shutil's own has no types either
    async with SqliteJournal(path) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
            with pytest.raises(StoreDown, match=r"first vacuum needs [\d,]+ bytes in .*, and 1 are free"):
                await journal.vacuum()
        assert mode(path) == 0
        assert (await journal.head("run 1")).status == "ended", "the journal is usable"
        await journal.vacuum()
    assert mode(path) == INCREMENTAL


async def test_a_journal_that_is_only_read_is_not_vacuumed(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db"):
        pass
    async with SqliteJournal(tmp_path / "journal.db", only_reads=True) as journal:
        with pytest.raises(StoreDown, match="read-only"):
            await journal.vacuum()
