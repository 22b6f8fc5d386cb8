"""Kill -9 and power loss at every point of an upgrade: the journal has the earlier version or the present one."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.sqlite.schema import VERSION
from tests.crash.invariants import Log, check
from tests.crash.lives import Lives, assert_exact, assert_whole
from tests.crash.nursery import Nursery, client_log, prove
from tests.crash.power import Disk, Image, laid_out, lay_out
from tests.crash.test_power import is_log, recorded
from tests.journal import format_1

KILLED = -signal.SIGKILL


def version(path: Path) -> int:
    """The version that a reader of this moment finds, the log included."""
    db = apsw.Connection(str(path))
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # else it would remove the log
    try:
        return int(str(db.pragma("user_version")))
    finally:
        db.close()


async def proved(path: Path, log: Log) -> None:
    """Check every invariant without a write, and the backup of an upgraded journal."""
    async with SqliteJournal(path, only_reads=True) as journal:
        await check(journal, log)
        health = await journal.check()
    assert health.ok, health.problems
    for backup in path.parent.glob("*.backup"):
        async with SqliteJournal(backup, only_reads=True) as kept:
            found = await kept.check()
        assert (found.ok, found.version) == (True, 1)
    assert health.version == 1 or list(path.parent.glob("*.backup")), "upgraded without a backup"


@pytest.fixture
def earlier(nursery: Nursery, quick: Path) -> Path:
    """A folder with a journal of version 1 that a worker filled, big blobs included, and its client log."""
    folder = quick / "earlier"
    folder.mkdir()
    assert nursery.work(folder) == 0, (folder / "client.log").read_text()
    format_1.rewrite(folder / "store" / "journal.db")
    assert version(folder / "store" / "journal.db") == 1
    return folder


def test_a_kill_at_every_point_of_an_upgrade_leaves_one_of_both_versions(
    nursery: Nursery, quick: Path, earlier: Path, campaign: Callable[[int, int], int]
) -> None:
    whole = quick / "whole"
    shutil.copytree(earlier, whole)
    assert nursery.work(whole, appends=0, runs=0, plain=True) == 0
    total = client_log(whole).numbers["calls"]
    prove(whole)
    versions: list[int] = []
    rounds = min(campaign(14, total), total)
    for step in range(rounds):
        at = 1 + step * total // rounds
        folder = quick / f"at-{at}"
        shutil.copytree(earlier, folder)
        path = folder / "store" / "journal.db"
        mode = ("kill_before", "kill_after")[step % 2]
        assert nursery.work(folder, mode=mode, at=at, appends=0, runs=0, plain=True) in (KILLED, 0)
        if step % 3 == 0:  # the second kill, in the next attempt
            nursery.work(folder, mode=mode, at=1 + at // 2, appends=0, runs=0, plain=True)
        asyncio.run(proved(path, client_log(folder)))
        versions.append(version(path))
        assert nursery.work(folder, seed=3) == 0, "work goes on after the fault"
        prove(folder)
        assert version(path) == VERSION
        names = [file.name for file in path.parent.iterdir() if "version-1" in file.name]
        assert sorted(names) == ["journal.db.version-1.backup", "journal.db.version-1.backup-blobs"]
        shutil.rmtree(folder)
    assert set(versions) == {1, VERSION}
    print(f"{rounds} of {total} kill points")  # noqa: T201  captured, for the report


@pytest.mark.system("strace")
def test_a_power_loss_at_any_point_of_an_upgrade_leaves_one_of_both_versions(
    quick: Path, earlier: Path, environment: dict[str, str], seed: int, campaign: Callable[[int, int], int]
) -> None:
    folder = quick / "power"
    shutil.copytree(earlier, folder)
    disk, chance = Disk(laid_out(folder / "store", folder)), random.Random(seed)
    lines, seen, versions = (folder / "client.log").read_text(), 0, set[int]()
    traced = recorded(
        folder, environment, "tests.crash.worker", "once", "{store}/journal.db", "{log}", "7", "2"
    )
    stride, syncs = campaign(60, 5), campaign(2, 1)
    for number, (call, following) in enumerate(pairwise(traced)):
        if is_log(call):
            lines += call.data.decode()
            continue
        disk.apply(call)
        if (number + seed) % (syncs if following.name == "sync" else stride):
            continue
        for what, image in disk.images(chance, campaign(1, 4)):
            seen += 1
            versions.add(judged(image, lines, quick / "image", f"{what} at call {number}"))
    assert versions == {1, VERSION}
    assert "ACK append" in lines
    print(f"{seen} images")  # noqa: T201  captured, for the report


def judged(image: Image, lines: str, folder: Path, where: str) -> int:
    """Prove what a power loss leaves, then use it; return the version that was left."""
    lay_out(image, folder)
    path = folder / "store" / "journal.db"
    try:
        log = Log.read(lines.splitlines())
        asyncio.run(proved(path, log))
        left = version(path)

        async def used() -> None:
            async with SqliteJournal(path) as journal:
                await check(journal, log)
                assert (await journal.check()).ok

        asyncio.run(used())
        return left
    except Exception as error:
        error.add_note(where)
        raise
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_was_killed_goes_on_after_an_upgrade_from_each_of_its_steps(
    when: str, begin: Callable[[Path], Lives], quick: Path, campaign: Callable[[int, int], int]
) -> None:
    upgraded = 0
    for at in range(2, 14, campaign(3, 1)):
        lives = begin(quick / f"at-{at}")
        assert lives.live("run", kill=when, at=at) == KILLED, lives.errors()
        path = quick / f"at-{at}" / "journal.db"
        format_1.rewrite(path)
        lives.to_the_end()
        assert_exact(lives)
        assert_whole(lives.result())
        upgraded += version(path) == VERSION
    assert upgraded == len(range(2, 14, campaign(3, 1)))
