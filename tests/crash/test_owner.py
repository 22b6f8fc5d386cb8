"""T9, T10, T11, T21: clocks that jump, owners that freeze and wake up, requests that come twice, nothing that leaks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import Fenced, Held, StoreDown
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Posted
from orchestrator.testing.journal_contract import BODY, NOTE, write
from tests.crash.invariants import check_chain

ROOT = Path(__file__).resolve().parents[2]

OWNER = """
import asyncio, sys
from orchestrator.errors import Fenced
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft

async def main():
    journal = SqliteJournal(sys.argv[1])
    lease = await journal.create("run", "frozen", {"graph": "g"})
    while True:
        try:
            await journal.append(lease, [Draft("note", {"by": "frozen", "seq": lease.seq + 1})])
        except Fenced:
            print("fenced", lease.seq, flush=True)
            return
        print("ack", lease.seq, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def owner(tmp_path: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that owns a run and appends to it as fast as it can."""
    command = [sys.executable, "-c", OWNER, str(tmp_path / "journal.db")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ack 1\n"
        yield process
        process.kill()


@pytest.mark.canary
async def test_a_frozen_owner_is_alive_can_be_stolen_from_and_wakes_up_fenced(
    tmp_path: Path, owner: subprocess.Popen[str]
) -> None:
    async with SqliteJournal(tmp_path / "journal.db", busy=0.2) as journal:
        await frozen_between_commits(journal, owner)
        with pytest.raises(Held, match="frozen"):
            await journal.claim("run", "thief")
        lease = await journal.claim("run", "thief", steal=True)
        for _ in range(5):
            await write(journal, lease, NOTE)
        owner.send_signal(signal.SIGCONT)
        assert owner.stdout is not None
        said = owner.stdout.read().split()
        assert owner.wait() == 0
        assert said[-2] == "fenced"
        records = await journal.load("run")
        check_chain("run", records)
        mine = [record.seq for record in records if record.epoch == 2]
        assert mine == list(range(len(records) - 5, len(records)))
        acknowledged = [int(seq) for word, seq in itertools.pairwise(said) if word == "ack"]
        assert all(seq < mine[0] for seq in acknowledged)


async def frozen_between_commits(journal: SqliteJournal, owner: subprocess.Popen[str]) -> None:
    """Freeze the owner where it does not have the write lock: in a commit it stops everybody until it is ended."""
    while True:
        owner.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, owner.pid, os.WSTOPPED)  # noqa: ASYNC222  nothing else is to run meanwhile
        with contextlib.suppress(StoreDown):
            await journal.post("run", Posted(os.urandom(4).hex(), "pause"))
            return
        owner.send_signal(signal.SIGCONT)


IN_A_COMMIT = """
import apsw, sys, time
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN IMMEDIATE")
print()
time.sleep(100)
"""


async def test_an_owner_frozen_in_a_commit_stops_others_with_one_sentence_until_it_is_ended(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path, busy=0.1) as journal:
        lease = await journal.create("run", "me", BODY)
        command = [sys.executable, "-uc", IN_A_COMMIT, str(path)]
        with subprocess.Popen(  # noqa: ASYNC220  it is told what to do by signals
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as writing:
            assert writing.stdout is not None
            writing.stdout.readline()
            writing.send_signal(signal.SIGSTOP)
            stopped = f"locked by process {writing.pid} .*stopped in the middle of a write.*kill -KILL {writing.pid}"
            with pytest.raises(StoreDown, match=stopped):
                await write(journal, lease, NOTE)
            assert len(await journal.load("run")) == 1
            writing.kill()
        await write(journal, lease, NOTE)
        assert len(await journal.load("run")) == 2


@pytest.mark.canary
async def test_a_killed_owner_is_dead_at_once(tmp_path: Path, owner: subprocess.Popen[str]) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        with pytest.raises(Held):
            await journal.claim("run", "heir")
        owner.kill()
        owner.wait()
        lease = await journal.claim("run", "heir")
        await write(journal, lease, NOTE)
        check_chain("run", await journal.load("run"))


@pytest.mark.canary
async def test_no_jump_of_the_clock_changes_who_owns_a_run(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    jumps = (-86_400.0, -3_600.0, 0.0, 3_600.0, 86_400.0)

    def now() -> float:
        return 1e9 + chance.choice(jumps)

    path = tmp_path / "journal.db"
    async with SqliteJournal(path, now=now) as one, SqliteJournal(path, now=now) as two:
        lease = await one.create("run", "one", BODY)
        for turn in range(40):
            held, other = (one, two) if turn % 2 == 0 else (two, one)
            await write(held, lease, NOTE)
            with pytest.raises(Held):
                await other.claim("run", "other")
            stale = lease
            lease = await other.claim("run", "other", steal=True)
            with pytest.raises(Fenced):
                await write(held, stale, NOTE)
        records = await one.load("run")
        check_chain("run", records)
        assert [record.epoch for record in records] == [1, *range(1, 41)]


POSTER = """
import asyncio, json, sys
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Posted

async def main():
    journal = SqliteJournal(sys.argv[1])
    answers = [await journal.post("run", Posted(f"id {n}", "approve", {"by": sys.argv[2]})) for n in range(20)]
    print(json.dumps(answers))

asyncio.run(main())
"""


async def test_a_request_that_several_processes_post_is_there_once(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        await journal.create("run", "me", BODY)
        posters = [
            subprocess.Popen(  # noqa: ASYNC220  they run side by side, and are awaited below
                [sys.executable, "-c", POSTER, path, str(number)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for number in range(3)
        ]
        answers = [json.loads(poster.communicate()[0]) for poster in posters]
        inbox = await journal.inbox("run")
        assert [request.number for request in inbox] == list(range(1, 21))
        assert len({request.id for request in inbox}) == 20
        for request in inbox:
            number = int(request.id.split()[1])
            won = [poster for poster, answer in enumerate(answers) if answer[number]]
            assert won == [int(request.body["by"])], "one was told that its post is the one"
        assert not await journal.post("run", Posted("id 3", "reject"))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.canary
async def test_nothing_leaks(tmp_path: Path, campaign: Callable[[int, int], int]) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        lease = await journal.create("run", "me", BODY)
        await journal.load("run")
        before, threads = descriptors(), threading.active_count()
        for _ in range(3):
            for _ in range(campaign(100, 3_500)):
                await write(journal, lease, NOTE)
            for _ in range(campaign(10, 70)):
                lease = await journal.claim("run", "me")
                async with SqliteJournal(path) as other:
                    with contextlib.suppress(Held):
                        await other.claim("run", "you")
        while threading.active_count() > threads:  # noqa: ASYNC110  one that was told to end takes a moment
            await asyncio.sleep(0.01)
        # SQLite keeps the descriptors of closed connections while others hold locks, and uses them again.
        assert descriptors() <= before + 4
        assert len(list((tmp_path / "journal.db-owners").iterdir())) == 1
