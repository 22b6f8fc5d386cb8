"""The connection is cut at each byte of a write and of its answer: the right outcome, and nothing twice (T12)."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest

from orchestrator.errors import Fenced, RunExists, RunUnknown, StoreDown
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.kernel.journal import Draft, Lease, Posted
from orchestrator.testing.journal_contract import BODY, digest, ended, write
from tests.journal.relay import Direction, Relay, relayed
from tests.postgres import Cluster

COMMIT = 80
"""Bytes at the end of a request in which the server is told to execute and to commit, and some before."""


@pytest.fixture
def relay(database: str) -> Iterator[Relay]:
    with relayed(database) as made:
        yield made


async def quiet(journal: PostgresJournal) -> None:
    """Let it beat no more, and live all the same: what is cut is to be the write."""
    assert journal._handle is not None
    journal._handle.presence.beat = 1e9
    journal._handle.presence.postpone()
    async with await psycopg.AsyncConnection.connect(journal.address.secret, autocommit=True) as other:
        await other.execute("UPDATE orchestrator.holder SET grace = 1e9")


async def sizes(relay: Relay, work: Callable[[], Awaitable[Any]]) -> dict[Direction, int]:
    """Return how many bytes some work sends and gets."""
    before = dict(relay.bytes)
    await work()
    return {"there": relay.bytes["there"] - before["there"], "back": relay.bytes["back"] - before["back"]}


def offsets(size: dict[Direction, int], step: int, fine: int = 1) -> list[tuple[Direction, int]]:
    """Return where to cut: round the commit and in the answer at every `fine`th byte, before it at every `step`th."""
    commit = max(0, size["there"] - COMMIT)
    there = [*range(0, commit, step), *range(commit, size["there"] + 1, fine)]
    back = {*range(0, size["back"] + 1, fine), *range(max(0, size["back"] - 24), size["back"], min(6, fine))}
    return [*(("there", count) for count in there), *(("back", count) for count in sorted(back))]


@pytest.mark.campaign
async def test_an_append_that_is_cut_at_any_byte_is_there_once(
    database: str, relay: Relay, campaign: Callable[[int, int], int]
) -> None:
    async with PostgresJournal(relay.through(database)) as journal:
        lease = await journal.create("run", "me", BODY)
        await quiet(journal)
        written = 0

        async def append() -> None:
            nonlocal written
            written += 1
            await write(journal, lease, Draft("note", {"n": written}))

        for _ in range(3):
            await append()
        size = await sizes(relay, append)
        assert size["there"] > COMMIT
        missed: list[tuple[Direction, int]] = []
        for direction, count in offsets(size, campaign(40, 1)):
            await append()  # on the new connection: the statement is prepared from here on
            relay.cut_after(direction, count)
            await append()
            missed += [(direction, count)] if relay.disarm() else []
            assert lease.seq == written
        records = await journal.load("run")
        assert [record.body.get("n") for record in records[1:]] == list(range(1, written + 1))
        assert {record.epoch for record in records} == {1}
        assert len(missed) <= 3, missed  # at the ends, where a number has one digit less


async def test_appends_of_several_runs_that_are_cut_together_are_each_there_once(
    database: str, relay: Relay, campaign: Callable[[int, int], int]
) -> None:
    async with PostgresJournal(relay.through(database)) as journal:
        leases = [await journal.create(f"run {number}", "me", BODY) for number in range(5)]
        await quiet(journal)
        rounds = 0

        async def append() -> None:
            nonlocal rounds
            rounds += 1
            content = f"blob {rounds}".encode()
            blobs = {digest(content): content}
            await asyncio.gather(
                *(write(journal, lease, Draft("note", {"n": rounds}), blobs=blobs) for lease in leases)
            )

        await append()
        size = await sizes(relay, append)
        for direction, count in offsets(size, 400)[:: campaign(7, 1)]:
            await append()
            relay.cut_after(direction, count)
            await append()
            relay.disarm()
        for lease in leases:
            records = await journal.load(lease.run_id)
            assert [record.body["n"] for record in records[1:]] == list(range(1, rounds + 1))
        for number in range(1, rounds + 1):
            content = f"blob {number}".encode()
            assert await journal.blob(digest(content)) == content


async def test_a_load_and_a_listing_that_are_cut_at_any_byte_return_all(
    database: str, relay: Relay, campaign: Callable[[int, int], int]
) -> None:
    """Their statements are sent together, and their answers arrive together: one may be cut between two of them."""
    async with PostgresJournal(relay.through(database)) as journal:
        lease = await journal.create("run", "me", BODY)
        await quiet(journal)
        for number in range(20):
            await write(journal, lease, Draft("note", {"n": number}), Draft("note", {}))
        records, head = await journal.load("run"), await journal.head("run")

        async def load() -> None:
            assert await journal.load("run") == records

        async def listed() -> None:
            assert [found async for found in journal.runs(order_by="tokens")] == [head]

        for work in (load, listed):
            size = await sizes(relay, work)
            for direction, count in offsets(size, campaign(150, 1), campaign(50, 1)):
                relay.cut_after(direction, count)
                await work()
                relay.disarm()
                await work()


class Life:
    """A run from its beginning until it is erased; `cut` is told what is to be done next."""

    number = 0

    async def __call__(self, journal: PostgresJournal, cut: Callable[[str], None]) -> None:
        self.number += 1
        run_id, pause = f"run {self.number}", Posted("a", "pause", {"why": "so"}, "ann")
        cut("create")
        await journal.create(run_id, "me", BODY)
        cut("post")
        assert await journal.post(run_id, pause)
        cut("post again")
        assert not await journal.post(run_id, pause)
        cut("claim")
        lease = await journal.claim(run_id, "me")
        assert lease.epoch == 2
        cut("append")
        await write(journal, lease, Draft("ended", {"reason": "none"}))
        cut("release")
        await journal.release(lease)
        cut("nothing")
        assert (await journal.head(run_id)).owner is None
        with pytest.raises(RunExists):
            await journal.create(run_id, "me", BODY)
        assert [one.id for one in await journal.inbox(run_id)] == ["a"]
        assert (await journal.head(run_id)).stuck_claims == 0
        cut("erase")
        await journal.erase(run_id)
        cut("nothing")
        with pytest.raises(RunUnknown):
            await journal.head(run_id)


@pytest.mark.campaign
async def test_every_other_write_that_is_cut_is_done_once_and_answered_right(
    database: str, relay: Relay, campaign: Callable[[int, int], int]
) -> None:
    async with PostgresJournal(relay.through(database)) as journal:
        await ended(journal, "first")
        await quiet(journal)
        life = Life()
        marks: list[tuple[str, dict[Direction, int]]] = []
        for _ in range(2):
            marks.clear()
            await life(journal, lambda what: marks.append((what, dict(relay.bytes))))
        plans: dict[str, list[tuple[Direction, int]]] = {}
        for (what, before), (_, after) in itertools.pairwise(marks):
            size: dict[Direction, int] = {
                "there": after["there"] - before["there"],
                "back": after["back"] - before["back"],
            }
            plans[what] = offsets(size, campaign(400, 5), campaign(40, 1))
        del plans["nothing"]

        def cut(what: str, turn: int) -> None:
            relay.disarm()
            if plan := plans.get(what):
                relay.cut_after(*plan[turn % len(plan)])

        for turn in range(max(map(len, plans.values()))):
            await life(journal, functools.partial(cut, turn=turn))
            relay.disarm()
        assert relay.cuts > 4 * life.number
        assert (await journal.check()).ok


async def test_a_statement_that_lands_late_writes_nothing_any_more(database: str, relay: Relay) -> None:
    async with PostgresJournal(relay.through(database)) as journal:
        lease = await journal.create("run", "me", BODY)
        await quiet(journal)
        for number in (1, 2):
            await write(journal, lease, Draft("note", {"n": number}))
        relay.keep()
        await write(journal, lease, Draft("note", {"n": 3}))
        assert relay.cuts == 1
        assert relay.deliver() > COMMIT
        await write(journal, lease, Draft("note", {"n": 4}))
        assert [record.body.get("n") for record in await journal.load("run")] == [None, 1, 2, 3, 4]


async def test_a_statement_that_lands_between_the_look_and_the_second_one_has_landed(
    database: str, relay: Relay
) -> None:
    """The first waits in the server when its connection is cut; the look finds nothing; then both want the row."""
    async with PostgresJournal(relay.through(database)) as journal:
        lease = await journal.create("run", "me", BODY)
        await quiet(journal)
        await write(journal, lease, Draft("note", {"n": 1}))
        with psycopg.connect(database) as other:
            other.execute("SELECT FROM orchestrator.run WHERE run_id = 'run' FOR UPDATE")
            writing = asyncio.create_task(write(journal, lease, Draft("note", {"n": 2})))
            await waiting_for_the_row(database, 1)
            relay.cut_clients()
            await waiting_for_the_row(database, 2)
            other.rollback()
        await writing
        assert [record.body.get("n") for record in await journal.load("run")] == [None, 1, 2]
        assert lease.seq == 2
        await write(journal, lease, Draft("note", {"n": 3}))


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what a thread does."""
    while not holds():  # noqa: ASYNC110  no thread of the relay knows of this loop
        await asyncio.sleep(0)


