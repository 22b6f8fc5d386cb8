"""The SQLite store beyond the contract: other processes, size, proofs and copies."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path

import apsw
import pytest

from orchestrator.errors import Corrupt, Fenced, Held, JournalError, RunUnknown, StoreDown
from orchestrator.journal.sqlite import SqliteJournal, writer
from orchestrator.journal.sqlite.writer import SqliteRemove, nothing
from orchestrator.kernel.journal import Draft, Posted
from orchestrator.testing.journal_contract import BODY, ENDED, NOTE, PARKED, digest, ended, write


async def one_sentence(journal: SqliteJournal, kind: type[JournalError], *words: str) -> None:
    with pytest.raises(kind) as caught:
        await journal.create("run", "me", BODY)
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text
    await journal.close()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- other processes ----


async def test_a_lock_that_is_held_too_long_is_one_sentence_and_no_poison(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path, busy=0.05) as journal:
        lease = await journal.create("run", "me", BODY)
        db = apsw.Connection(str(path))
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreDown, match=r"was locked by another process for more than 0\.05 s"):
            await write(journal, lease, NOTE)
        assert lease.seq == 0
        assert len(await journal.load("run")) == 1
        db.execute("ROLLBACK")
        db.close()
        await write(journal, lease, NOTE)
        assert len(await journal.load("run")) == 2


async def test_a_run_that_was_given_back_under_a_lock_is_free_once_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_AGAIN", 0.05)
    path = tmp_path / "journal.db"
    async with SqliteJournal(path, busy=0.01) as journal, SqliteJournal(path) as other:
        lease = await journal.create("run", "me", BODY)
        db = apsw.Connection(str(path))
        db.execute("BEGIN IMMEDIATE")
        await journal.release(lease)
        assert (await other.head("run")).owner == "me"
        db.execute("ROLLBACK")
        db.close()
        while (await other.head("run")).owner is not None:  # noqa: ASYNC110  it is the writer's clock that runs
            await asyncio.sleep(0.05)
        assert (await other.claim("run", "you")).epoch == 2


async def test_a_lock_held_while_opening_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    db = apsw.Connection(str(path))
    db.execute("BEGIN EXCLUSIVE")
    await one_sentence(SqliteJournal(path, busy=0.05), StoreDown, "locked by another process")
    db.close()


async def test_two_handles_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as one, SqliteJournal(path) as two:

        async def work(journal: SqliteJournal, number: int) -> None:
            lease = await journal.create(f"run {number}", "me", BODY)
            for _ in range(10):
                await write(journal, lease, NOTE)
                await journal.post(f"run {number}", Posted(os.urandom(4).hex(), "pause"))

        await asyncio.gather(*(work(journal, n) for n, journal in enumerate([one, two] * 4)))
        health = await one.check()
        assert (health.runs, health.records, health.problems) == (8, 88, ())


async def test_the_same_owner_name_in_another_process_is_somebody_else(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "j.db") as one, SqliteJournal(tmp_path / "j.db") as two:
        await one.create("run", "worker", BODY)
        with pytest.raises(Held):
            await two.claim("run", "worker")


# ---- size and care ----


async def test_the_log_is_copied_back_before_it_grows_long(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        lease = await journal.create("run", "me", BODY)
        for _ in range(12):
            await write(journal, lease, *[Draft("note", {"text": "x" * 100_000})] * 20)
        assert place_of(path, "-wal") < 3 * 1000 * 4096
        assert path.stat().st_size > 10_000_000


def place_of(path: Path, suffix: str) -> int:
    return path.with_name(path.name + suffix).stat().st_size


async def test_what_is_erased_is_in_no_file_any_more(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        for run_id in ("keep", "lose"):
            lease = await journal.create(run_id, "me", BODY)
            secret = f"secret of {run_id}".encode()
            await write(
                journal, lease, Draft("note", {"text": secret.decode()}), blobs={digest(secret): secret}
            )
            await journal.release(lease)
        await journal.erase("lose")
        whole = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
        assert b"secret of keep" in whole
        assert b"secret of lose" not in whole


async def test_a_check_counts_and_finds_nothing_wrong(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        for number, last in enumerate((NOTE, PARKED, ENDED)):
            lease = await journal.create(f"run {number}", "me", BODY)
            await write(journal, lease, last)
        health = await journal.check()
        assert health.ok
        assert (health.version, health.runs, health.records) == (3, 3, 6)
        assert [head.status for head in health.open] == ["open", "parked"]
        assert health.size > 0 < health.free


async def listed(journal: SqliteJournal, seen: list[str]) -> None:
    async for head in journal.runs():
        seen.append(head.run_id)  # noqa: PERF401  what came before the error counts


async def test_a_check_names_every_run_that_cannot_be_trusted(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        for number in range(6):
            lease = await journal.create(f"run {number}", "me", BODY)
            await write(journal, lease, NOTE, NOTE, blobs={digest(b"%d" % number): b"%d" % number})
        await journal.post("run 5", Posted("a", "approve"))
        db = apsw.Connection(str(path))
        db.execute("UPDATE record SET body = CAST('{}' AS BLOB) WHERE key = (1 << 32) + 2")
        db.execute("DELETE FROM record WHERE key = (2 << 32) + 2")
        db.execute("UPDATE run SET status = 'ended' WHERE id = 3")
        db.execute("UPDATE run SET graph = 'other' WHERE id = 4")
        db.execute("UPDATE blob SET content = CAST('x' AS BLOB) WHERE digest = unhex(?)", (digest(b"4"),))
        db.execute("UPDATE request SET kind = 'reject'")
        db.close()
        for run_id in ("run 0", "run 1", "run 2", "run 3"):
            with pytest.raises(Corrupt, match=run_id):
                await journal.load(run_id)
        with pytest.raises(Corrupt):
            await journal.blob(digest(b"4"))
        with pytest.raises(Corrupt):
            await journal.inbox("run 5")
        assert len(await journal.load("run 4")) == 3
        seen: list[str] = []
        with pytest.raises(Corrupt, match=r"run 2.*run 3"):
            await listed(journal, seen)
        assert seen == ["run 0", "run 1", "run 4", "run 5"]
        assert len((await journal.check()).problems) == 6


async def test_a_backup_taken_while_runs_go_on_is_a_journal(tmp_path: Path) -> None:
    big = b"y" * (2 << 20)
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, NOTE, blobs={digest(big): big})
        going = asyncio.create_task(_append(journal, 200))
        await journal.backup(tmp_path / "copy.db")
        await going
        with pytest.raises(StoreDown, match="exists"):
            await journal.backup(tmp_path / "copy.db")
    assert mode(tmp_path / "copy.db") == 0o600
    SqliteJournal.restore(tmp_path / "copy.db", tmp_path / "deep" / "restored.db")
    names = names_in(tmp_path)
    assert not [name for name in names if "part" in name]
    async with SqliteJournal(tmp_path / "deep" / "restored.db") as restored:
        assert (await restored.check()).ok
        assert await restored.blob(digest(big)) == big
        taken = await restored.claim("run", "you")
        await write(restored, taken, NOTE)
        assert [record.epoch for record in await restored.load("run")] == [1, 1, 2]


async def _append(journal: SqliteJournal, count: int) -> None:
    lease = await journal.create("busy", "me", BODY)
    for _ in range(count):
        await write(journal, lease, NOTE)


async def test_who_still_holds_a_lease_of_before_the_restore_is_fenced(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        lease = await journal.create("run", "me", BODY)
        await journal.backup(tmp_path / "copy.db")
        await write(journal, lease, NOTE)
    path.unlink()
    SqliteJournal.restore(tmp_path / "copy.db", path)
    async with SqliteJournal(path) as restored:
        with pytest.raises(Fenced):
            await write(restored, lease, NOTE)


async def test_a_damaged_backup_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, *[NOTE] * 200)
        await journal.backup(tmp_path / "copy.db")
    raw = bytearray((tmp_path / "copy.db").read_bytes())
    at = raw.rindex("größer".encode())
    raw[at] ^= 1
    (tmp_path / "copy.db").write_bytes(raw)
    with pytest.raises(JournalError, match="the copy is damaged"):
        SqliteJournal.restore(tmp_path / "copy.db", tmp_path / "new" / "restored.db")
    assert not (tmp_path / "new").exists()
    with pytest.raises(StoreDown, match="does not exist"):
        SqliteJournal.restore(tmp_path / "nothing.db", tmp_path / "restored.db")


async def test_a_removal_that_is_rolled_back_loses_no_file(tmp_path: Path) -> None:
    big = b"z" * (1 << 20)
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        await ended(journal, "run", blobs=[big])
        handle = journal._handle
        assert handle is not None
        busy, gate = threading.Event(), threading.Event()

        def wait(_: object) -> None:
            busy.set()
            gate.wait()

        def full(_: object) -> None:
            raise apsw.FullError("no room")

        handle.writer.submit(wait)
        assert await asyncio.to_thread(busy.wait, 60)
        batch = [
            handle.writer.submit(SqliteRemove("run", handle.presence)),
            handle.writer.submit(nothing, handle.sweep),
            handle.writer.submit(full),
        ]
        gate.set()
        for outcome in await asyncio.gather(*batch, return_exceptions=True):
            assert isinstance(outcome, StoreDown)
        await journal.reopen()
        assert await journal.blob(digest(big)) == big
        assert (await journal.check()).problems == ()
        await journal.erase("run")
        assert names_in(tmp_path / "journal.db-blobs") == []


async def test_half_written_blob_files_of_the_dead_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    folder = tmp_path / "journal.db-blobs"
    big = b"z" * (1 << 20)
    async with SqliteJournal(path) as journal:
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, NOTE, blobs={digest(big): big})
        (folder / f"{'0' * 64}.{'1' * 16}.tmp").write_bytes(b"half")
        (folder / ("2" * 64)).write_bytes(b"no row")
    async with SqliteJournal(path) as journal:
        assert names_in(folder) == [digest(big)]
        with pytest.raises(RunUnknown):
            await journal.head("other")
