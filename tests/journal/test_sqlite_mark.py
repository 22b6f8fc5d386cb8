"""The high-water mark: what a journal must hold, through crashes, copies, other processes and lost marks."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import apsw
import pytest

from orchestrator.errors import Corrupt, JournalError, StoreDown
from orchestrator.journal.sqlite import SqliteJournal, high_water, log, schema
from orchestrator.journal.sqlite.high_water import SECTOR
from orchestrator.journal.sqlite.owner import SqlitePresence
from orchestrator.journal.sqlite.writer import SqliteRemove
from orchestrator.kernel.journal import Lease, Posted
from orchestrator.testing.journal_contract import BODY, ENDED, NOTE, write

Commits = list[bytes]
"""The log after each commit."""


def killed(path: Path, name: str = "killed") -> Path:
    """Copy what a process leaves that is killed now; return the journal's file."""
    folder = path.parent.parent / name
    shutil.copytree(path.parent, folder)
    folder.joinpath(f"{path.name}-shm").unlink(missing_ok=True)
    return folder / path.name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "live").mkdir()
    return tmp_path / "live" / "journal.db"


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


async def begun(journal: SqliteJournal, run: str = "run", notes: int = 3) -> Lease:
    lease = await journal.create(run, "me", BODY)
    for _ in range(notes):
        await write(journal, lease, NOTE)
    return lease


async def records(path: Path, run: str = "run") -> int:
    async with SqliteJournal(path) as journal:
        return len(await journal.load(run))


async def refused(path: Path, words: str) -> None:
    """Every way in refuses the journal, and changes nothing of it."""
    kept = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    for only_reads in (True, False, True):
        with pytest.raises(Corrupt, match=words):
            async with SqliteJournal(path, only_reads=only_reads) as journal:
                await journal.head("run")
    found = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.name in kept}
    assert found == kept


def in_use(path: Path) -> bool:
    """What the main file says, without its log."""
    copy = path.with_name("alone.db")
    shutil.copyfile(path, copy)
    db = apsw.Connection(str(copy))
    try:
        used = high_water.usage(db.cursor())
        return used is not None and used.in_use
    finally:
        db.close()
        for suffix in ("", "-wal", "-shm"):
            beside(copy, suffix).unlink(missing_ok=True)


def shorter(path: Path, commits: int) -> None:
    """Cut so many commits off the log."""
    file = beside(path, "-wal")
    raw = file.read_bytes()
    size = 24 + int.from_bytes(raw[8:12], "big")
    ends = [
        at + size
        for at in range(32, len(raw), size)
        if raw[at + 8 : at + 16] == raw[16:24] and any(raw[at + 4 : at + 8])
    ]
    file.write_bytes(raw[: ends[-1 - commits]])


# ---- in use, and closed ----


async def test_the_main_file_says_that_a_journal_is_in_use_before_anything_is_acknowledged(
    path: Path,
) -> None:
    async with SqliteJournal(path) as journal:
        assert not in_use(path), "opening alone changes nothing"
        assert not high_water.mark_of(path).exists()
        await journal.create("run", "me", BODY)
        assert in_use(path)
        assert high_water.mark_of(path).stat().st_mode & 0o777 == 0o600
    assert not in_use(path)
    assert not beside(path, "-wal").exists()


async def test_the_last_of_those_who_write_closes_the_journal(path: Path) -> None:
    first, second, reader = SqliteJournal(path), SqliteJournal(path), SqliteJournal(path)
    await begun(first)
    await begun(second, "other")
    await reader.head("run")
    for journal in (first, reader):
        await journal.close()
        assert in_use(killed(path, f"after {id(journal)}"))
        assert beside(path, "-wal").exists()
    await second.close()
    assert not in_use(path)


async def test_a_closed_journal_may_be_copied_and_its_mark_lost(path: Path, tmp_path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal)
    shutil.copyfile(path, tmp_path / "copy.db")
    high_water.mark_of(path).unlink()
    assert await records(path) == await records(tmp_path / "copy.db") == 4
    async with SqliteJournal(path) as journal:
        await begun(journal, "other")
        assert await records(killed(path), "other") == 4


async def test_a_journal_that_was_killed_is_opened_and_closed_again(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal)
        copy = killed(path)
    assert await records(copy) == 4
    assert not in_use(copy), "whoever opened it to write and found nobody alive"


async def test_reading_a_journal_that_was_killed_leaves_its_log_where_it_is(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal)
        copy = killed(path)
    before = beside(copy, "-wal").read_bytes()
    async with SqliteJournal(copy, only_reads=True) as reader:
        assert len(await reader.load("run")) == 4
    assert beside(copy, "-wal").read_bytes() == before


