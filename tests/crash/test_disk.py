"""T5, T6, T7, T16: a disk that is full, fails, is read-only, or slow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.errors import StoreDown
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.testing.journal_contract import BODY, NOTE, digest, write
from tests.crash.invariants import drafts
from tests.crash.nursery import Nursery, prove

FULL = "the disk of journal .* is full: free space there; processes that have it open then continue"

ROOT = Path(__file__).resolve().parents[2]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def remount(point: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", point], check=True)


async def fill(journal: SqliteJournal, most: int = 10_000) -> int:
    """Append until it is refused; how many were acknowledged."""
    lease = await journal.create("run", "me", BODY)
    for number in range(most):
        try:
            await write(journal, lease, *drafts("run", str(number), 3))
        except StoreDown:
            assert lease.seq == 3 * number
            return number
    raise AssertionError("it was never full")


async def still_there(journal: SqliteJournal, acknowledged: int) -> None:
    """All that was acknowledged is there, and nothing else."""
    records = await journal.load("run")
    bodies = [record.body for record in records[1:]]
    assert bodies == [draft.body for number in range(acknowledged) for draft in drafts("run", str(number), 3)]
    assert (await journal.check()).ok


@pytest.mark.canary
async def test_a_full_database_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        handle = journal._handle
        assert handle is not None
        await handle.writer.call(lambda tx: tx.cursor.execute("PRAGMA max_page_count=60").get)
        acknowledged = await fill(journal)
        with pytest.raises(StoreDown, match=FULL):
            await journal.load("run")
        await journal.reopen()
        await still_there(journal, acknowledged)
        lease = await journal.claim("run", "me")
        await write(journal, lease, NOTE)


@pytest.mark.canary
async def test_a_full_disk_refuses_and_goes_on_when_there_is_room(mounted: Callable[..., Path]) -> None:
    disk = mounted("-t", "tmpfs", "-o", "size=600k", "tmpfs")
    async with SqliteJournal(disk / "journal.db") as journal:
        acknowledged = await fill(journal)
        with pytest.raises(StoreDown, match=FULL):
            await journal.head("run")
    remount(disk, "size=2m")
    async with SqliteJournal(disk / "journal.db") as journal:
        await still_there(journal, acknowledged)
        lease = await journal.claim("run", "me")
        await write(journal, lease, NOTE)


async def test_a_disk_too_full_for_a_blob_leaves_no_record_that_names_it(
    mounted: Callable[..., Path],
) -> None:
    disk = mounted("-t", "tmpfs", "-o", "size=2m", "tmpfs")
    async with SqliteJournal(disk / "journal.db") as journal:
        lease = await journal.create("run", "me", BODY)
        big = os.urandom(3 << 20)
        with pytest.raises(StoreDown, match=FULL):
            await write(journal, lease, NOTE, blobs={digest(big): big})
        assert lease.seq == 0
        assert names_in(disk / "journal.db-blobs") == []
        await journal.reopen()
        assert len(await journal.load("run")) == 1


async def test_a_disk_too_full_for_a_new_file_has_nothing_of_it(mounted: Callable[..., Path]) -> None:
    disk = mounted("-t", "tmpfs", "-o", "size=16k", "tmpfs")
    journal = SqliteJournal(disk / "new" / "journal.db")
    with pytest.raises(StoreDown, match="cannot be created: No space left on device"):
        await journal.open()
    assert names_in(disk) == []
    await journal.close()


async def test_a_disk_too_full_to_begin_has_a_journal_that_works_when_there_is_room(
    mounted: Callable[..., Path],
) -> None:
    disk = mounted("-t", "tmpfs", "-o", "size=64k", "tmpfs")
    journal = SqliteJournal(disk / "new" / "journal.db")
    with pytest.raises(StoreDown, match="full"):
        await journal.open()
    await journal.close()
    remount(disk, "size=2m")
    async with SqliteJournal(disk / "new" / "journal.db") as again:
        await again.create("run", "me", BODY)
        assert (await again.check()).ok


def test_a_failing_sync_takes_the_journal_down_and_is_never_tried_again(
    nursery: Nursery, quick: Path, campaign: Callable[[int, int], int]
) -> None:
    (quick / "whole").mkdir()
    assert nursery.work(quick / "whole", appends=5) == 0
    total = prove(quick / "whole").numbers["syncs"]
    surfaced = 0
    every = max(1, total // campaign(25, total))
    for at in range(1, total + 1, every):
        folder = quick / str(at)
        folder.mkdir()
        assert nursery.work(folder, mode="fail_sync", at=at, appends=5) == 0
        text = (folder / "client.log").read_text()
        if "DOWN\n" in text:
            surfaced += 1
            assert text.count("STILL DOWN") == 3 or "ACK create" not in text
        log = prove(folder)
        if "DOWN\n" in text and log.acknowledged:
            assert log.numbers["syncs_after_failure"] == 0, at
        shutil.rmtree(folder)
    assert surfaced >= len(range(1, total + 1, every)) - 8


@pytest.mark.canary
@pytest.mark.parametrize("existing", [False, True])
async def test_a_read_only_folder_is_refused_at_the_start(
    tmp_path: Path, existing: bool, mounted: Callable[..., Path]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    if existing:
        async with SqliteJournal(source / "journal.db") as journal:
            await journal.create("run", "me", BODY)
    before = names_in(source)
    folder = mounted("--bind", source)
    remount(folder, "ro,bind")
    journal = SqliteJournal(folder / "journal.db")
    with pytest.raises(StoreDown, match=r"read-only|Read-only|cannot be opened for writing") as caught:
        await journal.open()
    assert "\n" not in str(caught.value)
    await journal.close()
    assert names_in(source) == before


async def begun(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await journal.create("run", "me", BODY)


async def read(path: Path) -> tuple[list[str], int]:
    """The runs of a journal, and how many records one has, by whoever only reads."""
    async with SqliteJournal(path, only_reads=True) as journal:
        heads = [head.run_id async for head in journal.runs()]
        return heads, len(await journal.load("run"))


@pytest.mark.canary
async def test_a_full_disk_can_be_read_while_it_is_full(mounted: Callable[..., Path]) -> None:
    disk = mounted("-t", "tmpfs", "-o", "size=600k", "tmpfs")
    path = disk / "journal.db"
    async with SqliteJournal(path) as journal:
        acknowledged = await fill(journal)
        assert await read(path) == (["run"], 1 + 3 * acknowledged), (
            "beside the process that met the full disk"
        )
    remount(disk, "size=2m")
    async with SqliteJournal(path):
        pass  # brings what the log holds into the file, as a process that ends well does
    assert names_in(disk) == ["journal.db", "journal.db-mark", "journal.db-owners"]
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    assert await read(path) == (["run"], 1 + 3 * acknowledged), "where no shared memory can be made"
    with pytest.raises(
        StoreDown, match=FULL
    ) as said:  # for whoever comes to write, it is full and no I/O error
        async with SqliteJournal(path):
            pass
    assert said.value.kind == "full"


@pytest.mark.canary
async def test_a_read_only_folder_can_be_read_and_nothing_is_written(
    tmp_path: Path, mounted: Callable[..., Path]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    async with SqliteJournal(source / "journal.db") as journal:
        await journal.create("run", "me", BODY)
    before = names_in(source)
    folder = mounted("--bind", source)
    remount(folder, "ro,bind")
    assert await read(folder / "journal.db") == (["run"], 1)
    async with SqliteJournal(folder / "journal.db", only_reads=True) as journal:
        with pytest.raises(StoreDown, match="was opened read-only"):
            await journal.create("other", "me", BODY)
    assert names_in(source) == before


@pytest.mark.parametrize("command", [("list",), ("show", "run"), ("events", "run"), ("export", "run")])
def test_the_command_line_shows_runs_on_a_read_only_disk(
    tmp_path: Path,
    mounted: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    asyncio.run(begun(source / "journal.db"))
    folder = mounted("--bind", source)
    remount(folder, "ro,bind")
    with pytest.raises(SystemExit) as end:
        main(["runs", *command, "--journal", str(folder / "journal.db")])
    said = capsys.readouterr()
    assert (end.value.code, said.err) == (0, "")
    assert "llm_loop" in said.out


async def test_a_log_that_cannot_be_read_where_it_lies_is_a_sentence_and_not_half_of_the_runs(
    tmp_path: Path, mounted: Callable[..., Path]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        await journal.create("run", "me", BODY)
        # Without the shared memory: as it is after a restart.
        for name in ("journal.db", "journal.db-wal", "journal.db-mark"):
            shutil.copy(tmp_path / name, source / name)
    folder = mounted("--bind", source)
    remount(folder, "ro,bind")
    with pytest.raises(
        StoreDown, match=r"its log journal\.db-wal has further records.* copy both and journal\.db-mark"
    ):
        await read(folder / "journal.db")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert await read(copy / "journal.db") == (["run"], 1), "as the sentence says"


@pytest.mark.canary
async def test_whoever_only_reads_sees_what_another_writes_and_makes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with pytest.raises(StoreDown):
        await read(path)
    assert names_in(tmp_path) == []
    async with SqliteJournal(path) as journal, SqliteJournal(path, only_reads=True) as reader:
        lease = await journal.create("run", "me", BODY)
        assert (await reader.head("run")).owner == "me"
        await write(journal, lease, NOTE)
        assert len(await reader.load("run")) == 2


def test_a_slow_disk_is_made_up_for_by_committing_together(nursery: Nursery, quick: Path) -> None:
    # 32 runs on a disk of 10 ms a sync: counted in syncs, not in time.
    assert nursery.work(quick, mode="slow_sync", delay=10_000, runs=32, appends=6, plain=True) == 0
    log = prove(quick)
    assert len(log.acknowledged) == 192
    assert len(log.acknowledged) >= 10 * log.numbers["append_commits"]
    # Its own, and the one that was under way when it was asked for, if there was one.
    assert log.numbers["most_commits_waited"] in (1, 2)


@pytest.mark.canary
def test_all_syncs_of_an_append_come_before_its_acknowledgement(nursery: Nursery, quick: Path) -> None:
    assert nursery.work(quick, mode="slow_sync", delay=0, runs=1, appends=20, plain=True) == 0
    assert prove(quick).numbers["append_commits"] == 20
