"""The server: stopped in the middle of work, badly set, too new, damaged, read-only, not ours to use."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from orchestrator.errors import ConfigError, Corrupt, JournalError, StoreDown, TooNew
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.kernel.journal import Draft, Posted
from orchestrator.testing.journal_contract import BODY, NOTE, digest, ended, write
from tests.journal.pooler import pooled
from tests.journal.test_postgres_cut import quiet
from tests.postgres import Cluster


def told(database: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Do something behind the journal's back."""
    with psycopg.connect(database, autocommit=True, options="-c search_path=orchestrator") as connection:
        found = connection.execute(statement.encode(), values)
        return found.fetchall() if found.description else []


# ---- stopped ----


@pytest.mark.parametrize("restarts", [1, pytest.param(4, marks=pytest.mark.campaign)])
async def test_a_server_that_is_stopped_at_once_and_restarted_loses_nothing_and_repeats_nothing(
    server: Cluster, seed: int, restarts: int, campaign: Callable[[int, int], int]
) -> None:
    chance = random.Random(seed)
    database = server.database()
    acknowledged: dict[str, int] = {}
    over = asyncio.Event()

    async def work(journal: PostgresJournal, run_id: str) -> None:
        lease = await journal.create(run_id, run_id, BODY)
        while not over.is_set():
            acknowledged[run_id] = lease.seq
            await write(journal, lease, Draft("note", {"n": lease.seq}), Draft("note", {"n": "more"}))
            if chance.random() < 0.02:
                await journal.post(run_id, Posted(str(lease.seq), "pause"))

    async with (
        PostgresJournal(database, patience=100) as one,  # a server may start slowly
        PostgresJournal(database, patience=100) as two,
    ):
        working = [
            asyncio.create_task(work(journal, f"{name} {number}"))
            for name, journal in (("one", one), ("two", two))
            for number in range(8)
        ]
        for _ in range(campaign(restarts, 30)):
            before = dict(acknowledged)
            while any(acknowledged.get(run, 0) <= before.get(run, 0) + 10 for run in {*before, "one 0"}):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.stop, "immediate")
            await asyncio.sleep(chance.uniform(0, 0.5))
            await asyncio.to_thread(server.start)
        over.set()
        await asyncio.gather(*working)
        for run_id, seq in acknowledged.items():
            records = await one.load(run_id)
            assert len(records) > seq
            assert [record.body["n"] for record in records[1::2]] == list(range(0, len(records) - 1, 2))
            assert {record.epoch for record in records} == {1}
        assert (await two.check()).ok


async def test_after_a_restart_nobody_is_dead_before_he_could_come_back(server: Cluster) -> None:
    database = server.database()
    async with (
        PostgresJournal(database) as journal,
        PostgresJournal(database) as other,
    ):
        await quiet(journal)
        await journal.create("run", "me", BODY)
        told(database, "UPDATE holder SET seen = seen - interval '1 day', grace = 600")
        for _ in range(2):
            server.restart()
            assert (await other.head("run")).owner == "me"


async def test_a_run_that_was_given_back_while_the_server_was_away_is_free_once_it_is_back(
    server: Cluster,
) -> None:
    database = server.database()
    async with (
        PostgresJournal(database, patience=0) as journal,
        PostgresJournal(database) as other,
    ):
        lease = await journal.create("run", "me", BODY)
        server.stop("immediate")
        with pytest.raises(StoreDown):
            await write(journal, lease, NOTE)
        await journal.release(lease)
        server.start()
        while (await other.head("run")).owner is not None:  # noqa: ASYNC110  it is the server's clock that runs
            await asyncio.sleep(0.05)
        assert (await other.claim("run", "you")).epoch == 2


# ---- badly set ----

LOSSY = [("fsync", "off"), ("full_page_writes", "off"), ("synchronous_commit", "off")]


@pytest.mark.parametrize(("name", "value"), LOSSY)
async def test_a_server_that_may_lose_what_it_acknowledged_is_refused(
    server: Cluster, name: str, value: str
) -> None:
    database = server.database()
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET {name} = {value}".encode())
    kept = server._settings.pop(name)  # what stands on the command line goes before
    try:
        server.restart("fast")
        with pytest.raises(StoreDown, match=f"{name}=off"):
            await PostgresJournal(database).open()
        assert told(database, "SELECT count(*) FROM pg_namespace WHERE nspname = 'orchestrator'") == [(0,)]
    finally:
        server._settings[name] = kept
        server.restart("fast")
    async with PostgresJournal(database) as journal:
        await journal.create("run", "me", BODY)


async def test_it_is_looked_at_again_with_each_connection(server: Cluster) -> None:
    database = server.database()
    async with PostgresJournal(database) as journal:
        lease = await journal.create("run", "me", BODY)
        told(database, "ALTER ROLE owner SET synchronous_commit = off")
        try:
            server.restart()
            with pytest.raises(StoreDown, match="synchronous_commit=off"):
                await write(journal, lease, NOTE)
        finally:
            told(database, "ALTER ROLE owner RESET synchronous_commit")
        await write(journal, lease, NOTE)


