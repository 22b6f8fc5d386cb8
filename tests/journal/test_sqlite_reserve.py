"""The reserve beside a journal: who creates it, who uses it, and what is refused while it is short."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, StoreDown
from orchestrator.journal import sqlite
from orchestrator.journal.sqlite import SqliteJournal, place
from orchestrator.journal.sqlite.place import GRANT, SIZE, Reserve
from orchestrator.kernel.journal import Posted
from orchestrator.testing.journal_contract import BODY, ENDED, NOTE, write
from tests.engines.stage import until


class Disk:
    """A disk whose free bytes a test chooses."""

    def __init__(self) -> None:
        self.free = 100 * SIZE


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(place, "EVERY", 0.0)
    monkeypatch.setattr(sqlite, "EVERY", 0.01)
    monkeypatch.setattr(Reserve, "free", lambda _: disk.free)
    return disk


def length(path: Path) -> int:
    return path.with_name("journal.db-reserve").stat().st_size


def shortened(path: Path) -> None:
    os.truncate(path.with_name("journal.db-reserve"), GRANT)


def test_a_reserve_is_allocated_and_not_only_long(tmp_path: Path, disk: Disk) -> None:
    Reserve(tmp_path / "journal.db").keep()
    file = (tmp_path / "journal.db-reserve").stat()
    assert (file.st_size, file.st_mode & 0o777) == (SIZE, 0o600)
    assert file.st_blocks * 512 >= SIZE
    assert not Reserve(tmp_path / "journal.db").short


def test_a_process_of_short_life_a_small_disk_and_a_size_of_0_make_no_reserve(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = Reserve(tmp_path / "journal.db", 0)
    none.keep()
    none.note_full()
    disk.free = 4 * SIZE - 1
    small = Reserve(tmp_path / "journal.db")
    small.keep()
    small.note_full()
    assert not none.short
    assert not small.short, "without a reserve there is nothing to keep for anybody"
    disk.free = 100 * SIZE
    monkeypatch.setattr(place, "EVERY", 2.5)
    Reserve(tmp_path / "journal.db").keep()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_the_blocks_has_no_part_of_a_reserve(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    Reserve(tmp_path / "journal.db").keep()
    assert length(tmp_path / "journal.db") == 0


def test_a_system_without_allocation_writes_the_reserve(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    Reserve(tmp_path / "journal.db").keep()
    assert (tmp_path / "journal.db-reserve").stat().st_blocks * 512 >= SIZE


def test_an_operator_takes_what_is_missing_and_nobody_else_takes_anything(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "journal.db"
    Reserve(path).keep()
    disk.free = GRANT // 4
    Reserve(path).grant()
    assert length(path) == SIZE
    operator = Reserve(path, operator=True)
    operator.grant()
    assert length(path) == SIZE - (GRANT - GRANT // 4)
    operator.grant(10 * SIZE)
    assert length(path) == 0
    assert operator.grant() == disk.free, "it has no more"
    operator.keep()
    disk.free = 100 * SIZE
    operator.keep()
    assert length(path) == 0, "the process that writes fills it"
    assert not operator.short


async def test_while_the_reserve_is_short_nothing_starts_and_requests_and_live_runs_continue(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path, ttl=1.0) as journal:
        live, ours, cancelled = [await journal.create(name, "me", BODY) for name in ("live", "ours", "other")]
        await journal.release(ours)
        await journal.release(cancelled)
        await until(path.with_name("journal.db-reserve").exists, 60)
        disk.free = SIZE
        shortened(path)
        opened = journal._handle
        assert opened is not None
        await until(lambda: opened.reserve.short, 60)
        refused = r"is full: no run is started until 32,505,856 bytes are free \(8,388,608 are\)"
        for start in (journal.create("new", "me", BODY), journal.claim("ours", "me")):
            with pytest.raises(StoreDown, match=refused) as full:
                await start
            assert full.value.kind == "full"
        await write(journal, live, NOTE)
        assert await journal.post("other", Posted("1", "cancel"))
        await write(journal, await journal.claim("other", "me"), ENDED)
        disk.free = 100 * SIZE
        await until(lambda: not opened.reserve.short, 60)
        assert length(path) == SIZE
        await journal.create("new", "me", BODY)


async def test_a_journal_that_is_opened_with_a_short_reserve_starts_nothing(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "journal.db"
    Reserve(path).keep()
    shortened(path)
    disk.free = 2 * SIZE
    async with SqliteJournal(path, ttl=1.0) as journal:
        with pytest.raises(StoreDown, match="no run is started"):
            await journal.create("new", "me", BODY)
        path.with_name("journal.db-reserve").unlink()
        disk.free = 100 * SIZE
        await until(lambda: journal._handle is not None and not journal._handle.reserve.short, 60)
        await journal.create("new", "me", BODY)


def test_a_negative_reserve_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reserve is -1; it must be a number of bytes, 0 \(no reserve\)"):
        SqliteJournal(tmp_path / "journal.db", reserve=-1)
