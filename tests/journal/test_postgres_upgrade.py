"""A PostgreSQL journal of an earlier version: upgraded in one transaction, and only without living processes of it."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from orchestrator.errors import StoreDown
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.kernel.journal import Draft, Record
from orchestrator.testing.journal_contract import BODY, NOTE, move, spent, write
from tests.journal import format_1
from tests.postgres import Cluster


async def old(database: str) -> dict[str, list[tuple[object, ...]]]:
    """Write a journal of version 1, and return seq, epoch, kind and body of its records by run."""
    async with PostgresJournal(database) as journal:
        for name, last in (
            ("open", NOTE),
            ("parked", Draft("parked", {"reason": "approval", "calls": ["1:0"]})),
            ("ended", Draft("ended", {"outcome": "partial", "reason": "tokens"})),
        ):
            lease = await journal.create(name, "me", BODY)
            paid = Draft("context", {"spent": spent(30, 4, cost=9)})
            await write(
                journal, lease, move("work", 3.0), paid, Draft("asked", {"key": "1:0", "tool": "pay"})
            )
            await write(journal, lease, NOTE, last)
        found = await read(journal)
    format_1.rewrite_tables(database)
    return found


async def read(journal: PostgresJournal) -> dict[str, list[tuple[object, ...]]]:
    def plain(record: Record) -> tuple[object, ...]:
        return record[:4]

    return {head.run_id: [*map(plain, await journal.load(head.run_id))] async for head in journal.runs()}


def version(database: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT version FROM orchestrator.meta").fetchone()
        assert row is not None
        return int(row[0])


async def test_an_upgrade_keeps_every_record_and_fills_the_heads(database: str) -> None:
    before = await old(database)
    assert version(database) == 1
    async with PostgresJournal(database) as journal:
        assert await read(journal) == before
        heads = {head.run_id: head async for head in journal.runs(state="work")}
        assert set(heads) == {"open", "parked", "ended"}
        for head in heads.values():
            assert (head.state, head.state_since, head.tokens, head.cost_micros) == ("work", 3.0, 34, 9)
        assert (heads["parked"].waiting, heads["ended"].outcome, heads["open"].outcome) == (
            "pay",
            "partial",
            "",
        )
        lease = await journal.claim("open", "heir")
        await write(journal, lease, NOTE, NOTE)
        health = await journal.check()
        assert (health.problems, health.version) == ((), 4)
    assert version(database) == 4


async def test_a_damaged_run_stays_damaged_and_the_others_are_upgraded(database: str) -> None:
    before = await old(database)
    with psycopg.connect(database, options="-c search_path=orchestrator") as connection:
        connection.execute(
            "UPDATE record SET body = '{' WHERE seq = 1 AND run = (SELECT id FROM run WHERE run_id = 'parked')"
        )
    async with PostgresJournal(database) as journal:
        (problem,) = (await journal.check()).problems
        assert problem.startswith("run 'parked'")
        assert [record[:4] for record in await journal.load("ended")] == before["ended"]
        assert (await journal.head("ended")).outcome == "partial"


async def test_many_who_open_an_old_journal_at_once_upgrade_it_once(database: str) -> None:
    before = await old(database)
    journals = [PostgresJournal(database) for _ in range(6)]
    await asyncio.gather(*(journal.open() for journal in journals))
    for journal in journals:
        assert await read(journal) == before
        await journal.close()


async def test_a_living_process_of_an_earlier_version_prevents_the_upgrade(database: str) -> None:
    before = await old(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO orchestrator.holder VALUES (1, 'night worker', clock_timestamp(), 10, 10)"
        )
        with pytest.raises(
            StoreDown, match=r"has version 1 and is used by 1 process.*night worker.*end them"
        ):
            await PostgresJournal(database).open()
        assert version(database) == 1
        connection.execute("DELETE FROM orchestrator.holder")
    async with PostgresJournal(database) as journal:
        assert await read(journal) == before


async def test_who_only_reads_does_not_upgrade(database: str) -> None:
    await old(database)
    with pytest.raises(StoreDown, match="upgraded to version 4 when it is opened to write"):
        await PostgresJournal(database, only_reads=True).open()
    assert version(database) == 1


async def test_an_interrupted_upgrade_leaves_the_earlier_version(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await old(database)
    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.journal.postgres.session._fill_heads", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await PostgresJournal(database).open()
    assert version(database) == 1
    async with PostgresJournal(database) as journal:
        assert await read(journal) == before


def indexes(database: str) -> dict[str, str]:
    """Return the definition of each index."""
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'orchestrator'"
        )
        return {str(name): str(definition) for name, definition in found}


async def test_a_journal_of_version_2_gets_its_indexes_and_keeps_its_heads(database: str) -> None:
    before = await old(database)
    async with PostgresJournal(database) as journal:
        heads = {head.run_id: head async for head in journal.runs()}
    present = indexes(database)
    with psycopg.connect(database, autocommit=True) as connection:
        for name in ("run_of_agent", "run_that_waits"):
            connection.execute(f"DROP INDEX orchestrator.{name}".encode())
        connection.execute("ALTER TABLE orchestrator.run DROP COLUMN currency")
        connection.execute("UPDATE orchestrator.meta SET version = 2")
    with pytest.raises(StoreDown, match="upgraded to version 4 when it is opened to write"):
        await PostgresJournal(database, only_reads=True).open()
    async with PostgresJournal(database) as journal:
        assert await read(journal) == before
        assert {head.run_id: head async for head in journal.runs()} == heads
    assert (version(database), indexes(database)) == (4, present)


async def test_an_upgraded_journal_has_the_indexes_of_a_new_one(database: str, postgres: Cluster) -> None:
    await old(database)
    new = postgres.database()
    for address in (database, new):
        async with PostgresJournal(address):
            pass
    assert indexes(database) == indexes(new)
