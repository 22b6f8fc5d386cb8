"""A standby takes over for a PostgreSQL server that is lost: what was acknowledged is there, if it waits for that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from orchestrator.errors import StoreDown
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.kernel.journal import Draft
from orchestrator.testing.journal_contract import BODY, NOTE, write
from tests.crash.invariants import check_chain
from tests.postgres import Cluster, Standby, cluster, programs, standby, synchronous

RUNS = 6


@pytest.fixture
def pair(absent: Callable[[str], NoReturn]) -> Iterator[tuple[Cluster, Standby]]:
    """A primary and its standby."""
    if programs() is None:
        absent("PostgreSQL's initdb is not installed")
    with cluster() as primary, standby(primary) as other:
        yield primary, other


def either(primary: Cluster, other: Standby) -> str:
    """Return an address of both servers that leads to the one that can be written to."""
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{other.port}"
    return f"postgresql://{primary.user}:{primary.password}@{hosts}/postgres?target_session_attrs=read-write"


async def test_nothing_acknowledged_is_lost_with_synchronous_replication(
    pair: tuple[Cluster, Standby], campaign: Callable[[int, int], int]
) -> None:
    primary, other = pair
    synchronous(primary)
    acknowledged: dict[str, list[str]] = {}
    over = asyncio.Event()

    async def work(journal: PostgresJournal, run_id: str) -> None:
        lease = await journal.create(run_id, "worker", BODY)
        acknowledged[run_id] = [lease.head]
        while not over.is_set():
            await write(journal, lease, Draft("note", {"n": lease.seq}))
            acknowledged[run_id].append(lease.head)

    def least() -> int:
        return (
            min((len(heads) for heads in acknowledged.values()), default=0)
            if len(acknowledged) == RUNS
            else 0
        )

    async with PostgresJournal(either(primary, other)) as journal:
        working = [asyncio.create_task(work(journal, f"run {number}")) for number in range(RUNS)]
        while least() < campaign(20, 500):  # noqa: ASYNC110  whatever a busy machine needs for it
            await asyncio.sleep(0.01)
        await asyncio.to_thread(primary.stop, "immediate")
        before = {run_id: len(heads) for run_id, heads in acknowledged.items()}
        await asyncio.to_thread(other.promote)
        while any(len(heads) < before[run_id] + 5 for run_id, heads in acknowledged.items()):
            assert not any(task.done() for task in working), "the same journal goes on at the other server"
            await asyncio.sleep(0.01)
        over.set()
        await asyncio.gather(*working)
        for run_id, heads in acknowledged.items():
            records = await journal.load(run_id)
            check_chain(run_id, records)
            assert [record.hash for record in records] == heads, (
                "all that was acknowledged, once and in order"
            )


@contextlib.contextmanager
def cut(other: Standby) -> Iterator[None]:
    """Stop a standby from receiving what the primary commits; its receiver ends with the block."""
    receiver = other.receiver()
    os.kill(receiver, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(receiver, signal.SIGTERM)  # before it reads what has arrived meanwhile
            os.kill(receiver, signal.SIGCONT)


async def test_an_append_that_the_synchronous_standby_does_not_have_is_not_acknowledged(
    pair: tuple[Cluster, Standby],
) -> None:
    primary, other = pair
    synchronous(primary)
    async with PostgresJournal(primary.dsn(), patience=0.5) as journal:
        lease = await journal.create("run", "worker", BODY)
        with cut(other):
            writing = asyncio.ensure_future(write(journal, lease, NOTE))
            while not await asyncio.to_thread(waits_for_standby, primary):
                assert not writing.done()
            await asyncio.to_thread(primary.stop, "immediate")
            with pytest.raises(StoreDown):
                await writing


def waits_for_standby(primary: Cluster) -> bool:
    return bool(primary.tell("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))


async def test_asynchronous_replication_loses_what_the_standby_has_not_received_and_the_drill_says_so(
    pair: tuple[Cluster, Standby], capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.cli.doctor import restore_drill
    from orchestrator.journal.address import address_of

    primary, other = pair
    async with PostgresJournal(primary.dsn()) as journal:
        lease = await journal.create("run", "worker", BODY)
        await write(journal, lease, NOTE)
        while await asyncio.to_thread(behind, primary):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with cut(other):
            await write(journal, lease, NOTE, NOTE)  # acknowledged by the primary alone
            drill: dict[str, Any] = {"json": True, "journal": address_of(primary.dsn())}
            assert await asyncio.to_thread(restore_drill, address_of(other.dsn()), **drill) == 0
            found = json.loads(capsys.readouterr().out)
            assert found["lost"] == {"runs": 0, "records": 2, "requests": 0}
            await asyncio.to_thread(primary.stop, "immediate")
    await asyncio.to_thread(other.promote)
    async with PostgresJournal(other.dsn()) as journal:
        records = await journal.load("run")
        check_chain("run", records)
        assert len(records) == 2


def behind(primary: Cluster) -> bool:
    """Tell whether the standby has not applied all that was committed."""
    return not primary.tell("SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()")


def test_a_dump_that_was_restored_into_a_database_of_its_own_can_be_tested(
    postgres: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.cli.doctor import restore_drill
    from orchestrator.journal.address import address_of

    live, scratch = postgres.database(), postgres.database()
    dump = tmp_path / "journal.dump"

    async def grown(*, more: bool) -> None:
        async with PostgresJournal(live) as journal:
            lease = await (journal.claim("run", "worker") if more else journal.create("run", "worker", BODY))
            await write(journal, lease, NOTE)
            await journal.release(lease)

    asyncio.run(grown(more=False))
    folder = programs()
    assert folder is not None
    subprocess.run([folder / "pg_dump", "-Fc", "-n", "orchestrator", "-f", dump, live], check=True)
    subprocess.run([folder / "pg_restore", "-d", scratch, dump], check=True)
    asyncio.run(grown(more=True))
    assert restore_drill(address_of(scratch), json=True, journal=address_of(live)) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["runs"], found["records"]) == (True, 1, 2)
    assert found["lost"] == {"runs": 0, "records": 1, "requests": 0}