async def waiting_for_the_row(database: str, count: int) -> None:
    """Wait until so many statements wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as looking:
        while (await (await looking.execute(query)).fetchone()) != (count,):  # noqa: ASYNC110  as above
            await asyncio.sleep(0.01)


async def test_who_was_stolen_from_while_the_connection_was_away_is_fenced(
    database: str, relay: Relay
) -> None:
    async with (
        PostgresJournal(relay.through(database)) as journal,
        PostgresJournal(database) as other,
    ):
        lease = await journal.create("run", "me", BODY)
        await quiet(journal)
        await write(journal, lease, Draft("note", {}))
        relay.cut_after("there", 50)
        taken: list[Lease] = []

        async def steal() -> None:
            await until(lambda: relay.cuts > 0)
            taken.append(await other.claim("run", "you", steal=True))

        _, fenced = await asyncio.gather(
            steal(), write(journal, lease, Draft("note", {"n": 1})), return_exceptions=True
        )
        # Whichever came first: what landed before the claim is there and acknowledged, what came after is neither.
        records = await other.load("run")
        if fenced is None:
            assert [record.epoch for record in records] == [1, 1, 1]
        else:
            assert isinstance(fenced, Fenced)
            assert [record.epoch for record in records] == [1, 1]
        with pytest.raises(Fenced):
            await write(journal, lease, Draft("note", {"n": 2}))
        await write(other, taken[0], Draft("note", {"n": 3})) if fenced is not None else None


async def test_an_append_that_landed_before_somebody_else_claimed_is_acknowledged(
    database: str, relay: Relay
) -> None:
    """The answer is lost, the run is taken over, and only then does the writer find the server again."""
    async with (
        PostgresJournal(relay.through(database), patience=60) as journal,
        PostgresJournal(database) as other,
    ):
        lease = await journal.create("run", "me", BODY)
        await quiet(journal)
        await write(journal, lease, Draft("note", {}))
        port, relay._server = relay._server, ("127.0.0.1", 1)  # nobody answers any more
        relay.cut_after("back", 0)
        writing = asyncio.create_task(write(journal, lease, Draft("note", {"n": 1})))
        while (await other.head("run")).seq < 2:  # noqa: ASYNC110  what is waited for is in the server
            await asyncio.sleep(0.01)
        taken = await other.claim("run", "you", steal=True)
        assert taken.seq == 2
        await write(other, taken, Draft("note", {"n": 2}))
        relay._server = port
        await writing
        assert lease.seq == 2
        with pytest.raises(Fenced):
            await write(journal, lease, Draft("note", {"n": 3}))
        assert [record.epoch for record in await other.load("run")] == [1, 1, 1, 2]


async def test_a_server_that_stays_away_is_told_and_comes_back_to_the_same_journal(
    postgres: Cluster, database: str, relay: Relay
) -> None:
    async with PostgresJournal(relay.through(database), patience=0.1) as journal:
        lease = await journal.create("run", "me", BODY)
        await quiet(journal)
        port, relay._server = relay._server, ("127.0.0.1", 1)
        relay.cut_clients()
        for work in (
            lambda: write(journal, lease, Draft("note", {"n": 1})),
            lambda: journal.create("other", "me", BODY),
            lambda: journal.load("run"),
            lambda: journal.post("run", Posted("a", "pause")),
        ):
            with pytest.raises(StoreDown) as down:
                await work()
            assert postgres.password not in str(down.value)
            assert "cannot be reached" in str(down.value)
        relay._server = port
        await write(journal, lease, Draft("note", {"n": 2}))
        assert [record.body.get("n") for record in await journal.load("run")] == [None, 2]


async def test_who_no_longer_waits_for_a_server_keeps_no_thread_that_does(
    database: str, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, asked = psycopg.connect, 0

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal asked
        asked += 1
        return connect(*given, **named)

    monkeypatch.setattr(psycopg, "connect", counted)
    port, relay._server = relay._server, ("127.0.0.1", 1)
    journal = PostgresJournal(relay.through(database), patience=600)
    opening, other = asyncio.create_task(journal.open()), asyncio.create_task(journal.open())
    await until(lambda: asked > 1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    relay._server = port
    await asyncio.wait_for(other, 60)  # it needs the thread
    await journal.create("run", "me", BODY)
    await journal.close()


async def test_who_gave_up_as_it_opened_takes_no_patience_from_others(database: str, relay: Relay) -> None:
    async with PostgresJournal(relay.through(database), patience=60) as journal:
        given_up = threading.Event()
        assert journal._handle is not None
        journal._handle.close()
        journal._handle = None
        journal._open(given_up)
        given_up.set()
        lease = await journal.create("run", "me", BODY)
        port, relay._server = relay._server, ("127.0.0.1", 1)
        relay.cut_clients()
        writing = asyncio.create_task(write(journal, lease, Draft("note", {})))
        await asyncio.wait((writing,), timeout=0.3)
        relay._server = port
        await writing
        assert len(await journal.load("run")) == 2
