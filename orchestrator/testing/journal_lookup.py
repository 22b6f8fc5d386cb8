"""The lookups that every store must support: listings, requests, news. Part of `journal_contract`."""

# ruff: noqa: S101  a module of tests: asserts, names that are sentences, numbers that are expected

from __future__ import annotations

import asyncio

import pytest

from orchestrator.errors import RunUnknown
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.testing.journal_case import BODY, NOTE, ended, in_a_loop, write
from orchestrator.testing.journal_listing import ListingContract


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
