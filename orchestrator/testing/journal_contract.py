"""The behaviour that every store of records must have, as tests that a store's test class inherits.

    class TestMyJournal(JournalContract):
        def store(self, folder: Path) -> Journal:
            return MyJournal(folder / "journal")

It needs only pytest: each test runs its own event loop. Two stores in one folder must be two handles of the same
data. A store that lives in one process returns the same object again and implements `die` to end its owners.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Unpack

import pytest

from orchestrator.errors import ConfigError, Corrupt, Fenced, Held, JournalError, RunExists, RunUnknown
from orchestrator.kernel.journal import (
    EXCERPT,
    EXCERPT_BYTES,
    Draft,
    Journal,
    Lease,
    Posted,
    RunConditions,
    RunHead,
    write_records,
)

write = write_records
"""Short name for the many tests of a journal."""

BODY: dict[str, Any] = {
    "graph": "llm_loop",
    "fingerprint": "f" * 64,
    "at": 1000.5,
    "parent_run_id": "parent",
    "conversation_id": "talk",
    "schema": 1,
}
NOTE = Draft("note", {"text": "größer ☃", "list": [1, 2.5, None, True], "deep": {"a": {"b": [{}]}}})
PARKED = Draft("parked", {"reason": "approval"})
ENDED = Draft("ended", {"reason": "max_iterations"})


def in_a_loop(
    test: Callable[[Any, Journal], Coroutine[Any, Any, None]],
) -> Callable[[Any, Path], None]:
    """Run a test with its own store in its own event loop."""

    @functools.wraps(test)
    def run(self: JournalCase, tmp_path: Path) -> None:
        async def inside() -> None:
            self.folder = tmp_path
            journal = self.again()
            try:
                await test(self, journal)
            finally:
                await journal.close()

        asyncio.run(inside())

    del run.__wrapped__  # pytest would read its signature
    return run


async def ended(journal: Journal, run_id: str, *, blobs: Sequence[bytes] = ()) -> None:
    """Create a run that has ended and was released."""
    lease = await journal.create(run_id, "me", BODY)
    await write(journal, lease, ENDED, blobs={digest(content): content for content in blobs})
    await journal.release(lease)


def digest(content: bytes) -> str:
    """Return the name of a blob."""
    return hashlib.sha256(content).hexdigest()


async def kinds(journal: Journal, run_id: str) -> list[str]:
    """Return the kinds of a run's records."""
    return [record.kind for record in await journal.load(run_id)]


class JournalCase:
    """A store for each test. Override `store`, and `die` if closing a store does not end its owners."""

    folder: Path

    def store(self, folder: Path) -> Journal:
        """Return a store; a second one for the same folder holds the same data."""
        raise NotImplementedError

    def again(self) -> Journal:
        """Return another handle of this test's data."""
        return self.store(self.folder)

    async def die(self, journal: Journal, owner: str) -> None:  # noqa: ARG002  for overriding methods
        """End an owner of runs through `journal`."""
        await journal.close()


# ruff: noqa: S101, PLR2004  a module of tests: asserts, names that are sentences, numbers that are expected


async def listed(journal: Journal, **filters: Unpack[RunConditions]) -> list[str]:
    """Return the ids of the runs that meet every condition."""
    return [head.run_id async for head in journal.runs(**filters)]


def named(head: RunHead | None) -> str | None:
    """Return the run id of a head."""
    return None if head is None else head.run_id


def spent(
    input_tokens: int, output_tokens: int, cost: int | None = None, below: Any = None
) -> dict[str, Any]:
    """Return what a run of the loop has used, as its context is recorded."""
    usage = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cost_micros": cost}
    return {"usage": usage, "below": below}


def move(state: str, at: float, **more: Any) -> Draft:
    """Return the record of a transition."""
    return Draft("transition", {"dest": state, "at": at, **more})


async def filled(journal: Journal) -> None:
    """Create five runs that differ in all that a listing can ask for; each later one is updated later."""
    for number, (agent, team, outcome) in enumerate(
        (("a", "x", ""), ("a", "y", ""), ("b", "x", ""), ("b", "y", "failed"), ("b", "y", "completed"))
    ):
        body = {"graph": f"g{number % 2}", "agent": agent, "tags": {"team": team, "n": str(number)}}
        lease = await journal.create(f"r{number}", "me", body)
        used = Draft("context", {"spent": spent(number * 10, 0, None if number < 2 else 9 - number)})
        if number:
            await write(journal, lease, move(f"s{number % 2}", 10.0 * (5 - number)), used)
        if number == 0:
            await write(journal, lease, Draft("parked", {"reason": "approval", "tools": ["book", "pay"]}))
        if outcome:
            await write(journal, lease, Draft("ended", {"outcome": outcome, "reason": f"why {outcome}"}))
        await asyncio.sleep(0.002)