# ---- what is there ----


async def test_a_newer_journal_is_refused_and_left_alone(database: str) -> None:
    async with PostgresJournal(database) as journal:
        await ended(journal, "run")
    told(database, "UPDATE meta SET version = 5")
    with pytest.raises(TooNew, match="version 5"):
        await PostgresJournal(database).open()
    told(database, "UPDATE meta SET version = 4")
    async with PostgresJournal(database) as journal:
        assert (await journal.head("run")).status == "ended"


async def test_many_who_make_the_tables_at_once_make_them_once(database: str) -> None:
    journals = [PostgresJournal(database) for _ in range(8)]
    await asyncio.gather(*(journal.create(f"run {n}", "me", BODY) for n, journal in enumerate(journals)))
    assert len([head async for head in journals[0].runs()]) == 8
    for journal in journals:
        await journal.close()


async def test_two_schemas_are_two_journals(database: str) -> None:
    name = 'a "quoted" name'
    async with PostgresJournal(database, schema=name) as one, PostgresJournal(database) as two:
        await one.create("run", "me", BODY)
        assert [head.run_id async for head in two.runs()] == []
        await two.create("run", "me", BODY)
    async with PostgresJournal(database, schema=name) as one:
        assert (await one.head("run")).owner is None


DAMAGE = {
    "a record's body": "UPDATE record SET body = '[{},{}]' WHERE seq = 2",
    "a record's kind": "UPDATE record SET kind = 'note,done' WHERE seq = 2",
    "the number of kinds": "UPDATE record SET kind = 'note' WHERE seq = 2",
    "a record's epoch": "UPDATE record SET epoch = 0 WHERE seq = 2",
    "an append that is gone": "DELETE FROM record WHERE seq = 2",
    "the last append": "DELETE FROM record WHERE seq = 3",
    "an append too many": "INSERT INTO record SELECT run, 4, epoch, kind, body, hash FROM record WHERE seq = 3",
    "the last hash": "UPDATE run SET last_hash = decode(repeat('00', 32), 'hex')",
    "the status": "UPDATE run SET status = 'ended'",
    "the graph": "UPDATE run SET graph = 'another'",
}


CHANGED = "UPDATE run SET {} WHERE run_id = 'run'"


@pytest.mark.parametrize("change", ["state = 'work'", "tokens = 3", "outcome = 'completed'", "cost = 1"])
async def test_a_check_finds_a_head_that_its_records_do_not_give(database: str, change: str) -> None:
    async with PostgresJournal(database) as journal:
        await ended(journal, "run")
        await ended(journal, "other")
        told(database, CHANGED.format(change))
        (problem,) = (await journal.check()).problems
        assert problem.startswith("run 'run': its row and its records do not agree")


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE)
async def test_what_is_not_what_was_written_is_not_used(database: str, statement: str) -> None:
    async with PostgresJournal(database) as journal:
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, NOTE, NOTE)
        await write(journal, lease, NOTE)
        await journal.create("other", "me", BODY)
        told(
            database,
            f"{statement}" + (" AND " if "WHERE" in statement else " WHERE ") + _of("run", statement),
        )
        with pytest.raises(Corrupt):
            await journal.load("run")
        assert len(await journal.load("other")) == 1
        health = await journal.check()
        assert (health.ok, len(health.problems), health.runs) == (False, 1, 2)


def _of(run_id: str, statement: str) -> str:
    if statement.startswith("UPDATE run"):
        return f"run_id = '{run_id}'"
    return f"run = (SELECT id FROM run WHERE run_id = '{run_id}')"  # noqa: S608


async def test_damaged_blobs_and_requests_are_found(database: str) -> None:
    async with PostgresJournal(database) as journal:
        lease = await journal.create("run", "me", BODY)
        for content in (b"one", b"two"):
            await write(journal, lease, NOTE, blobs={digest(content): content})
        for number in (1, 2):
            await journal.post("run", Posted(f"{number}", "pause"))
        told(database, "UPDATE blob SET content = 'three' WHERE content = 'one'")
        told(database, "DELETE FROM blob WHERE content = 'two'")
        told(database, "DELETE FROM request WHERE number = 1")
        for content in (b"one", b"two"):
            with pytest.raises(Corrupt):
                await journal.blob(digest(content))
        with pytest.raises(Corrupt):
            await journal.inbox("run")
        assert len((await journal.check()).problems) == 3


# ---- who may, and who only looks ----


async def test_who_only_reads_writes_nothing_and_makes_nothing(database: str) -> None:
    reading = PostgresJournal(database, only_reads=True)
    with pytest.raises(StoreDown, match="there is no journal"):
        await reading.load("run")
    async with PostgresJournal(database) as journal:
        await ended(journal, "run")
    assert len(await reading.load("run")) == 2
    for asked in (
        reading.create("other", "me", BODY),
        reading.claim("run", "me"),
        reading.post("run", Posted("a", "pause")),
        reading.erase("run"),
        reading.prune(keep_last=0),
    ):
        with pytest.raises(StoreDown, match="was opened read-only"):
            await asked
    await reading.close()
    assert told(database, "SELECT count(*) FROM holder") == [(0,)]


