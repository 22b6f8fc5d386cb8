"""Who owns a run in PostgreSQL: frozen, killed and busy processes, lost connections, many who want it at once."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from orchestrator.errors import Fenced, Held, StoreDown
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.postgres.presence import BEATS, LIVING
from orchestrator.kernel.journal import Draft, Lease, Posted
from orchestrator.testing.journal_contract import BODY, NOTE, write
from tests.journal.relay import relayed
from tests.journal.test_postgres_server import told

ROOT = Path(__file__).resolve().parents[2]
TTL = 600.0
"""Seconds; more than a test takes."""

OWNER = """
import asyncio, sys
from orchestrator.errors import Fenced
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.kernel.journal import Draft

async def main():
    journal = PostgresJournal(sys.argv[1], ttl=float(sys.argv[2]), name="owner")
    lease = await journal.create(sys.argv[3], "owner", {"graph": "g"})
    while True:
        try:
            await journal.append(lease, [Draft("note", {"by": "owner", "seq": lease.seq + 1})])
        except Fenced:
            print("fenced", lease.seq, flush=True)
            await journal.close()
            return
        print("ack", lease.seq, flush=True)

asyncio.run(main())
"""

Owner = subprocess.Popen[str]


@pytest.fixture
def owner(database: str) -> Iterator[Callable[..., Owner]]:
    """`owner("run")` is a process that owns a run and appends to it as fast as it can."""
    begun: list[Owner] = []

    def begin(run_id: str, ttl: float = TTL) -> Owner:
        command = [sys.executable, "-c", OWNER, database, str(ttl), run_id]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        begun.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        assert begun[-1].stdout is not None
        assert begun[-1].stdout.readline() == "ack 1\n"
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def claimed(journal: PostgresJournal, run_id: str) -> Lease:
    """Claim the run of a killed process as soon as the server has noticed that its connection is closed."""
    while True:
        try:
            return await journal.claim(run_id, "heir")
        except Held:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("owners", [1, pytest.param(4, marks=pytest.mark.campaign)])
async def test_a_frozen_owner_is_taken_over_after_its_time_and_wakes_up_fenced(
    database: str, owner: Callable[..., Owner], seed: int, owners: int, campaign: Callable[[int, int], int]
) -> None:
    """Wherever it was stopped, no row of its run stays locked: the claim is not refused for that."""
    chance = random.Random(seed)
    async with PostgresJournal(database) as journal:
        for number in range(campaign(owners, 60)):
            run_id = f"run {number}"
            process = owner(run_id)
            await asyncio.sleep(chance.uniform(0, 0.05))
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(Held, match="owner"):
                await journal.claim(run_id, "heir")
            told(database, "UPDATE holder SET ttl = 0.2, grace = 0.1 WHERE name = 'owner'")
            while (await journal.head(run_id)).owner is not None:  # noqa: ASYNC110  it is the server's clock that runs
                await asyncio.sleep(0.02)
            assert (
                await journal.head(run_id)
            ).expired_owner == "owner"  # the process has its connection still
            lease = await journal.claim(run_id, "heir")
            assert (await journal.head(run_id)).expired_owner is None
            for _ in range(3):
                await write(journal, lease, NOTE)
            process.send_signal(signal.SIGCONT)
            said = process.communicate()[0].split()
            assert process.returncode == 0
            assert said[-2] == "fenced"
            records = await journal.load(run_id)
            first = next(record.seq for record in records if record.epoch == 2)
            assert [record.epoch for record in records[first:]] == [2, 2, 2]
            acknowledged = [1, *(int(seq) for word, seq in itertools.pairwise(said) if word == "ack")]
            assert acknowledged == list(range(1, acknowledged[-1] + 1))
            assert acknowledged[-1] < first <= acknowledged[-1] + 2


async def test_a_killed_owner_is_missed_before_a_frozen_one_would_be(
    database: str, owner: Callable[..., Owner]
) -> None:
    async with PostgresJournal(database, ttl=TTL) as journal:
        process = owner("run")
        process.kill()
        process.wait()
        told(database, "UPDATE holder SET grace = 0.2 WHERE name = 'owner'")
        while (await journal.head("run")).owner is not None:  # noqa: ASYNC110  it is the server's clock that runs
            await asyncio.sleep(0.02)
        assert (await journal.head("run")).expired_owner is None
        lease = await claimed(journal, "run")
        assert lease.epoch == 2
        await write(journal, lease, NOTE)
        mine, dead = sorted(await journal.holders(), key=lambda one: not one.alive)
        assert (mine.alive, mine.runs, dead.alive, dead.name, dead.runs) == (True, 1, False, "owner", 0)


async def test_a_killed_owner_is_missed_although_the_clock_of_the_server_was_set_back(
    database: str, owner: Callable[..., Owner]
) -> None:
    async with PostgresJournal(database, ttl=TTL) as journal:
        await journal.create("other", "me", BODY)
        process = owner("run")
        told(database, "UPDATE holder SET grace = 0.2, seen = seen + interval '3 hours'")
        assert (await journal.head("run")).owner == "owner", "who is connected is alive"
        process.kill()
        process.wait()
        told(database, "UPDATE holder SET seen = seen + interval '3 hours' WHERE name = 'owner'")
        assert (await claimed(journal, "run")).epoch == 2
        assert {one.name: one.alive for one in await journal.holders()} == {"owner": False, "": True}


@pytest.mark.parametrize(("hours_since_start", "is_alive"), [(-3, False), (0, True), (3, False)])
async def test_a_server_that_started_in_the_future_keeps_no_dead_owner(
    database: str, hours_since_start: int, *, is_alive: bool
) -> None:
    """The machine had started with a wrong clock, for example, which was set back since."""
    async with PostgresJournal(database) as journal:
        await journal.create("run", "me", BODY)
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("CREATE SCHEMA wrong")
        db.execute(
            f"""CREATE FUNCTION wrong.pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql AS
            $$ SELECT clock_timestamp() - interval '{hours_since_start} hours' $$"""
        )
        db.execute("SET search_path = wrong, orchestrator, pg_catalog")
        db.execute(
            "INSERT INTO holder(token, name, seen, ttl, grace) VALUES (1, 'dead', '2026-01-01', 60, 60)"
        )
        row = db.execute(f"SELECT {LIVING} FROM holder h".encode()).fetchone()  # noqa: S608 - our own text
        assert row == (is_alive,)


async def test_of_many_who_claim_the_run_of_a_dead_one_has_it(database: str, postgres: object) -> None:
    gone = PostgresJournal(database)
    for number in range(10):
        await gone.create(f"run {number}", "gone", BODY)
    await gone.close()
    journals = [PostgresJournal(database) for _ in range(4)]

    async def claim(journal: PostgresJournal, run_id: str, name: str) -> Lease | None:
        try:
            return await journal.claim(run_id, name)
        except Held:
            return None

    asked = [
        claim(journal, f"run {number}", f"{number} of {place}")
        for number in range(10)
        for place, journal in enumerate(journals)
    ]
    found = [lease for lease in await asyncio.gather(*asked) if lease is not None]
    assert sorted(lease.run_id for lease in found) == [f"run {number}" for number in range(10)]
    assert {lease.epoch for lease in found} == {2}
    for journal in journals:
        await journal.close()


async def test_who_loses_the_connection_and_comes_back_keeps_its_runs(database: str) -> None:
    with relayed(database) as relay:
        async with (
            PostgresJournal(relay.through(database)) as journal,
            PostgresJournal(database) as other,
        ):
            lease = await journal.create("run", "me", BODY)
            told(database, "UPDATE holder SET grace = %s", TTL)
            for _ in range(3):
                relay.cut_clients()
                with pytest.raises(Held):
                    await other.claim("run", "you")
                await write(journal, lease, NOTE)
            assert [record.epoch for record in await other.load("run")] == [1] * 4


async def test_a_busy_event_loop_is_no_dead_process(database: str) -> None:
    async with PostgresJournal(database, ttl=0.8) as journal:
        await journal.create("run", "me", BODY)
        seen: set[object] = set()
        with psycopg.connect(database, autocommit=True) as looking:  # in this thread: the loop is blocked
            while len(seen) <= 2 * BEATS:  # for longer than the ttl
                seen.add(looking.execute("SELECT seen FROM orchestrator.holder").fetchone())
                time.sleep(0.01)  # noqa: ASYNC251  as above
        async with asyncio.timeout(60):  # a stall of the machine may be longer than the ttl
            while (await journal.head("run")).owner != "me":  # noqa: ASYNC110  it is the server's clock that runs
                await asyncio.sleep(0.02)


async def test_clocks_of_workers_that_jump_change_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    async with PostgresJournal(database) as journal, PostgresJournal(database) as other:
        for jump in (3_600.0, -3_600.0, 86_400.0, -86_400.0):
            monkeypatch.setattr(time, "time", lambda jump=jump: now + jump)
            lease = await journal.create(f"run {jump}", "me", {"graph": "g", "at": 1.0})
            with pytest.raises(Held):
                await other.claim(lease.run_id, "you")
            await write(journal, lease, NOTE)
            head = await journal.head(lease.run_id)
            assert (head.owner, abs(head.updated_at - now) < 60) == ("me", True)
            assert await other.post(lease.run_id, Posted("a", "pause", at=5.0))


async def test_two_leases_of_one_run_in_one_batch_are_told_apart(database: str) -> None:
    async with PostgresJournal(database) as journal:
        stale = await journal.create("run", "me", BODY)
        other = await journal.create("other", "me", BODY)
        lease = await journal.claim("run", "me")
        under_way = [
            journal.append(one, [Draft("note", {"epoch": one.epoch})])
            for one in (stale, lease, other, stale, lease)
        ]
        done = await asyncio.gather(*(one for one in under_way if one is not None), return_exceptions=True)
        assert [type(one) for one in done] == [Fenced, type(None), type(None), Fenced, type(None)]
        assert [record.epoch for record in await journal.load("run")] == [1, 2, 2]


async def test_what_cannot_be_stored_takes_nobody_else_with_it(database: str) -> None:
    async with PostgresJournal(database) as journal:
        leases = [await journal.create(f"run {number}", "me", BODY) for number in range(4)]
        kinds = ("note", "no\0te", "half \ud83d", "note")
        under_way = [
            journal.append(lease, [Draft(kind, {})]) for lease, kind in zip(leases, kinds, strict=True)
        ]
        done = await asyncio.gather(*(one for one in under_way if one is not None), return_exceptions=True)
        assert [one is None for one in done] == [True, False, False, True]
        assert "cannot hold this" in str(done[1])
        for lease in leases:
            await write(journal, lease, NOTE)
        assert [len(await journal.load(lease.run_id)) for lease in leases] == [3, 2, 2, 3]


async def test_after_a_fork_the_child_has_no_journal_and_the_parent_keeps_its_own(database: str) -> None:
    async with PostgresJournal(database) as journal:
        lease = await journal.create("run", "me", BODY)
        child = os.fork()
        if not child:
            try:
                journal.append(lease, [NOTE])
            except StoreDown as down:
                os._exit(0 if "forked" in str(down) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222  it ends at once
        await write(journal, lease, NOTE)
        assert (await journal.head("run")).owner == "me"