CONDITIONS: list[tuple[RunConditions, list[str]]] = [
    ({"agent": "a"}, ["r0", "r1"]),
    ({"agent": "a", "graph": "g1"}, ["r1"]),
    ({"state": "s1"}, ["r1", "r3"]),
    ({"state": ""}, ["r0"]),
    ({"outcome": "failed"}, ["r3"]),
    ({"reason": "why completed"}, ["r4"]),
    ({"tags": {"team": "x"}}, ["r0", "r2"]),
    ({"tags": {"team": "y", "n": "3"}}, ["r3"]),
    ({"tags": {"team": "z"}}, []),
    ({"waiting": True}, ["r0"]),
    ({"waiting": False, "status": "open"}, ["r1", "r2"]),
    ({"waiting": "pay"}, ["r0"]),
    ({"waiting": "boo"}, []),
    ({"older_than": 1.0}, []),
    ({"older_than": 1e12, "limit": 2}, ["r0", "r1"]),
    ({"started_since": 1.0, "started_before": 1e12}, ["r0", "r1", "r2", "r3", "r4"]),
    ({"started_since": 1e12}, []),
    ({"started_before": 1.0}, []),
    ({"search": "R3"}, ["r3"]),
    ({"search": "r"}, ["r0", "r1", "r2", "r3", "r4"]),
    ({"search": "PAY"}, ["r0"]),
    ({"search": "why fail"}, ["r3"]),
    ({"search": "fail complete"}, []),
    ({"search": "r_"}, []),
    ({"search": "503", "hits": {"503": ["r1", "gone", 'r"']}}, ["r1"]),
    ({"search": "503 a", "hits": {"503": ["r1", "r4"]}}, ["r1", "r4"]),
    ({"search": "r3", "hits": {"r3": ["r0"], "r4": ["r4"]}, "descending": True}, ["r3", "r0"]),
    ({"run_ids": ["r3", "gone", 'r"', "r1"]}, ["r1", "r3"]),
    ({"run_ids": ["r3", "r1"], "agent": "b", "order_by": "state_since"}, ["r3"]),
    ({"run_ids": []}, []),
    ({"search": "%"}, []),
    ({"search": "!"}, []),
    ({"search": "\0"}, ["r0", "r1", "r2", "r3", "r4"]),
    ({"search": " ", "agent": "a"}, ["r0", "r1"]),
    ({"search": '"team":"y"', "order_by": "created", "descending": True}, ["r4", "r3", "r1"]),
    ({"status": "ended", "agent": "b", "descending": True}, ["r4", "r3"]),
    ({"agent": "a", "offset": 1}, ["r1"]),
    ({"offset": 3}, ["r3", "r4"]),
    ({"offset": 1, "limit": 2, "descending": True}, ["r3", "r2"]),
    ({"offset": 9}, []),
    ({"status": None, "agent": None, "limit": None}, ["r0", "r1", "r2", "r3", "r4"]),
]

ORDERS = {
    "created": ["r0", "r1", "r2", "r3", "r4"],
    "updated": ["r0", "r1", "r2", "r3", "r4"],
    "state_since": ["r4", "r3", "r2", "r1", "r0"],
    "tokens": ["r0", "r1", "r2", "r3", "r4"],
    "cost": ["r0", "r1", "r4", "r3", "r2"],
}