async def test_a_read_only_server_says_so(database: str) -> None:
    async with PostgresJournal(database) as journal:
        await ended(journal, "run")
    standing_by = f"{database}?options=-cdefault_transaction_read_only%3Don"
    async with PostgresJournal(standing_by) as journal:
        assert len(await journal.load("run")) == 2
        with pytest.raises(StoreDown, match="is read-only"):
            await journal.claim("run", "me")


async def test_who_came_to_a_server_that_is_read_only_comes_to_the_next_one_by_a_new_connection(
    postgres: Cluster, database: str
) -> None:
    """After a failover an address may lead to the server that was before it, as long as the old name is known."""

    def becomes(read_only: str) -> None:
        name = database.rpartition("/")[2]
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute(
                f"ALTER DATABASE {name} SET default_transaction_read_only = {read_only}".encode()
            )

    everybody = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with PostgresJournal(database) as journal, PostgresJournal(database) as posting:
        lease = await journal.create("run", "me", BODY)
        await posting.open()
        becomes("on")
        told(database, everybody)
        with pytest.raises(StoreDown, match="is read-only"):
            await write(journal, lease, NOTE)
        with pytest.raises(StoreDown, match="is read-only"):
            await posting.post("run", Posted("a", "pause"))
        becomes("off")
        await write(journal, lease, NOTE)
        assert await posting.post("run", Posted("a", "pause"))
        assert len(await journal.load("run")) == 2


async def test_a_name_that_cannot_be_found_is_waited_for_once_it_was_known(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async with PostgresJournal(database, patience=30) as journal:
        lease = await journal.create("run", "me", BODY)
        connect = psycopg.connect

        def unknown(*given: Any, **named: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked < 3:
                raise psycopg.OperationalError(
                    "failed to resolve host 'db.example': [Errno -3] Temporary failure"
                )
            return connect(*given, **named)

        monkeypatch.setattr(psycopg, "connect", unknown)
        assert journal._handle is not None
        journal._handle._session._drop()
        await write(journal, lease, NOTE)
        assert asked == 3
        asked = 0
        with pytest.raises(StoreDown, match="failed to resolve host"):
            await PostgresJournal(database).open()
        assert asked == 1


@pytest.mark.parametrize(
    ("option", "said"), [("sslmode=require", "does not support SSL"), ("sslmode=odd", "odd")]
)
async def test_what_no_waiting_makes_better_is_told_at_once(database: str, option: str, said: str) -> None:
    began = time.monotonic()
    with pytest.raises(StoreDown, match=said):
        await PostgresJournal(f"{database}?{option}", patience=60).open()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"name": "w1"}, marks=pytest.mark.campaign),
        pytest.param({"only_reads": True}, marks=pytest.mark.campaign),
    ],
)
async def test_a_pool_that_keeps_no_session_for_each_client_is_refused_in_a_sentence(
    postgres: Cluster, database: str, options: dict[str, Any]
) -> None:
    """Locks, prepared statements and settings are a session's: in another's turn they are gone, or somebody else's."""
    async with PostgresJournal(database) as journal:
        await ended(journal, "run")
    with pooled(postgres, database) as pool:
        with psycopg.connect(pool.dsn) as connection:
            assert connection.execute("SELECT 7").fetchone() == (7,)
        with pytest.raises(StoreDown, match="pool_mode=session"):
            await PostgresJournal(pool.dsn, **options).open()
    assert told(database, "SELECT count(*) FROM holder") == [(0,)]


async def test_a_role_without_rights_hears_what_it_lacks(server: Cluster) -> None:
    database = server.database()
    told(database, "CREATE ROLE guest LOGIN PASSWORD 'guest'")
    guest = database.replace(f"{server.user}:{server.password}", "guest:guest")
    with pytest.raises(StoreDown, match="may not be used by this role"):
        await PostgresJournal(guest).open()
    async with PostgresJournal(database) as journal:
        await journal.create("run", "me", BODY)
    with pytest.raises(JournalError):
        await PostgresJournal(guest).open()


@pytest.mark.parametrize("bad", [{"ttl": 0}, {"ttl": -1}, {"patience": -1}, {"queue": 0}])
def test_settings_that_cannot_work_are_refused_at_once(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PostgresJournal("postgresql://localhost/db", **bad)


@pytest.mark.parametrize("bad", ["journal.db", "mysql://localhost/db", ""])
def test_what_is_no_address_of_a_database_is_refused_at_once(bad: str) -> None:
    with pytest.raises(ConfigError):
        PostgresJournal(bad)


async def test_a_closed_journal_says_so_and_opens_anew_when_asked(database: str) -> None:
    journal = PostgresJournal(database)
    lease = await journal.create("run", "me", BODY)
    await journal.close()
    await journal.close()
    with pytest.raises(StoreDown, match="closed"):
        journal.append(lease, [NOTE])
    with pytest.raises(StoreDown, match="closed"):
        await journal.load("run")
    await journal.reopen()
    lease = await journal.claim("run", "me")
    await write(journal, lease, NOTE)
    await journal.close()
