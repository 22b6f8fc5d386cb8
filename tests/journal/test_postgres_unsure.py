"""What the server holds in our name though whoever asked was told that it is away: the answer got lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from orchestrator.errors import StoreDown
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.testing.journal_contract import BODY, NOTE, write
from tests.journal.relay import Relay, relayed
from tests.journal.test_postgres_cut import quiet, waiting_for_the_row

NOWHERE = ("127.0.0.1", 1)


@pytest.fixture
def relay(database: str) -> Iterator[Relay]:
    with relayed(database) as made:
        yield made


async def beats_again(journal: PostgresJournal) -> None:
    """Let a journal that was quiet look whether the server is back."""
    assert journal._handle is not None
    journal._handle.presence.beat = 0.2
    journal._handle.presence.postpone()
    journal._handle.writer._bell.put(True)  # it waits for its next heartbeat


async def owned_by(journal: PostgresJournal, owner: str | None) -> None:
    async with asyncio.timeout(30):
        while (await journal.head("run")).owner != owner:  # noqa: ASYNC110  it is the server that does it
            await asyncio.sleep(0.02)


async def test_a_run_whose_creation_was_never_answered_is_free_once_the_server_is_back(
    database: str, relay: Relay
) -> None:
    async with (
        PostgresJournal(relay.through(database), patience=0) as journal,
        PostgresJournal(database) as other,
    ):
        await quiet(journal)  # and with a grace that does not end
        await journal.create("before", "me", BODY)
        server, relay._server = relay._server, NOWHERE
        relay.cut_after("back", 0)
        with pytest.raises(StoreDown):
            await journal.create("run", "me", BODY)
        await beats_again(journal)
        await owned_by(other, "me")
        relay._server = server
        await owned_by(other, None)
        assert (await other.claim("run", "you")).epoch == 2


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
async def test_a_claim_that_lands_unanswered_is_given_back_whether_before_or_after_the_server_is_back(
    database: str, relay: Relay, *, late: bool
) -> None:
    """The claim waits in the server for the row when its connection is cut."""
    async with (
        PostgresJournal(relay.through(database), patience=0) as journal,
        PostgresJournal(database) as other,
    ):
        await quiet(journal)  # as above
        await journal.create("before", "me", BODY)
        await other.release(await other.create("run", "you", BODY))
        with psycopg.connect(database) as way:
            way.execute("SELECT FROM orchestrator.run WHERE run_id = 'run' FOR UPDATE")
            claiming = asyncio.create_task(journal.claim("run", "me"))
            await waiting_for_the_row(database, 1)
            server, relay._server = relay._server, NOWHERE
            relay.cut_clients()
            with pytest.raises(StoreDown):
                await claiming
            await beats_again(journal)
            if late:
                relay._server = server
                await waiting_for_the_row(database, 2)
            way.rollback()
        if not late:
            await owned_by(other, "me")
            relay._server = server
        await owned_by(other, None)
        lease = await journal.claim("run", "me")
        assert lease.epoch == 3
        await write(journal, lease, NOTE)
        assert (await other.head("run")).owner == "me"
