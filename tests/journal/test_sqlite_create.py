"""A new SQLite file has its name when it is complete, and no process removes what another one uses."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import apsw
import pytest

from orchestrator.errors import StoreDown
from orchestrator.journal.sqlite import SqliteHandle, SqliteJournal, high_water, place, schema
from orchestrator.testing.journal_contract import BODY

PROCESSES = 3


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def created(path: Path, run: str) -> None:
    async with SqliteJournal(path) as journal:
        await journal.create(run, "me", BODY)


async def runs_of(path: Path) -> list[str]:
    async with SqliteJournal(path) as journal:
        return [head.run_id async for head in journal.runs()]


def opens_all(folder: Path, rounds: int, run: str, together: Barrier, failed: Queue[str]) -> None:
    """In a process of its own: create a run in each new journal, at the same time as the others."""
    for number in range(rounds):
        together.wait()
        try:
            asyncio.run(created(folder / f"{number}.db", run))
        except Exception as error:  # noqa: BLE001  every one is reported
            failed.put(f"{number} {run}: {error!r}")
    failed.put("")


@pytest.mark.campaign
def test_processes_that_open_a_new_journal_at_once_all_get_it(
    tmp_path: Path, campaign: Callable[[int, int], int]
) -> None:
    rounds, context = campaign(15, 300), multiprocessing.get_context("spawn")
    together, failed = context.Barrier(PROCESSES, timeout=60), context.Queue()
    processes = [
        context.Process(target=opens_all, args=(tmp_path, rounds, f"run-{number}", together, failed))
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    said: list[str] = []
    while said.count("") < PROCESSES:
        said.append(failed.get(timeout=300))
    for process in processes:
        process.join()
    assert [line for line in said if line] == []
    for number in range(rounds):
        assert sorted(asyncio.run(runs_of(tmp_path / f"{number}.db"))) == ["run-0", "run-1", "run-2"]


async def test_an_opening_that_fails_leaves_the_journal_that_another_process_has_begun_to_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "journal.db"

    def refused_after_another_came(*_: object, **__: object) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(high_water, "connect_proved", connect)
            asyncio.run(created(path, "other"))
        raise StoreDown("the disk is full")

    connect = high_water.connect_proved
    monkeypatch.setattr(high_water, "connect_proved", refused_after_another_came)
    with pytest.raises(StoreDown, match="the disk is full"):
        await asyncio.to_thread(SqliteHandle, path, queue=1, busy=1.0)
    monkeypatch.undo()
    assert await runs_of(path) == ["other"]


def test_tables_that_another_process_makes_between_two_looks_are_no_foreign_database(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    db, other = apsw.Connection(str(path)), apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    seen: list[str] = []

    def after_the_first_look(_: apsw.Cursor, statement: str, __: object) -> bool:
        seen.append(statement)
        if "application_id" in statement:
            for table in schema.JOURNAL.tables:
                other.execute(table)
        return True

    db.exec_trace = after_the_first_look
    schema.refuse_foreign(db, path)
    assert sum("application_id" in statement for statement in seen) == 1
    db.close()
    other.close()


def test_a_new_file_is_complete_and_has_the_mode_of_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.db"
    assert place.prepare(path, schema.JOURNAL.image) == [path.parent]
    assert path.read_bytes() == schema.JOURNAL.image()
    assert path.stat().st_mode & 0o777 == 0o600
    assert names_in(path.parent) == ["journal.db"]


def test_a_file_that_exists_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"other")
    assert place.prepare(path, schema.JOURNAL.image) == []
    assert path.read_bytes() == b"other"


async def test_without_hard_links_sqlite_creates_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "journal.db"
    place.prepare(path, schema.JOURNAL.image)
    assert path.read_bytes() == b""
    await created(path, "run")
    assert await runs_of(path) == ["run"]
    assert not [name for name in names_in(tmp_path) if name.endswith(".new")]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_an_error_while_the_file_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fails(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StoreDown, match="cannot be created"):
        place.prepare(tmp_path / "deep" / "journal.db", schema.JOURNAL.image)
    assert names_in(tmp_path) == []


def test_the_leftover_of_a_killed_process_is_removed_and_every_other_file_kept(tmp_path: Path) -> None:
    old, young = tmp_path / f"journal.db-{'0' * 16}.new", tmp_path / f"journal.db-{'1' * 16}.new"
    mine, folder = tmp_path / "journal.db-copy.new", tmp_path / f"journal.db-{'2' * 16}.new"
    for file in (old, young, mine):
        file.write_bytes(b"half")
    folder.mkdir()
    for path in (old, mine, folder):
        os.utime(path, (0, 0))
    place.prepare(tmp_path / "journal.db", bytes)
    assert names_in(tmp_path) == sorted(["journal.db", young.name, mine.name, folder.name])
