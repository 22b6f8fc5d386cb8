"""The behaviour that every store of records must have, as tests that a store's test class inherits.

    class TestMyJournal(JournalContract):
        def store(self, folder: Path) -> Journal:
            return MyJournal(folder / "journal")

It needs only pytest: each test runs its own event loop. Two stores in one folder must be two handles of the same
data. A store that lives in one process returns the same object again and implements `die` to end its owners.
"""

# ruff: noqa: S101, PLR2004  a module of tests: asserts, names that are sentences, numbers that are expected

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.errors import Corrupt, Fenced, Held, JournalError, RunExists, RunUnknown
from orchestrator.kernel.journal import Draft, Journal, Lease, Posted
from orchestrator.testing.journal_case import (
    BODY,
    ENDED,
    NOTE,
    PARKED,
    digest,
    ended,
    in_a_loop,
    kinds,
    write,
)
from orchestrator.testing.journal_lookup import LookupContract


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