async def test_a_reader_that_keeps_an_old_state_delays_only_the_record_of_the_use(path: Path) -> None:
    async with SqliteJournal(path):
        pass
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN; SELECT * FROM run")
    async with SqliteJournal(path) as journal:
        lease = await begun(journal)
        assert not in_use(path)
        await refused(without(killed(path), "-wal"), "lacks data that journal.db-mark records")
        reader.execute("ROLLBACK")
        for _ in range(2):  # the use is recorded after a commit, before the next one
            await write(journal, lease, NOTE)
        assert in_use(path)
    reader.close()


# ---- what is missing ----


def without(path: Path, *suffixes: str) -> Path:
    for suffix in suffixes:
        beside(path, suffix).unlink()
    return path


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (("-wal",), "data that journal.db-mark records as .* run number 1 is missing"),
        (("-mark",), "was not closed, and journal.db-mark, .* is missing"),
        (("-wal", "-mark"), "was not closed, and journal.db-mark, .* is missing"),
    ],
)
async def test_what_is_missing_after_a_kill_is_reported(
    path: Path, gone: tuple[str, ...], words: str
) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal)
        await refused(without(killed(path), *gone), words)


async def test_a_log_beside_an_empty_or_missing_file_is_reported_and_kept(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal)
        empty, missing = killed(path, "empty"), killed(path, "missing")
    empty.write_bytes(b"")
    await refused(empty, "is missing or empty, and its log journal.db-wal is not")
    missing.unlink()
    await refused(missing, "is missing or empty, and its log journal.db-wal is not")
    assert not missing.exists()


async def test_a_log_that_another_program_copied_back_is_not_missed(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal)
        copy = killed(path)
    shell = apsw.Connection(str(copy))
    shell.execute("SELECT count(*) FROM run").fetchall()
    shell.close()
    assert not beside(copy, "-wal").exists()
    assert in_use(copy)
    assert await records(copy) == 4


async def test_a_missing_log_is_reported_where_the_mark_cannot_be_read_either(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal)
        copy = without(killed(path), "-wal")
    zeroed(copy)
    await refused(copy, "was not closed, and its log journal.db-wal is missing")


# ---- what was acknowledged ----


async def test_every_kind_of_commit_is_missed_when_the_log_lost_it(path: Path, tmp_path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal)
        copies = [killed(path, "append")]
        await journal.post("run", Posted("a", "approve"))
        copies.append(killed(path, "post"))
        await journal.claim("run", "me", steal=True)
        copies.append(killed(path, "claim"))
        handle = journal._handle
        assert handle is not None
        await journal.release(await journal.claim("run", "me"))
        # Not `erase`, which empties the log as well.
        await handle.writer.call(SqliteRemove("run", SqlitePresence(tmp_path / "nobody")))
        copies.append(killed(path, "erase"))
    for copy in copies:
        whole = killed(copy, f"{copy.parent.name} whole")
        async with SqliteJournal(whole) as again:
            assert (await again.check()).ok
        shorter(copy, 1)
        await refused(copy, "lacks data that journal.db-mark records as acknowledged: run 'run'")
    assert len(copies) == 4


