"""What a call of a journal sends to PostgreSQL, by the messages that its driver exchanges with the server."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.pq import Trace

from orchestrator.errors import RunUnknown
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.postgres.session import PostgresSession
from orchestrator.kernel.journal import Draft, Posted, RunHead
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.testing import ScriptedLLM
from orchestrator.testing.journal_contract import BODY, NOTE, digest, write
from orchestrator.tools.spec import tool
from tests.benchmarks.stores import Noting


def writing(journal: PostgresJournal) -> PostgresSession:
    """Return the session that writes, without heartbeats from now on."""
    assert journal._handle is not None
    journal._handle.presence.beat = 1e9
    journal._handle.presence.postpone()
    return journal._handle.writer._session


@contextmanager
def messages(session: PostgresSession) -> Iterator[Counter[str]]:
    """Count the messages of a session by their names, until the block ends; its thread must be idle at both ends."""
    counted: Counter[str] = Counter()
    connection = session._connected().pgconn
    with tempfile.TemporaryFile("w+") as log:
        connection.trace(log.fileno())
        connection.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS | Trace.REGRESS_MODE)
        try:
            yield counted
        finally:
            connection.untrace()
            log.seek(0)
            counted.update(line.split("\t")[2].strip() for line in log if line[:1] in "FB" and "\t" in line)


async def test_an_append_is_one_round_trip_whatever_it_changes(database: str) -> None:
    """The statement is prepared once: neither numbers of another size nor a missing value prepare it again."""
    changes: list[list[Draft]] = [
        [NOTE],
        [Draft("transition", {"dest": "b", "at": 1.5}), Draft("context", {"tokens": 2**40})],
        [Draft("context", {"spent.usage": {"input_tokens": 1, "cost_micros": 2**33}}), NOTE, NOTE],
        [Draft("parked", {"reason": "approval", "tools": ["pay"], "fingerprint": "f2"})],
        [Draft("resumed", {"agent": "sales", "agent_version": "2"})],
    ]
    async with PostgresJournal(database) as journal:
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, NOTE)
        with messages(writing(journal)) as sent:
            for drafts in changes:
                await write(journal, lease, *drafts)
        assert (sent["Sync"], sent["ReadyForQuery"], sent["Parse"]) == (len(changes),) * 2 + (0,), sent
        head = await journal.head("run")
        assert (head.seq, head.state, head.state_since, head.status, head.agent) == (
            9,
            "b",
            1.5,
            "open",
            "sales",
        )
        assert (head.fingerprint, head.tokens, head.cost_micros) == ("f2", 1, 2**33)


@pytest.mark.parametrize("runs", [1, 2, 50])
async def test_appends_that_wait_together_are_one_round_trip(database: str, runs: int) -> None:
    async with PostgresJournal(database) as journal:
        leases = [await journal.create(f"run {number}", "me", BODY) for number in range(runs)]

        async def all_at_once() -> None:
            waiting = [journal.append(lease, [NOTE]) for lease in leases]
            waiting += [journal.append(lease, [Draft("note", {"n": 1}), NOTE]) for lease in leases]
            await asyncio.gather(*[one for one in waiting if one is not None])

        await all_at_once()
        await all_at_once()
        with messages(writing(journal)) as sent:
            await all_at_once()
        # The thread that writes may take what is queued in two parts.
        assert 1 <= sent["Sync"] <= 2, sent
        assert sent["ReadyForQuery"] == sent["Sync"]
        assert {(await journal.head(lease.run_id)).seq for lease in leases} == {9}


async def test_an_append_with_blobs_is_one_round_trip(database: str) -> None:
    async with PostgresJournal(database) as journal:
        lease = await journal.create("run", "me", BODY)
        contents = [b"content %d" % number for number in range(5)]
        for content in contents[:2]:
            await write(journal, lease, NOTE, blobs={digest(content): content})
        with messages(writing(journal)) as sent:
            await write(journal, lease, NOTE, NOTE, blobs={digest(one): one for one in contents})
        assert (sent["Sync"], sent["Parse"]) == (1, 0), sent
        assert [await journal.blob(digest(one)) for one in contents] == contents


async def test_a_turn_of_an_agent_takes_a_round_trip_for_each_append(database: str) -> None:
    @tool(effect="idempotent")
    async def note(number: int) -> str:
        """Take note."""
        return f"noted {number}"

    async with PostgresJournal(database) as journal:

        async def run(turns: int) -> Counter[str]:
            agent = Agent(
                Noting(turns), tools=[note], limits=Limits(max_iterations=0), journal=journal, observers=()
            )
            with messages(writing(journal)) as sent:
                (await agent.run("go")).raise_for_outcome()
            return sent

        await Agent(ScriptedLLM(["Hello."]), journal=journal, observers=()).run("Say hello.")
        await run(2)
        short, long = await run(5), await run(15)
        assert long["Sync"] - short["Sync"] == 10 * 2, "the intent and the result of each of ten calls"
        assert long["Parse"] == 0, "every statement is prepared"


def reading(journal: PostgresJournal) -> PostgresSession:
    """Return the session that reads."""
    assert journal._handle is not None
    return journal._handle._reader


async def test_each_read_is_one_round_trip(database: str) -> None:
    async with PostgresJournal(database) as journal:
        lease = await journal.create("run", "me", {**BODY, "conversation_id": "talk"})
        await write(journal, lease, NOTE, NOTE)
        await journal.post("run", Posted("r1", "approve", {}))
        reads: dict[str, Callable[[], Awaitable[Any]]] = {
            "load": lambda: journal.load("run"),
            "head": lambda: journal.head("run"),
            "newest": lambda: journal.newest("talk"),
            "inbox": lambda: journal.inbox("run"),
            "news": lambda: journal.news(0),
            "runs": lambda: listed(journal),
            "count": journal.count,
            "names": journal.names,
            "agents": journal.agents,
            "excerpts": lambda: journal.excerpts(["run"]),
            "version": journal.version,
        }
        for name, read in reads.items():
            await read()
            with messages(reading(journal)) as sent:
                await read()
            assert (sent["Sync"], sent["ReadyForQuery"]) == (1, 1), (name, sent)


async def listed(journal: PostgresJournal) -> list[RunHead]:
    """Return every run, by its tokens."""
    return [head async for head in journal.runs(order_by="tokens")]


async def test_an_unknown_run_leaves_the_session_as_it_was(database: str) -> None:
    async with PostgresJournal(database) as journal:
        await journal.create("run", "me", BODY)
        for _ in range(3):
            with pytest.raises(RunUnknown):
                await journal.load("no")
            assert len(await journal.load("run")) == 1


async def test_statements_that_are_sent_together_see_one_moment(database: str) -> None:
    """An append that is committed between two statements of a load is seen by both or by none."""
    lock, what = 77, b"SELECT count(*) FROM record"
    async with PostgresJournal(database) as journal:
        lease = await journal.create("run", "me", BODY)

        def read(db: psycopg.Connection[Any]) -> list[Any]:
            with db.pipeline():
                first = db.execute(what)
                db.execute(b"SELECT pg_advisory_lock(%s)", (lock,))
                second = db.execute(what)
                db.execute(b"SELECT pg_advisory_unlock(%s)", (lock,))
            return [first.fetchone(), second.fetchone()]

        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
            await other.execute("SELECT pg_advisory_lock(%s)", (lock,))
            both = asyncio.create_task(asyncio.to_thread(reading(journal).run, read))
            waits = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s"
            while await (await other.execute(waits, (lock,))).fetchone() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await write(journal, lease, NOTE)
            await other.execute("SELECT pg_advisory_unlock(%s)", (lock,))
        assert await both == [(1,), (1,)]
        assert len(await journal.load("run")) == 2


async def test_a_run_is_loaded_while_it_grows(database: str) -> None:
    async with PostgresJournal(database) as journal:
        lease = await journal.create("run", "me", BODY)

        async def grow() -> None:
            for _ in range(100):
                await write(journal, lease, NOTE, NOTE)

        growing = asyncio.create_task(grow())
        lengths = [len(await journal.load("run"))]
        while not growing.done():
            lengths.append(len(await journal.load("run")))
        await growing
        assert lengths == sorted(lengths)
        assert {length % 2 for length in lengths} == {1}, "no append is seen in part"
