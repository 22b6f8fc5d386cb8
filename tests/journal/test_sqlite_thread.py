"""The SQLite store beyond the contract: threads, loops and forks."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from orchestrator.errors import Fenced, StoreDown
from orchestrator.journal.durable import ENOUGH
from orchestrator.journal.sqlite import SqliteJournal, log
from orchestrator.journal.sqlite.owner import BEATS, SqlitePresence
from orchestrator.testing.journal_contract import BODY, NOTE, PARKED, write

ANSWERED_WITHIN = 30.0
"""Seconds after which a missing answer is a failure."""


async def answered(*pending: Any) -> None:
    """Wait until all are done. A write that nobody answers cannot be cancelled: it is left alone then."""
    _, unanswered = await asyncio.wait(pending, timeout=ANSWERED_WITHIN)
    assert not unanswered


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- threads and loops ----


async def test_what_waits_is_committed_together(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        leases = [await journal.create(f"run {n}", "me", BODY) for n in range(64)]
        handle = journal._handle
        assert handle is not None
        before = handle.writer.commits
        await asyncio.gather(*(write(journal, lease, NOTE) for lease in leases))
        assert handle.writer.commits - before <= 2


async def test_a_refused_write_is_no_reason_to_write_the_others_one_by_one(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        leases = [await journal.create(f"run {n}", "me", BODY) for n in range(8)]
        handle = journal._handle
        assert handle is not None
        before = handle.writer.commits
        stale = replace(leases[0], epoch=0)
        written = (write(journal, lease, NOTE) for lease in (*leases, stale))
        answers = await asyncio.gather(*written, return_exceptions=True)
        assert [type(answer) for answer in answers] == [type(None)] * 8 + [Fenced]
        assert handle.writer.commits - before <= 2


async def test_a_long_turn_of_the_loop_does_not_keep_what_is_enough_for_a_commit_waiting(
    tmp_path: Path,
) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        leases = [await journal.create(f"run {n}", "me", BODY) for n in range(ENOUGH)]
        handle = journal._handle
        assert handle is not None
        before = handle.writer.commits
        written = [journal.append(lease, [NOTE]) for lease in leases]
        patience = time.monotonic() + 10
        while handle.writer.commits == before and time.monotonic() < patience:
            pass  # the loop is busy: it lets nobody else have a say
        assert handle.writer.commits > before
        for one in written:
            assert one is not None
            await one


def test_what_is_queued_when_the_loop_stops_is_written_at_close(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal, loop = SqliteJournal(path), asyncio.new_event_loop()
    lease = loop.run_until_complete(journal.create("run", "me", BODY))

    async def queue_and_go() -> None:
        journal.append(lease, [NOTE])

    loop.run_until_complete(queue_and_go())
    asyncio.run(journal.close())
    loop.close()

    async def stored() -> int:
        async with SqliteJournal(path) as other:
            return len(await other.load("run"))

    assert asyncio.run(stored()) == 2


async def test_new_work_waits_for_room_and_appends_do_not(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db", queue=4) as journal:
        handle = journal._handle
        assert handle is not None
        gate, queue = threading.Event(), handle.writer._jobs
        lease = await journal.create("first", "me", BODY)
        blocked = handle.writer.submit(lambda tx: gate.wait() and None)
        tasks = [asyncio.create_task(journal.create(f"run {n}", "me", BODY)) for n in range(50)]
        longest = 0
        for _ in range(100):
            await asyncio.sleep(0)
            longest = max(longest, len(queue))
        appended = journal.append(lease, [NOTE])
        gate.set()
        await blocked
        await asyncio.gather(*tasks)
        assert appended is not None
        await appended
        assert longest <= 4
        assert len([head async for head in journal.runs()]) == 51


async def test_a_cancelled_append_ends_when_its_outcome_is_known(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        handle = journal._handle
        assert handle is not None
        lease = await journal.create("run", "me", BODY)
        gate = threading.Event()
        handle.writer.submit(lambda tx: gate.wait() and None)
        task = asyncio.create_task(write(journal, lease, NOTE))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert lease.seq == 1
        assert len(await journal.load("run")) == 2


def test_one_journal_serves_several_loops(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")

    async def work(number: int) -> None:
        lease = await journal.create(f"run {number}", "me", BODY)
        for _ in range(20):
            await write(journal, lease, NOTE)

    threads = [threading.Thread(target=lambda n=n: asyncio.run(work(n))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def count() -> int:
        return sum([len(await journal.load(head.run_id)) async for head in journal.runs()])

    assert asyncio.run(count()) == 84
    asyncio.run(journal.close())


def test_a_loop_that_ended_meanwhile_does_not_trouble_the_writer(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")

    async def leave() -> None:
        lease = await journal.create("run", "me", BODY)
        handle = journal._handle
        assert handle is not None
        handle.writer.submit(lambda tx: gate.wait() and None)
        journal.append(lease, [NOTE])

    gate = threading.Event()
    asyncio.run(leave())
    gate.set()
    assert len(asyncio.run(journal.load("run"))) in (1, 2)
    asyncio.run(journal.close())
    again = SqliteJournal(journal.path)
    assert len(asyncio.run(again.load("run"))) == 2
    asyncio.run(again.close())


async def test_a_job_that_breaks_does_not_take_its_batch_with_it(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        handle = journal._handle
        assert handle is not None
        lease = await journal.create("run", "me", BODY)
        gate = threading.Event()
        handle.writer.submit(lambda tx: gate.wait() and None)
        before = journal.append(lease, [NOTE])
        broken = handle.writer.submit(lambda tx: tx.cursor.execute("INSERT INTO run(id) VALUES (99)").get)
        after = journal.append(lease, [PARKED])
        gate.set()
        assert before is not None
        assert after is not None
        await before
        await after
        with pytest.raises(apsw.ConstraintError):
            await broken
        assert [record.kind for record in await journal.load("run")] == ["created", "note", "parked"]


async def test_a_writer_thread_that_dies_is_an_error_to_everybody(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        handle = journal._handle
        assert handle is not None
        lease = await journal.create("run", "me", BODY)

        def die(_: object) -> None:
            raise SystemExit("no more")

        death = handle.writer.submit(die)
        waiting = journal.append(lease, [NOTE])
        assert waiting is not None
        for pending in (death, waiting):
            with pytest.raises(StoreDown, match="writer thread died"):
                await pending
        with pytest.raises(StoreDown, match="writer thread died"):
            journal.append(lease, [NOTE])
        await journal.reopen()
        assert len(await journal.load("run")) == 1


async def test_a_store_that_goes_down_in_mid_batch_answers_everybody_who_waits(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db", queue=8) as journal:
        handle = journal._handle
        assert handle is not None
        lease = await journal.create("run", "me", BODY)
        gate = threading.Event()

        def fail(_: object) -> None:
            raise apsw.IOError("disk I/O error")

        blocked = handle.writer.submit(lambda tx: gate.wait() and None)
        broken = handle.writer.submit(lambda tx: tx.cursor.execute("INSERT INTO run(id) VALUES (99)").get)
        down = handle.writer.submit(fail)
        behind = journal.append(lease, [NOTE])
        assert behind is not None
        without_room = [asyncio.create_task(journal.create(f"run {n}", "me", BODY)) for n in range(20)]
        await asyncio.sleep(0)
        gate.set()
        everybody: tuple[Awaitable[Any], ...] = (blocked, broken, down, behind, *without_room)
        await answered(*everybody)
        ends = await asyncio.gather(*everybody, return_exceptions=True)
        assert (ends[0], type(ends[1])) == (None, apsw.ConstraintError)
        for refused in ends[2:]:
            assert isinstance(refused, StoreDown)
            assert "disk I/O error" in str(refused)
        await journal.reopen()
        assert [head.run_id async for head in journal.runs()] == ["run"]
        assert len(await journal.load("run")) == 1


async def test_what_was_queued_when_another_thread_found_the_store_broken_is_refused_and_not_written(
    tmp_path: Path,
) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        handle = journal._handle
        assert handle is not None
        lease = await journal.create("run", "me", BODY)
        written = journal.append(lease, [NOTE])
        handle.writer.poison(apsw.IOError("disk I/O error"))
        assert written is not None
        await answered(written)
        with pytest.raises(StoreDown, match="disk I/O error"):
            await written
        with pytest.raises(StoreDown, match="disk I/O error"):
            journal.append(lease, [NOTE])
        await journal.reopen()
        assert len(await journal.load("run")) == 1


def test_a_program_that_does_not_close_its_journal_ends_and_loses_nothing(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from orchestrator.journal.sqlite import SqliteJournal, log
from orchestrator.kernel.journal import Draft
journal = SqliteJournal(sys.argv[1])
async def main():
    lease = await journal.create("run", "me", {})
    for _ in range(50):
        journal.append(lease, [Draft("note", {})])
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "journal.db"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (0, "")

    async def count() -> int:
        async with SqliteJournal(tmp_path / "journal.db") as journal:
            assert (await journal.head("run")).owner is None
            return len(await journal.load("run"))

    assert asyncio.run(count()) == 51


async def test_a_journal_that_is_dropped_lets_go_of_its_runs(tmp_path: Path) -> None:
    dropped = SqliteJournal(tmp_path / "journal.db")
    await dropped.create("run", "you", BODY)
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        assert (await journal.head("run")).owner == "you"
        del dropped
        while (await journal.head("run")).owner is not None:
            gc.collect()  # again: its thread lets go of the last call at any time


# ---- forks ----


def in_child(work: object) -> int:
    """Run a function in a forked child; its exit status."""
    child = os.fork()
    if not child:
        try:
            assert callable(work)
            os._exit(int(bool(work())))
        except BaseException:  # noqa: BLE001
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def opened(path: Path) -> SqliteJournal:
    journal = SqliteJournal(path)
    await journal.open()
    return journal


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_cannot_use_its_parents_handle(tmp_path: Path) -> None:
    journal = asyncio.run(opened(tmp_path / "journal.db"))
    lease = asyncio.run(journal.create("run", "me", BODY))

    def child() -> bool:
        refused = 0
        for call in (lambda: asyncio.run(journal.load("run")), lambda: journal.append(lease, [NOTE])):
            try:
                call()
            except StoreDown as error:
                refused += "forked" in str(error)
        mine = asyncio.run(opened(tmp_path / "journal.db"))
        held = asyncio.run(mine.head("run")).owner == "me"
        asyncio.run(mine.close())
        asyncio.run(journal.reopen())
        return not (refused == 2 and held and len(asyncio.run(journal.load("run"))) == 1)

    assert in_child(child) == 0
    asyncio.run(write(journal, lease, NOTE))
    asyncio.run(journal.close())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_does_not_keep_its_parent_alive_in_others_eyes(tmp_path: Path) -> None:
    presence, other = SqlitePresence(tmp_path / "owners"), SqlitePresence(tmp_path / "owners")
    token = presence.begin()
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    assert other.alive(token)
    presence.abandon()  # what the kernel does to a process that dies
    assert not other.alive(token)
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*ready, *go):
        os.close(descriptor)


def test_files_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    dead, living, third = (SqlitePresence(tmp_path / "owners") for _ in range(3))
    dead.begin()
    dead.abandon()
    token = living.begin()
    third.sweep()
    assert names_in(tmp_path / "owners") == [token]
    living.sweep()
    assert third.alive(token)
    living.end()
    assert names_in(tmp_path / "owners") == []


def test_a_file_that_goes_while_those_of_the_dead_are_swept_keeps_no_other_from_being_removed(
    tmp_path: Path,
) -> None:
    dead, living = (SqlitePresence(tmp_path / "owners") for _ in range(2))
    dead.begin()
    dead.abandon()
    token = living.begin()
    for name in ("0", "zzz"):
        (tmp_path / "owners" / name).symlink_to(tmp_path / "gone")  # listed, and not there when it is opened
    living.sweep()
    assert names_in(tmp_path / "owners") == sorted(["0", token, "zzz"])
    living.end()


def test_a_heartbeat_is_due_again_after_a_part_of_the_lease_and_not_at_once(tmp_path: Path) -> None:
    presence = SqlitePresence(tmp_path / "owners", ttl=300.0)
    assert presence.renew() is None
    token = presence.begin()
    presence.renew()
    file = tmp_path / "owners" / token
    written = file.read_bytes()
    due = presence.renew()
    assert due is not None
    assert 0 < due <= 300.0 / BEATS
    assert file.read_bytes() == written
    presence.end()


async def test_a_checkpoint_that_another_process_carries_out_stops_no_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def busy(db: object) -> None:
        tried.append(db)
        raise apsw.BusyError("database is locked")

    async with SqliteJournal(tmp_path / "journal.db") as journal:
        handle = journal._handle
        assert handle is not None
        lease = await journal.create("run", "me", BODY)
        monkeypatch.setattr(handle.writer._mark, "settle", busy)
        await write(journal, lease, NOTE)
        await write(journal, lease, NOTE)
        assert tried, "the second write came after the first attempt"
        assert len(await journal.load("run")) == 3
        monkeypatch.undo()


# ---- the file of the log ----


async def test_lone_commits_make_the_log_longer_once_in_many(tmp_path: Path) -> None:
    file = tmp_path / "journal.db-wal"
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        lease = await journal.create("run", "me", BODY)
        sizes = []
        for _ in range(100):
            await write(journal, lease, NOTE)
            sizes.append(file.stat().st_size)
        assert len(set(sizes)) <= 10, "a sync of a longer file waits for the journal of the file system"
        assert len(await journal.load("run")) == 101


async def test_a_log_that_two_processes_extend_keeps_the_commits_of_both(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as one, SqliteJournal(path) as other:
        leases = [await one.create("one", "me", BODY), await other.create("other", "me", BODY)]
        for number in range(120):
            await write(one, leases[0], NOTE)
            if number % 3:
                await asyncio.gather(write(other, leases[1], NOTE), write(one, leases[0], NOTE))
        copy = tmp_path / "after a crash"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("*-shm", copy.name))
    for folder in (copy, tmp_path):
        async with SqliteJournal(folder / path.name) as journal:
            assert (await journal.check()).problems == ()
            assert len(await journal.load("one")) == 201
            assert len(await journal.load("other")) == 81


async def test_a_log_that_cannot_be_extended_takes_commits_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> int:
        asked.append(path)
        raise OSError(28, "No space left on device")

    asked: list[Path] = []
    monkeypatch.setattr(log, "extend", full)
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, NOTE)
        assert asked
        assert len(await journal.load("run")) == 2