class ListingContract(JournalCase):
    """The tests."""

    @in_a_loop
    async def test_the_counts_are_those_of_the_listing(self, journal: Journal) -> None:
        await filled(journal)
        await journal.create("e", "me", {"graph": "engine"})
        counts = await journal.count()
        assert (counts.total, counts.open, counts.parked, counts.waiting) == (5, 2, 1, 1)
        assert {name: count for name, count in counts.outcomes.items() if count} == {
            "failed": 1,
            "completed": 1,
        }
        some = await journal.count(agent="b", tags={"team": "y"}, order_by="tokens", limit=1)
        assert (some.total, some.outcomes["failed"]) == (2, 1)
        assert await journal.names() == [("g0", "a"), ("g0", "b"), ("g1", "a"), ("g1", "b")]
        with pytest.raises(ConfigError):
            await journal.count(order_by="newest", colour="red")  # type: ignore[call-arg]

    @in_a_loop
    async def test_the_statistics_of_agents_are_those_of_their_own_runs(self, journal: Journal) -> None:
        await filled(journal)
        await journal.create("e", "me", {"graph": "engine", "agent": "a"})
        await journal.create("none", "me", {"graph": "g0"})
        body = {"graph": "g0", "agent": "b", "agent_version": "2", "currency": "EUR"}
        lease = await journal.create("newer", "me", body)
        below = {"input_tokens": 900, "output_tokens": 0, "cost_micros": 900}
        await write(journal, lease, Draft("context", {"spent": spent(5, 1, 7, below)}))
        found = {one.agent: one for one in await journal.agents()}
        assert sorted(found) == ["a", "b"]
        a, b = found["a"], found["b"]
        assert (a.counts.total, a.counts.waiting, a.counts.outcomes["failed"]) == (2, 1, 0)
        assert (a.tokens, a.counted, a.costs) == (10, 1, ())
        assert (a.p50, a.p95) == (None, None)
        assert (b.counts.total, b.counts.outcomes["completed"], b.counts.outcomes["failed"]) == (4, 1, 1)
        assert (b.tokens, b.counted, b.costs) == (96, 4, (("", 18, 3), ("EUR", 7, 1)))
        heads = [head async for head in journal.runs(agent="b", status="ended")]
        lasted = sorted(head.updated_at - head.created_at for head in heads)
        shortest, longest = lasted
        assert b.p50 == pytest.approx((shortest + longest) / 2)
        assert b.p95 == pytest.approx(shortest + 0.95 * (longest - shortest))
        versions = {one.version: one for one in await journal.agents(by_version=True, agent="b")}
        assert {version: one.counts.total for version, one in versions.items()} == {"": 3, "2": 1}
        assert versions["2"].costs == (("EUR", 7, 1),)
        newer = await journal.head("newer")
        assert (newer.currency, newer.cost_micros) == ("EUR", 7)
        assert versions["2"].first == versions["2"].last == newer.created_at
        assert [one.counts.total for one in await journal.agents(tags={"team": "x"}, limit=1)] == [1, 1]
        assert await journal.agents(started_since=1e12) == []
        with pytest.raises(ConfigError):
            await journal.agents(colour="red")  # type: ignore[call-arg]

    @in_a_loop
    async def test_excerpts_have_the_first_and_the_last_appends_of_each_run(self, journal: Journal) -> None:
        lease = await journal.create("long", "me", BODY)
        for number in range(EXCERPT + 3):
            await write(journal, lease, Draft("note", {"number": number}), NOTE)
        await write(journal, lease, Draft("note", {"text": "x" * EXCERPT_BYTES}))
        await journal.create("short", "me", BODY)
        found = await journal.excerpts(["short", "unknown", "long"])
        records = [Draft(record.kind, record.body) for record in await journal.load("long")]
        last = 1 + 2 * (EXCERPT - 1)  # with the append that is too long for an excerpt
        assert found == {"short": records[:1], "long": [records[0], *records[-last:-1]]}
        assert await journal.excerpts([]) == {}

    @in_a_loop
    async def test_the_version_changes_with_every_change(self, journal: Journal) -> None:
        lease = await journal.create("r", "me", BODY)
        before = await journal.version()
        await write(journal, lease, NOTE)
        written = await journal.version()
        assert written != before
        await journal.post("r", Posted("a", "cancel"))
        posted = await journal.version()
        assert posted != written
        await journal.release(lease)
        assert await journal.version() != posted

    @in_a_loop
    async def test_the_head_says_what_the_records_say(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        head = await journal.head("run")
        assert (head.graph, head.fingerprint, head.created_at) == ("llm_loop", "f" * 64, 1000.5)
        assert (head.parent_run_id, head.conversation_id) == ("parent", "talk")
        assert (head.status, head.reason, head.seq, head.epoch) == ("open", "", 0, 1)
        await write(journal, lease, NOTE, PARKED)
        head = await journal.head("run")
        assert (head.status, head.reason, head.seq) == ("parked", "approval", 2)
        await write(journal, lease, NOTE)
        assert (await journal.head("run")).status == "open"
        await write(journal, lease, NOTE, ENDED)
        head = await journal.head("run")
        assert (head.status, head.reason) == ("ended", "max_iterations")

    @in_a_loop
    async def test_the_head_has_agent_tags_state_and_usage_of_the_records(self, journal: Journal) -> None:
        about = {"agent": "support", "agent_version": "2", "tags": {"team": "a", "tier": "gold"}}
        lease = await journal.create("run", "me", {**BODY, **about, "context": {"spent": spent(0, 0)}})
        head = await journal.head("run")
        assert (head.agent, head.agent_version, dict(head.tags)) == ("support", "2", about["tags"])
        assert (head.state, head.state_since, head.tokens, head.cost_micros) == ("", None, 0, None)
        await write(journal, lease, move("await_llm", 5.0), Draft("context", {"spent": spent(40, 2, cost=7)}))
        await write(journal, lease, NOTE, move("await_llm", 6.0, internal=True))
        head = await journal.head("run")
        assert (head.state, head.state_since, head.tokens, head.cost_micros) == ("await_llm", 5.0, 42, 7)
        below = {"usage": {"input_tokens": 100, "output_tokens": 8, "cost_micros": 5}}
        await write(
            journal, lease, Draft("resumed", {"context": {"spent": spent(40, 2, cost=7, below=below)}})
        )
        await write(journal, lease, move("work", 7.0), move("wait", 8.0))
        head = await self.again().head("run")
        assert (head.state, head.state_since, head.tokens, head.cost_micros) == ("wait", 8.0, 150, 12)
        await write(
            journal, lease, Draft("recovered", {"state": "idle", "at": 9.0, "context": {"tokens": 3}})
        )
        head = await journal.head("run")
        assert (head.state, head.state_since, head.tokens, head.cost_micros) == ("idle", 9.0, 111, 5)

    @in_a_loop
    async def test_the_usage_of_a_run_and_of_its_child_runs_is_written_apart(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", {**BODY, "context": {"spent": spent(0, 0)}})
        changes: list[tuple[dict[str, Any], tuple[int, int | None]]] = [
            ({"spent.usage": {"input_tokens": 40, "output_tokens": 2}}, (42, None)),
            ({"spent.below": {"usage": {"input_tokens": 100, "cost_micros": 9}}}, (142, 9)),
            ({"spent.seconds": 1.5}, (142, 9)),
            ({"spent.usage": {"input_tokens": 50, "cost_micros": 4}}, (150, 13)),
            ({"spent.below": {"usage": {}}}, (50, 4)),
        ]
        for change, expected in changes:
            await write(journal, lease, Draft("context", change))
            head = await journal.head("run")
            assert (head.tokens, head.cost_micros) == expected, change

    @in_a_loop
    async def test_the_head_has_what_a_parked_run_waits_for_and_the_outcome_of_an_ended_one(
        self, journal: Journal
    ) -> None:
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, Draft("parked", {"reason": "approval", "tools": ["book", "pay"]}))
        head = await journal.head("run")
        assert (head.status, head.reason, head.waiting, head.outcome) == (
            "parked",
            "approval",
            "book, pay",
            "",
        )
        await write(journal, lease, Draft("ended", {"outcome": "partial", "reason": "tokens"}))
        head = await journal.head("run")
        assert (head.status, head.reason, head.waiting, head.outcome) == ("ended", "tokens", "", "partial")
        await write(journal, lease, NOTE)
        head = await journal.head("run")
        assert (head.status, head.reason, head.waiting, head.outcome) == ("open", "", "", "")

    @in_a_loop
    async def test_a_context_of_any_other_form_leaves_the_usage_unknown(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        odd = ({"usage": "much"}, {"spent": 3}, {"spent": {"usage": None}}, {"tokens": "3"}, {"tokens": True})
        for context in odd:
            await write(journal, lease, Draft("context", context))
        assert (await journal.head("run")).tokens is None

    @in_a_loop
    async def test_runs_are_found_by_every_condition(self, journal: Journal) -> None:
        await filled(journal)
        other = self.again()
        for conditions, expected in CONDITIONS:
            assert await listed(other, **conditions) == expected, conditions
        await other.close()

    @in_a_loop
    async def test_runs_are_listed_in_every_order_page_by_page(self, journal: Journal) -> None:
        await filled(journal)
        for order, expected in ORDERS.items():
            for descending in (False, True):
                whole = expected[::-1] if descending else expected
                assert await listed(journal, order_by=order, descending=descending) == whole, order
                pages: list[str] = []
                while True:
                    after = pages[-1] if pages else None
                    page = await listed(journal, order_by=order, descending=descending, limit=2, after=after)
                    if not page:
                        break
                    pages += page
                assert pages == whole, order
        assert await listed(journal, order_by="tokens", descending=True, limit=2, status="open") == [
            "r2",
            "r1",
        ]

    @in_a_loop
    async def test_a_wrong_condition_is_refused(self, journal: Journal) -> None:
        wrong: list[Any] = [{"order_by": "run_id"}, {"limit": 0}, {"colour": "red"}]
        for conditions in wrong:
            with pytest.raises(ConfigError):
                await listed(journal, **conditions)
        with pytest.raises(RunUnknown):
            await listed(journal, after="nobody")

    @in_a_loop
    async def test_an_ended_run_can_go_on(self, journal: Journal) -> None:
        await ended(journal, "run")
        lease = await journal.claim("run", "you")
        await write(journal, lease, NOTE)
        assert (await journal.head("run")).status == "open"

    @in_a_loop
    async def test_runs_are_listed_oldest_first_by_status_and_graph(self, journal: Journal) -> None:
        for number in range(5):
            await journal.create(
                f"open {number}", "me", {"graph": "even" if number % 2 == 0 else "odd", "at": 1}
            )
        await ended(journal, "old")
        assert [head.run_id async for head in journal.runs()] == [*(f"open {n}" for n in range(5)), "old"]
        assert [head.run_id async for head in journal.runs(status="ended")] == ["old"]
        assert [head.run_id async for head in journal.runs(status="open", graph="odd")] == [
            "open 1",
            "open 3",
        ]

    @in_a_loop
    async def test_runs_are_found_by_their_conversation_and_by_their_parent(self, journal: Journal) -> None:
        for number in range(6):
            body = {
                "graph": "g",
                "conversation_id": ("talk", "other", None)[number % 3],
                "parent_run_id": "parent" if number >= 3 else None,
            }
            lease = await journal.create(f"run {number}", "me", body)
            if number == 3:
                await write(journal, lease, ENDED)
        other = self.again()
        assert await listed(other, conversation_id="talk") == ["run 0", "run 3"]
        assert await listed(other, conversation_id="talk", status="open") == ["run 0"]
        assert await listed(other, parent_run_id="parent") == ["run 3", "run 4", "run 5"]
        assert await listed(other, parent_run_id="parent", conversation_id="other") == ["run 4"]
        assert await listed(other, parent_run_id="parent", graph="h") == []
        assert await listed(other, conversation_id="") == await listed(other, parent_run_id="no") == []
        await other.close()

    @in_a_loop
    async def test_more_runs_than_fit_a_page_are_listed_once_and_in_order(self, journal: Journal) -> None:
        wanted = [f"run {number}" for number in range(450)]
        for run_id in wanted:
            await journal.create(run_id, "me", BODY)
            if run_id == "run 7":
                await journal.create("between", "me", {})
        assert await listed(journal, conversation_id="talk") == wanted
        assert await listed(journal, parent_run_id="parent", conversation_id="talk") == wanted

    @in_a_loop
    async def test_the_newest_run_of_a_conversation_is_the_one_created_last(self, journal: Journal) -> None:
        assert await journal.newest("talk") is None
        first = await journal.create("first", "me", BODY)
        await ended(journal, "second")
        await journal.create("third", "me", {**BODY, "conversation_id": "other"})
        await journal.create("fourth", "me", {**BODY, "conversation_id": None})
        await write(journal, first, NOTE)
        newest = await journal.newest("talk")
        assert newest == await journal.head("second")
        assert named(await journal.newest("other")) == "third"
        assert await journal.newest("") is None
        await journal.erase("second")
        assert named(await journal.newest("talk")) == "first"


# ruff: noqa: S101  a module of tests: asserts, names that are sentences, numbers that are expected


class LookupContract(ListingContract):
    """The tests: these, and those of listings."""

    # ---- requests ----

    @in_a_loop
    async def test_a_request_is_left_without_a_lease_and_read_in_order(self, journal: Journal) -> None:
        await journal.create("run", "me", BODY)
        other = self.again()
        assert await other.post("run", Posted("a", "approve", {"digest": "d"}, by="ann", at=5.0))
        assert await other.post("run", Posted("b", "cancel"))
        first, second = await journal.inbox("run")
        assert first == Posted("a", "approve", {"digest": "d"}, "ann", 5.0, 1)
        assert (second.id, second.kind, second.number) == ("b", "cancel", 2)
        assert await journal.inbox("run", 1) == [second]
        assert await journal.inbox("run", 2) == []
        await other.close()

    @in_a_loop
    async def test_two_posts_with_one_id_are_one(self, journal: Journal) -> None:
        await journal.create("run", "me", BODY)
        await journal.create("other", "me", BODY)
        posts = [journal.post("run", Posted("a", "approve", {"n": number})) for number in range(5)]
        assert sorted(await asyncio.gather(*posts)) == [False] * 4 + [True]
        assert not await journal.post("run", Posted("a", "reject"))
        (request,) = await journal.inbox("run")
        assert request.kind == "approve"
        assert await journal.post("other", Posted("a", "approve"))

    @in_a_loop
    async def test_of_different_requests_with_one_id_from_two_handles_one_is_kept_and_both_read_it(
        self, journal: Journal
    ) -> None:
        lease = await journal.create("run", "me", BODY)
        other = self.again()
        for number in range(20):
            name = f"answer {number}"
            told = await asyncio.gather(
                journal.post("run", Posted(name, "approve", {"n": number}, "ann")),
                write(journal, lease, NOTE),  # the owner appends meanwhile
                other.post("run", Posted(name, "reject", {}, "bob")),
                journal.post("run", Posted(name, "respond", {"content": "done"}, "carol")),
            )
            mine = await journal.inbox("run")
            assert await other.inbox("run") == mine
            kept = mine[-1]
            assert (len(mine), kept.id, kept.number) == (number + 1, name, number + 1)
            won = {"approve": 0, "reject": 2, "respond": 3}[kept.kind]
            assert [position for position in (0, 2, 3) if told[position]] == [won]
        await other.close()

    # ---- news ----

    @in_a_loop
    async def test_news_from_now_on_is_no_run_and_the_present_position(self, journal: Journal) -> None:
        await journal.create("run", "me", BODY)
        position, runs = await journal.news(-1)
        assert runs == []
        assert await journal.news(position) == (position, [])
        await journal.post("run", Posted("a", "pause"))
        later, runs = await journal.news(-1)
        assert (later > position, runs) == (True, [])
        assert await journal.news(position) == (later, ["run"])
        assert await journal.news(later) == (later, [])

    @in_a_loop
    async def test_news_names_the_runs_with_requests_once_oldest_first(self, journal: Journal) -> None:
        for number in range(3):
            await journal.create(f"run {number}", "me", BODY)
        other = self.again()
        start, _ = await other.news(-1)
        await journal.post("run 2", Posted("a", "pause"))
        middle, runs = await other.news(start)
        assert runs == ["run 2"]
        await journal.post("run 0", Posted("b", "pause"))
        await journal.post("run 1", Posted("c", "pause"))
        await journal.post("run 0", Posted("d", "resume"))
        end, runs = await other.news(middle)
        assert runs == ["run 1", "run 0"]
        assert await other.news(start) == (end, ["run 2", "run 1", "run 0"])
        assert await other.news(end) == (end, [])
        await other.close()

    @in_a_loop
    async def test_a_request_that_was_posted_before_is_no_news(self, journal: Journal) -> None:
        await journal.create("run", "me", BODY)
        await journal.post("run", Posted("a", "pause"))
        position, _ = await journal.news(-1)
        assert not await journal.post("run", Posted("a", "pause"))
        with pytest.raises(RunUnknown):
            await journal.post("no", Posted("a", "pause"))
        assert await journal.news(position) == (position, [])

    @in_a_loop
    async def test_a_removed_run_is_no_news_and_its_position_is_not_used_again(
        self, journal: Journal
    ) -> None:
        start, _ = await journal.news(-1)
        await ended(journal, "gone")
        await journal.create("stays", "me", BODY)
        await journal.post("gone", Posted("a", "pause"))
        position, _ = await journal.news(start)
        await journal.erase("gone")
        assert await journal.news(start) == (position, [])
        await journal.post("stays", Posted("a", "pause"))
        later, runs = await journal.news(position)
        assert (later > position, runs) == (True, ["stays"])

    @in_a_loop
    async def test_who_follows_the_news_misses_no_request(self, journal: Journal) -> None:
        other = self.again()
        read = {f"run {number}": 0 for number in range(5)}
        for run_id in read:
            await journal.create(run_id, "me", BODY)
        position, _ = await journal.news(-1)

        async def poster(run_id: str) -> None:
            for name in range(10):
                await other.post(run_id, Posted(str(name), "pause"))
                await asyncio.sleep(0)

        async def owner() -> None:
            nonlocal position
            while set(read.values()) != {10}:
                position, runs = await journal.news(position)
                for run_id in runs:
                    found = await journal.inbox(run_id, read[run_id])
                    read[run_id] += len(found)
                await asyncio.sleep(0)

        await asyncio.wait_for(asyncio.gather(owner(), *map(poster, read)), 60)
        await other.close()


# ruff: noqa: S101, PLR2004  a module of tests: asserts, names that are sentences, numbers that are expected


class JournalContract(LookupContract):
    """The tests: these, and those of listings and requests."""

    # ---- records ----

    @in_a_loop
    async def test_a_run_begins_with_its_created_record_and_is_held(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        assert (lease.run_id, lease.owner, lease.epoch, lease.seq) == ("run", "me", 1, 0)
        (record,) = await journal.load("run")
        assert (record.seq, record.epoch, record.kind, dict(record.body)) == (0, 1, "created", BODY)
        assert (await journal.head("run")).owner == "me"

    @in_a_loop
    async def test_a_known_run_id_is_refused(self, journal: Journal) -> None:
        await journal.create("run", "me", BODY)
        with pytest.raises(RunExists):
            await journal.create("run", "me", {"graph": "other"})
        (record,) = await journal.load("run")
        assert record.body == BODY

    @in_a_loop
    async def test_records_come_back_in_order_with_what_was_written(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, NOTE, Draft("intent", {}))
        await write(journal, lease, Draft("done", {"n": 2**53}))
        records = await journal.load("run")
        assert [record.seq for record in records] == [0, 1, 2, 3]
        assert [record.kind for record in records] == ["created", "note", "intent", "done"]
        assert [record.body for record in records[1:]] == [NOTE.body, {}, {"n": 2**53}]
        assert lease.seq == 3

    @in_a_loop
    async def test_the_records_of_an_append_have_one_hash_that_stays(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, NOTE, NOTE)
        await write(journal, lease, NOTE)
        hashes = [record.hash for record in await journal.load("run")]
        assert hashes[1] == hashes[2]
        assert len(set(hashes)) == 3
        assert {len(value) for value in hashes} == {64}
        assert [record.hash for record in await journal.load("run")] == hashes

    @in_a_loop
    async def test_a_load_from_a_number_on_returns_the_rest(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, NOTE, NOTE, NOTE)
        whole = await journal.load("run")
        for since in range(4):  # also in the middle of an append
            assert await journal.load("run", since) == whole[since:]
        assert await journal.load("run", 4) == await journal.load("run", 9) == []

    @in_a_loop
    async def test_a_kind_with_a_comma_is_refused(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        for drafts in ([Draft("a,b", {})], [NOTE, Draft("a,b", {})]):
            with pytest.raises(JournalError, match="comma"):
                await write(journal, lease, *drafts)
        assert await kinds(journal, "run") == ["created"]

    @in_a_loop
    async def test_a_body_changed_after_the_append_does_not_change_the_record(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        body: dict[str, Any] = {"messages": ["one"]}
        waiting = journal.append(lease, [Draft("note", body)])
        body["messages"].append("two")
        if waiting is not None:
            await waiting
        assert (await journal.load("run"))[1].body == {"messages": ["one"]}

    @in_a_loop
    async def test_a_body_that_is_not_plain_data_is_refused_whole(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        with pytest.raises(JournalError):
            await write(journal, lease, NOTE, Draft("note", {"thing": object()}))
        await write(journal, lease, NOTE)
        assert await kinds(journal, "run") == ["created", "note"]

    @in_a_loop
    async def test_many_runs_at_once_lose_nothing(self, journal: Journal) -> None:
        async def one(number: int) -> None:
            lease = await journal.create(f"run {number}", "me", BODY)
            for step in range(10):
                await write(journal, lease, Draft("note", {"step": step}), Draft("note", {"of": number}))

        await asyncio.gather(*map(one, range(30)))
        for number in range(30):
            records = await journal.load(f"run {number}")
            assert [record.body.get("step") for record in records[1::2]] == list(range(10))
            assert all(record.body["of"] == number for record in records[2::2])

    @in_a_loop
    async def test_appends_under_way_together_keep_their_order(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        under_way = [journal.append(lease, [Draft("note", {"n": number})]) for number in range(20)]
        for waiting in under_way:
            if waiting is not None:
                await waiting
        assert [record.body.get("n") for record in (await journal.load("run"))[1:]] == list(range(20))
        await write(journal, lease, NOTE)

    @in_a_loop
    async def test_cancelling_whoever_waits_does_not_take_the_records_back(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        task = asyncio.create_task(write(journal, lease, NOTE))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await write(journal, lease, Draft("control", {"what": "cancel"}))
        assert await kinds(journal, "run") == ["created", "note", "control"]
        assert lease.seq == 2

    # ---- ownership ----

    @in_a_loop
    async def test_a_run_that_is_held_is_refused_to_others(self, journal: Journal) -> None:
        await journal.create("run", "me", BODY)
        other = self.again()
        with pytest.raises(Held):
            await other.claim("run", "you")
        assert (await other.head("run")).epoch == 1
        await other.close()

    @in_a_loop
    async def test_a_run_given_back_can_be_claimed(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        await write(journal, lease, NOTE)
        await journal.release(lease)
        assert (await journal.head("run")).owner is None
        other = self.again()
        taken = await other.claim("run", "you")
        assert (taken.epoch, taken.seq) == (2, 1)
        await write(other, taken, NOTE)
        assert [record.epoch for record in await other.load("run")] == [1, 1, 2]
        await other.close()

    @in_a_loop
    async def test_the_run_of_a_dead_owner_can_be_claimed_at_once(self, journal: Journal) -> None:
        other = self.again()
        lease = await other.create("run", "you", BODY)
        await write(other, lease, NOTE)
        await self.die(other, "you")
        assert (await journal.head("run")).owner is None
        taken = await journal.claim("run", "me")
        assert (taken.epoch, taken.seq) == (2, 1)
        await write(journal, taken, NOTE)

    @in_a_loop
    async def test_who_was_stolen_from_is_fenced_and_writes_nothing(self, journal: Journal) -> None:
        stale = await journal.create("run", "me", BODY)
        other = self.again()
        lease = await other.claim("run", "you", steal=True)
        content = b"never"
        with pytest.raises(Fenced):
            await write(journal, stale, NOTE, blobs={digest(content): content})
        await write(other, lease, PARKED)
        with pytest.raises(Fenced):
            await write(journal, stale, NOTE)
        assert await kinds(other, "run") == ["created", "parked"]
        with pytest.raises(Corrupt):
            await other.blob(digest(content))
        await other.close()

    @in_a_loop
    async def test_an_owner_who_claims_again_fences_its_own_earlier_lease(self, journal: Journal) -> None:
        earlier = await journal.create("run", "me", BODY)
        later = await journal.claim("run", "me")
        assert later.epoch == 2
        with pytest.raises(Fenced):
            await write(journal, earlier, NOTE)
        await write(journal, later, NOTE)

    @in_a_loop
    async def test_a_lease_that_missed_a_record_is_fenced(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        copy = Lease(lease.run_id, lease.owner, lease.epoch, lease.seq, lease.head)
        await write(journal, lease, NOTE)
        with pytest.raises(Fenced):
            await write(journal, copy, NOTE)
        assert await kinds(journal, "run") == ["created", "note"]

    @in_a_loop
    async def test_giving_back_with_an_old_lease_changes_nothing(self, journal: Journal) -> None:
        old = await journal.create("run", "me", BODY)
        await journal.claim("run", "me")
        await journal.release(old)
        with pytest.raises(Held):
            await journal.claim("run", "you")

    @in_a_loop
    async def test_claims_without_progress_are_counted(self, journal: Journal) -> None:
        await journal.create("run", "me", BODY)
        for count in (1, 2, 3):
            lease = await journal.claim("run", "me")
            await write(journal, lease, Draft("resumed", {"claims": count}))
            assert (await journal.head("run")).stuck_claims == count
        await journal.claim("run", "me")  # and died before its first record
        lease = await journal.claim("run", "me")
        assert (await journal.head("run")).stuck_claims == 5
        await write(journal, lease, NOTE)
        assert (await journal.head("run")).stuck_claims == 0

    @in_a_loop
    async def test_a_record_with_a_claim_is_progress(self, journal: Journal) -> None:
        await journal.create("run", "me", BODY)
        lease = await journal.claim("run", "me")
        await write(journal, lease, Draft("resumed", {}), NOTE)
        assert (await journal.head("run")).stuck_claims == 0
        await write(journal, lease, Draft("resumed", {}))
        assert (await journal.head("run")).stuck_claims == 0

    @in_a_loop
    async def test_parking_a_poisonous_run_begins_the_count_anew(self, journal: Journal) -> None:
        await journal.create("run", "me", BODY)
        for _ in range(3):
            lease = await journal.claim("run", "me")
            await write(journal, lease, Draft("resumed", {}))
        await write(journal, lease, Draft("parked", {"reason": "poison"}))
        head = await journal.head("run")
        assert (head.status, head.reason, head.stuck_claims) == ("parked", "poison", 0)
        await journal.release(lease)
        for count in (1, 2):
            lease = await journal.claim("run", "you")
            await write(journal, lease, Draft("resumed", {}))
            head = await journal.head("run")
            assert (head.status, head.reason, head.stuck_claims) == ("open", "", count)
            await journal.release(lease)

    # ---- unknown runs ----

    @in_a_loop
    async def test_an_unknown_run_is_named_as_such(self, journal: Journal) -> None:
        for asked in (
            journal.load("no"),
            journal.head("no"),
            journal.claim("no", "me"),
            journal.inbox("no"),
            journal.post("no", Posted("1", "cancel")),
            journal.erase("no"),
        ):
            with pytest.raises(RunUnknown):
                await asked

    # ---- blobs ----

    @in_a_loop
    async def test_blobs_are_kept_with_the_record_that_names_them(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        contents = (b"", b"small", bytes(range(256)) * 8192)
        await write(journal, lease, NOTE, blobs={digest(content): content for content in contents})
        await write(journal, lease, NOTE, blobs={digest(b"small"): b"small"})
        other = self.again()
        for content in contents:
            assert await other.blob(digest(content)) == content
        await other.close()

    @in_a_loop
    async def test_a_blob_that_is_not_there_or_misnamed_is_refused(self, journal: Journal) -> None:
        with pytest.raises(Corrupt):
            await journal.blob("0" * 64)
        with pytest.raises(Corrupt):
            await journal.blob("no digest")
        lease = await journal.create("run", "me", BODY)
        with pytest.raises(JournalError):
            await write(journal, lease, NOTE, blobs={"0" * 64: b"content"})
        await write(journal, lease, NOTE)
        assert await kinds(journal, "run") == ["created", "note"]

    # ---- removing ----

    @in_a_loop
    async def test_pruning_removes_ended_runs_that_meet_every_condition(self, journal: Journal) -> None:
        for number in range(4):
            await ended(journal, f"ended {number}")
        await journal.create("open", "me", BODY)
        held = await journal.create("held", "me", BODY)
        await write(journal, held, ENDED)
        assert await journal.prune() == 0
        assert await journal.prune(older_than=1.0) == 0
        assert await journal.prune(older_than=1.0, keep_last=0) == 0
        assert await journal.prune(keep_last=3) == 2
        assert [head.run_id async for head in journal.runs()] == ["ended 2", "ended 3", "open", "held"]
        assert await journal.prune(older_than=1e12) == 2
        assert [head.run_id async for head in journal.runs()] == ["open", "held"]

    @in_a_loop
    async def test_an_erased_run_is_gone_with_the_blobs_only_it_names(self, journal: Journal) -> None:
        big = b"x" * (1 << 20)
        await ended(journal, "run", blobs=[b"own", b"shared", big])
        await ended(journal, "other", blobs=[b"shared"])
        await journal.post("run", Posted("a", "approve"))
        await journal.erase("run")
        with pytest.raises(RunUnknown):
            await journal.load("run")
        for content in (b"own", big):
            with pytest.raises(Corrupt):
                await journal.blob(digest(content))
        assert await journal.blob(digest(b"shared")) == b"shared"
        await journal.create("run", "me", BODY)
        assert await journal.inbox("run") == []

    @in_a_loop
    async def test_a_held_run_is_not_erased(self, journal: Journal) -> None:
        lease = await journal.create("run", "me", BODY)
        with pytest.raises(Held):
            await journal.erase("run")
        await write(journal, lease, NOTE)
        assert await kinds(journal, "run") == ["created", "note"]