async def test_a_journal_opens_whose_last_run_has_text_that_cannot_be_decoded(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await write(journal, await journal.create("r", "me", BODY), NOTE)
    db = apsw.Connection(str(path))
    db.execute("UPDATE run SET owner = CAST(x'e6' AS TEXT)")
    db.close()
    async with SqliteJournal(path) as journal:
        with pytest.raises(Corrupt, match=r"run 'r': its row is damaged"):
            await journal.head("r")


async def test_a_run_that_another_process_removed_is_not_missed(path: Path) -> None:
    async with SqliteJournal(path) as first, SqliteJournal(path) as second:
        lease = await begun(first)
        await write(first, lease, ENDED)
        await first.release(lease)
        await second.erase("run")
        async with SqliteJournal(killed(path)) as again:
            assert [head async for head in again.runs()] == []


async def test_every_process_has_a_slot_of_its_own_however_many_write(path: Path) -> None:
    journals = [SqliteJournal(path) for _ in range(6)]
    for number, journal in enumerate(journals):
        await begun(journal, f"run {number}", notes=1)
    found = high_water.read(path)
    assert found is not None
    assert sorted(slot.high_water.run for slot in found.slots if slot is not None) == [1, 2, 3, 4, 5, 6]
    for number, journal in enumerate(journals):
        copy = killed(path, f"{number} closed")
        shorter(copy, 1)
        await refused(copy, "run 'run 5' has 1 records")
        if number < 5:
            await journal.close()
    await journals[0].reopen()
    await begun(journals[0], "seventh")
    found = high_water.read(path)
    assert found is not None
    assert len(found.slots) == 6, "the slot of one that was closed"
    assert len({slot.token for slot in found.slots if slot is not None}) == 6
    for journal in (journals[0], journals[5]):
        await journal.close()


async def test_an_older_copy_in_the_place_of_the_journal_is_reported_and_a_backup_is_not(
    path: Path, tmp_path: Path
) -> None:
    async with SqliteJournal(path) as journal:
        lease = await begun(journal)
        await journal.backup(tmp_path / "backup.db")
        await journal.release(lease)
    shutil.copyfile(path, tmp_path / "older.db")
    async with SqliteJournal(path) as journal:
        await write(journal, await journal.claim("run", "me"), NOTE)
    shutil.copyfile(tmp_path / "older.db", path)
    await refused(path, "an older copy took its place")
    for _ in range(2):
        shutil.copyfile(tmp_path / "backup.db", path)
        async with SqliteJournal(path) as journal:
            await write(journal, await journal.claim("run", "me"), NOTE)
            assert len(await journal.load("run")) == 5
    path.unlink()
    SqliteJournal.restore(tmp_path / "older.db", path)
    assert await records(path) == 4


async def test_a_journal_of_a_version_without_marks_is_opened_after_a_kill(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal)
        copy = without(killed(path), "-mark")
    db = apsw.Connection(str(copy))
    db.execute("DROP TABLE mark")
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.close()
    async with SqliteJournal(copy) as journal:
        await write(journal, await journal.claim("run", "me"), NOTE)
        await refused(without(killed(copy, "later"), "-mark"), "journal.db-mark")
    assert await records(copy) == 5


async def test_a_link_to_a_journal_leads_to_its_mark(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(path)
    async with SqliteJournal(tmp_path / "link.db") as journal:
        await begun(journal)
        assert high_water.mark_of(path).exists()
        async with SqliteJournal(path) as other:
            assert (await other.head("run")).owner == "me"


# ---- the mark itself ----


def zeroed(path: Path) -> None:
    """Leave of the mark what was synced, as the worst power loss does."""
    file = high_water.mark_of(path)
    raw = file.read_bytes()
    file.write_bytes(raw[:SECTOR] + bytes(len(raw) - SECTOR))


async def test_a_mark_that_was_torn_or_lost_in_a_power_loss_is_no_damage(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal)
        for at in (SECTOR, 2 * SECTOR):
            torn = killed(path, f"torn {at}")
            raw = bytearray(high_water.mark_of(torn).read_bytes())
            raw[at + 8] ^= 1
            high_water.mark_of(torn).write_bytes(raw)
            assert await records(torn) == 4
        lost = killed(path, "lost")
    zeroed(lost)
    assert await records(lost) == 4


async def test_a_mark_of_another_journal_proves_nothing(path: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with SqliteJournal(path) as journal, SqliteJournal(tmp_path / "other" / "journal.db") as other:
        await begun(journal)
        await begun(other, notes=9)
        copy = killed(path)
    shutil.copyfile(tmp_path / "other" / "journal.db-mark", high_water.mark_of(copy))
    await refused(copy, "journal.db-mark, .* is of another journal, or damaged")
    shutil.copyfile(tmp_path / "other" / "journal.db-mark", high_water.mark_of(path))
    assert await records(path) == 4, "it was closed"
    async with SqliteJournal(path) as journal:
        await begun(journal, "more")
        assert await records(killed(path, "again"), "more") == 4


async def test_a_mark_that_cannot_be_made_acknowledges_nothing(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        beside(path, "-mark").mkdir()
        with pytest.raises(StoreDown):
            await journal.create("run", "me", BODY)
        beside(path, "-mark").rmdir()
        await journal.reopen()
        await begun(journal)


async def test_a_mark_that_is_removed_before_another_process_writes_is_missed(path: Path) -> None:
    async with SqliteJournal(path) as journal, SqliteJournal(path) as other:
        await begun(journal)
        await other.head("run")
        high_water.mark_of(path).unlink()
        with pytest.raises(Corrupt, match="is missing"):
            await other.post("run", Posted("a", "approve"))


# ---- the frames of the log ----


def frames(path: Path) -> tuple[int, list[int]]:
    """Size of a frame, and the offsets of those that end a transaction."""
    raw = beside(path, "-wal").read_bytes()
    size = 24 + struct.unpack_from(">I", raw, 8)[0]
    starts = [at for at in range(32, len(raw), size) if raw[at + 8 : at + 16] == raw[16:24]]
    return size, [at for at in starts if any(raw[at + 4 : at + 8])]


async def test_later_transactions_behind_a_wrong_frame_prove_damage_without_the_mark(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal, notes=6)
        whole = killed(path)
    size, ends = frames(whole)
    for back, behind in ((4, True), (2, True), (1, True), (0, False)):
        copy = killed(whole, f"flipped {back}")
        zeroed(copy)
        raw = bytearray(beside(copy, "-wal").read_bytes())
        raw[ends[-1 - back] + size - 1] ^= 1
        beside(copy, "-wal").write_bytes(raw)
        if behind:
            await refused(copy, "is damaged at frame .* later transactions stand")
        else:
            assert await records(copy) < 7, "as a torn tail after a power loss"


class OnlyReadLog(apsw.VFS):
    """Opens logs as a disk does that cannot be written to."""

    def __init__(self) -> None:
        super().__init__("only reads logs", "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - the name of SQLite
        if flags[0] & apsw.SQLITE_OPEN_WAL:
            flags[0] &= ~(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            flags[0] |= apsw.SQLITE_OPEN_READONLY
        return apsw.VFSFile("", name, flags)


async def test_damage_to_a_log_that_can_only_be_read_is_found_too(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal, notes=6)
        whole = killed(path)
    size, ends = frames(whole)
    disk = OnlyReadLog()
    db = apsw.Connection(str(whole), vfs="only reads logs")
    try:
        assert db.execute("SELECT count(*) FROM record").fetchall() == [(7,)]
        schema.refuse_damaged_log(db, whole)
        raw = bytearray(beside(whole, "-wal").read_bytes())
        raw[ends[-3] + size - 1] ^= 1
        beside(whole, "-wal").write_bytes(raw)
        with pytest.raises(Corrupt, match="is damaged at frame"):
            schema.refuse_damaged_log(db, whole)
    finally:
        db.close()
        disk.unregister()


async def test_a_wrong_frame_is_found_wherever_it_is_and_a_torn_tail_is_none(path: Path, seed: int) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal, notes=5)
        file = beside(killed(path), "-wal")
    raw = file.read_bytes()
    size, ends = frames(file.with_name("journal.db"))
    first = ends[-3] // size + 1
    assert log.damaged_frame(file, 0) is None
    for at in range(ends[-4] + size, ends[-3] + size):
        if (at - seed) % 97:
            continue
        flipped = bytearray(raw)
        flipped[at] ^= 1 << at % 8
        file.write_bytes(flipped)
        found = log.damaged_frame(file, 0)
        assert found in (first - 1, first, first + 1, None), at
        assert found is not None or at in range(ends[-3], ends[-3] + 24), (
            "a checksum that the next frame needs"
        )
        file.write_bytes(flipped[: ends[-3] + size])
        assert log.damaged_frame(file, 0) is None, "its own transaction may have been torn"


@pytest.mark.parametrize("bit", range(32))
async def test_a_wrong_size_in_a_torn_transaction_does_not_make_its_frame_an_end(
    path: Path, bit: int
) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal, notes=5)
        file = beside(killed(path), "-wal")
    size, ends = frames(file.with_name("journal.db"))
    raw = bytearray(file.read_bytes())
    inner = next(at for at in range(ends[-4] + size, ends[-3], size))
    assert raw[inner + 4 : inner + 8] == bytes(4)
    raw[inner + 4 + bit // 8] ^= 1 << bit % 8
    file.write_bytes(raw)
    assert log.damaged_frame(file, 0) == (inner - 32) // size + 1
    file.write_bytes(raw[: ends[-3] + size])
    assert log.damaged_frame(file, 0) is None


# ---- what is left ----


async def test_what_is_left_can_be_written_to_a_new_journal(path: Path, tmp_path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await begun(journal)
        copy = killed(path)
    shorter(copy, 1)
    kept = {file.name: file.read_bytes() for file in copy.parent.iterdir() if file.is_file()}
    SqliteJournal.salvage(copy, tmp_path / "left.db")
    assert await records(tmp_path / "left.db") == 3
    assert {file.name: file.read_bytes() for file in copy.parent.iterdir() if file.name in kept} == kept
    await refused(copy, "lacks data")
    with pytest.raises(JournalError, match="exists"):
        SqliteJournal.salvage(copy, tmp_path / "left.db")
    SqliteJournal.salvage(without(copy, "-wal"), tmp_path / "nothing.db")
    with pytest.raises(StoreDown, match="does not exist"):
        SqliteJournal.salvage(tmp_path / "none.db", tmp_path / "new.db")
    async with SqliteJournal(tmp_path / "nothing.db") as left:
        assert [head async for head in left.runs()] == []
    assert not beside(copy, "-wal").exists()
