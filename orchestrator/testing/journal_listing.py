"""The listings and heads that every store must support. Part of `journal_contract`."""

# ruff: noqa: S101, PLR2004  a module of tests: asserts, names that are sentences, numbers that are expected

from __future__ import annotations

import asyncio
from typing import Any, Unpack

import pytest

from orchestrator.errors import ConfigError, RunUnknown
from orchestrator.kernel.journal import Draft, Journal, Posted, RunConditions, RunHead
from orchestrator.testing.journal_case import (
    BODY,
    ENDED,
    NOTE,
    PARKED,
    JournalCase,
    ended,
    in_a_loop,
    write,
)


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
    ({"status": "ended", "agent": "b", "descending": True}, ["r4", "r3"]),
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
