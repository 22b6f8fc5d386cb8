"""Records before facts: the told is durable, the folded keeps its order, a lost journal ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import JournalError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import (
    AdmissionRejected,
    EventFailed,
    Fact,
    GuardEvaluated,
    JournalWrite,
    RunCompleted,
    RunParked,
    Transition,
)
from orchestrator.kernel.graph import Edge
from orchestrator.kernel.journal import NO_HASH, Draft, Lease
from orchestrator.kernel.mailbox import Signal
from tests.kernel.toy import (
    TOY,
    CountingJournal,
    E,
    PendingJournal,
    Rig,
    S,
    SlowJournal,
    ToyRun,
    machine,
    moves,
    new_run,
    nothing,
    raises,
    rig,
    suspended_at,
)

EVERY = pytest.mark.parametrize(
    "journal", [CountingJournal, SlowJournal, PendingJournal], ids=["at once", "awaited", "pending"]
)
AWAITED = pytest.mark.parametrize("slow", [SlowJournal, PendingJournal], ids=["awaited", "pending"])


class BrokenJournal(MemoryJournal):
    """Its n-th append, and every later one, raises."""

    def __init__(self, broken_at: int, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.broken_at = broken_at
        self.calls = 0

    def append(self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None) -> None:
        self.calls += 1
        if self.calls >= self.broken_at:
            raise self.error
        super().append(lease, drafts, blobs)


def durable(journal: Any) -> list[str]:
    kept = journal.kept if isinstance(journal, SlowJournal) else journal
    return [body["event"] for body in moves(kept)]


async def test_pure_states_are_written_together_with_the_next_record() -> None:
    journal = CountingJournal()
    a = rig(E.AGAIN, E.AGAIN, journal=journal)
    await a.driver.drive(a.run)
    assert journal.appends == [["start"], ["did", "again"], ["did", "again"], ["did", "finish"], ["ended"]]


async def test_without_pure_states_each_transition_is_an_append() -> None:
    journal = CountingJournal()
    a = rig(E.AGAIN, journal=journal, graph=replace(TOY, pure=frozenset()))
    await a.driver.drive(a.run)
    assert journal.appends == [["start"], ["did"], ["again"], ["did"], ["finish"], ["ended"]]


@pytest.mark.parametrize("name", ["enter_check", "before_did", "after_did", "leave_work", "enter_state"])
async def test_a_hosts_hook_on_a_step_into_a_pure_state_keeps_it_from_being_folded(name: str) -> None:
    class Host:
        pass

    host = Host()
    setattr(host, name, nothing)
    journal = CountingJournal()
    a = rig(E.AGAIN, journal=journal, extra=[host])
    await a.driver.drive(a.run)
    assert journal.appends == [["start"], ["did"], ["again"], ["did"], ["finish"], ["ended"]]


async def test_what_is_folded_is_durable_before_a_hosts_hook_on_the_way_out_of_a_pure_state() -> None:
    seen: list[list[str]] = []

    class Host:
        async def leave_check(self, run: ToyRun) -> None:
            seen.append(durable(journal))

    journal = CountingJournal()
    a = rig(journal=journal, extra=[Host()])
    await a.driver.drive(a.run)
    assert seen == [["start", "did"]]


@EVERY
async def test_nothing_is_observed_before_its_record_is_durable(journal: Any) -> None:
    class Watchful:
        def observe(self, fact: Fact) -> None:
            if isinstance(fact, Transition):
                assert fact.event == durable(kept)[fact.seq - 1]
            if isinstance(fact, RunCompleted):
                told.append(len(durable(kept)))

    kept = journal()
    told: list[int] = []
    made = machine()
    driver = Driver(made, observers=(Watchful(),), journal=kept)
    await driver.drive(new_run(made, E.AGAIN, E.AGAIN))
    assert driver.observer_errors == {}
    assert told == [7]


@EVERY
async def test_folded_facts_come_in_order_with_what_hooks_emit_between_them(journal: Any) -> None:
    async def check(run: ToyRun) -> E:
        run.emit(RunParked("toy", "r1", run.cursor.state, f"note {run.seq}", 0.0))
        assert a.facts.path == ["start", "did", "again"][: run.seq - 1]
        return E.AGAIN if run.seq == 2 else E.FINISH

    a = rig(journal=journal(), enter_check=check)
    await a.driver.drive(a.run)
    told = [
        f.event if isinstance(f, Transition) else f.reason if isinstance(f, RunParked) else f.result
        for f in a.facts.all
        if isinstance(f, Transition | RunParked | GuardEvaluated)
    ]
    assert told == ["start", "did", "note 2", "allow", "again", "did", "note 4", "finish"]


async def test_firing_by_hand_leaves_nothing_folded() -> None:
    journal = CountingJournal()
    a = rig(journal=journal)
    for event in (E.START, E.DID):
        await a.driver.fire(a.run, event)
    assert (a.run.state, durable(journal), a.facts.path) == (S.CHECK, ["start", "did"], ["start", "did"])


async def test_an_error_that_reaches_the_caller_leaves_nothing_folded() -> None:
    journal = CountingJournal()
    graph = replace(TOY, failure=None, dwell={S.ASK: None}, strict=False)
    a = rig(journal=journal, graph=graph, enter_check=raises(ValueError("boom")))
    with pytest.raises(ValueError, match="boom"):
        await a.driver.drive(a.run)
    assert durable(journal) == a.facts.path == ["start", "did"]


async def test_each_append_that_makes_records_durable_is_told() -> None:
    journal = CountingJournal()
    journal.durable = True
    a = rig(journal=journal)
    await a.driver.drive(a.run)
    writes = a.facts.of(JournalWrite)
    assert [(w.backend, w.operation, w.records, w.outcome) for w in writes] == [
        ("memory", "append", 1, "ok"),
        ("memory", "append", 2, "ok"),
        ("memory", "append", 1, "ok"),
    ]


async def test_no_append_to_a_journal_that_makes_nothing_durable_is_told_unless_it_fails() -> None:
    a = rig(journal=MemoryJournal())
    await a.driver.drive(a.run)
    assert a.facts.of(JournalWrite) == []
    b = rig(journal=BrokenJournal(3, JournalError("not plain data")))
    await b.driver.drive(b.run)
    assert [(w.backend, w.operation, w.outcome) for w in b.facts.of(JournalWrite)] == [
        ("memory", "append", "other")
    ]


# ---- a journal that breaks ----


def check_lost(a: Rig, journal: Any, error: Exception) -> None:
    assert (a.run.state, a.run.ended, a.run.control.detached) == (S.LOST, True, True)
    assert a.run.error is error
    assert a.facts.path == durable(journal)
    assert a.run.seq == len(a.facts.path)
    (ended,) = a.facts.of(RunCompleted)
    assert (ended.outcome, ended.transitions, ended.error) == ("failed", a.run.seq, error)
    (failed,) = a.facts.of(EventFailed)
    assert (failed.reason, failed.hook, failed.error) == ("journal_error", "journal", error)
    assert [w.outcome for w in a.facts.of(JournalWrite)].count("other") == 1
    assert (a.run.writes.drafts, a.run.writes.unpublished) == ([], [])


@pytest.mark.parametrize("error", [JournalError("disk full"), OSError("EIO")], ids=["journal", "os"])
@pytest.mark.parametrize("number", range(1, 6))
async def test_a_failing_append_fails_the_run_in_memory(number: int, error: Exception) -> None:
    journal = BrokenJournal(number, error)
    a = rig(E.AGAIN, E.AGAIN, journal=journal)
    await a.driver.drive(a.run)
    check_lost(a, journal, error)
    assert journal.calls == number
    assert (await journal.head(a.run.run_id)).owner is None, (
        "whoever owns it next goes on with what is durable"
    )


@AWAITED
async def test_an_awaited_append_that_fails_does_the_same(slow: type[SlowJournal]) -> None:
    for number in range(1, 6):
        journal = slow()
        journal.broken_at = number
        a = rig(E.AGAIN, E.AGAIN, journal=journal)
        await a.driver.drive(a.run)
        assert a.run.error is not None
        check_lost(a, journal, a.run.error)
        assert journal.appends == number


@AWAITED
async def test_a_hook_that_the_next_state_does_not_have_begins_beside_no_append(
    slow: type[SlowJournal],
) -> None:
    async def check(run: ToyRun) -> E:
        run.overlap(nothing)
        return E.FINISH

    journal = slow()
    a = rig(journal=journal, enter_check=check)
    await a.driver.drive(a.run)
    assert a.run.error is None
    assert [move["event"] for move in journal.path()] == ["start", "did", "finish"]


async def test_a_run_that_fails_while_its_journal_breaks_keeps_its_first_error_and_fails_once() -> None:
    hooks_run: list[str] = []

    async def before_fail(run: ToyRun) -> None:
        hooks_run.append(run.cursor.state)

    boom = ValueError("boom")
    journal = BrokenJournal(2, JournalError("disk full"))
    a = rig(journal=journal, enter_work=raises(boom), before_fail=before_fail)
    await a.driver.drive(a.run)
    assert (a.run.state, a.run.error, a.run.control.detached) == (S.LOST, boom, True)
    assert [fact.reason for fact in a.facts.of(EventFailed)] == ["callback_error", "journal_error"]
    assert hooks_run == ["work"]
    assert a.facts.path == durable(journal) == ["start"]


async def test_a_journal_that_breaks_before_a_hosts_failure_hook_does_not_keep_the_run_from_failing() -> None:
    class Host:
        async def before_fail(self, run: ToyRun) -> None:
            seen.append(run.control.detached)

    seen: list[bool] = []
    boom = ValueError("boom")
    journal = BrokenJournal(2, JournalError("disk full"))
    a = rig(journal=journal, enter_check=raises(boom), extra=[Host()])
    await a.driver.drive(a.run)
    assert (a.run.state, a.run.error, a.run.ended, seen) == (S.LOST, boom, True, [True])
    assert a.facts.path == durable(journal) == ["start"]


async def test_an_interrupted_run_whose_journal_breaks_on_the_way_out_says_so_and_is_parked() -> None:
    journal = BrokenJournal(2, JournalError("disk full"))
    began = asyncio.Event()

    async def check(run: ToyRun) -> None:
        began.set()
        await asyncio.Event().wait()

    a = rig(journal=journal, enter_check=check)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await began.wait()
    drive.cancel()
    await asyncio.wait((drive,))
    assert drive.cancelled()
    assert [fact.reason for fact in a.facts.of(EventFailed)] == ["journal_error"]
    assert [fact.reason for fact in a.facts.of(RunParked)] == ["interrupted"]
    assert a.facts.path == durable(journal) == ["start"]


@AWAITED
async def test_a_caller_that_cancels_again_and_again_does_not_tear_a_record(slow: type[SlowJournal]) -> None:
    journal = slow()
    began = asyncio.Event()

    async def check(run: ToyRun) -> None:
        began.set()
        await asyncio.Event().wait()

    a = rig(journal=journal, enter_check=check)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await began.wait()
    while not drive.done():
        drive.cancel()
        await asyncio.sleep(0)
    assert drive.cancelled()
    assert a.facts.path == durable(journal) == ["start", "did"]


async def test_a_run_without_its_journal_writes_nothing_more_even_if_a_hook_left_a_draft() -> None:
    class Host:
        async def before_fail(self, run: ToyRun) -> None: ...

    async def work(run: ToyRun) -> None:
        run.control.detached = True
        run.writes.drafts.append(Draft("note", {}))
        raise ValueError("boom")

    journal = CountingJournal()
    a = rig(journal=journal, enter_work=work, extra=[Host()])
    await a.driver.drive(a.run)
    assert a.run.state == S.LOST
    assert journal.appends == [["start"]]


async def test_firing_by_hand_a_caller_that_cancels_while_an_append_fails_gets_its_cancellation() -> None:
    journal = SlowJournal()
    journal.broken_at = 1
    a = rig(journal=journal)
    task: asyncio.Task[Any] = asyncio.create_task(
        suspended_at(3, a.driver.fire(a.run, E.START), lambda: task.cancel())  # noqa: PLW0108 - bound later
    )
    await asyncio.wait((task,))
    assert task.cancelled()
    assert (a.run.control.detached, a.run.state, journal.appends) == (True, S.INIT, 1)


async def test_a_run_without_its_journal_cannot_go_on_where_failure_did_not_end_it() -> None:
    to_ask = Edge(E.FAIL, (S.WORK,), S.ASK)
    graph = TOY.extend(without=[("work", "fail"), ("ask", "fail")], edges=[to_ask], strict=False)
    journal = BrokenJournal(2, JournalError("disk full"))
    a = rig(journal=journal, graph=graph, enter_work=raises(ValueError("boom")))
    a.run.mailbox.post(Signal(E.ANSWER))
    with pytest.raises(JournalError, match="lost its journal"):
        await a.driver.drive(a.run)
    assert (a.run.state, journal.calls) == (S.ASK, 2)


async def test_a_run_that_the_journal_will_not_create_reaches_the_caller_and_does_not_begin() -> None:
    class Full(MemoryJournal):
        async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
            raise JournalError("disk full")

    a = rig(journal=Full())
    with pytest.raises(JournalError):
        await a.driver.drive(a.run)
    assert [type(fact) for fact in a.facts.all] == [JournalWrite, AdmissionRejected]
    assert (a.run.started_at, a.run.control.driving) == (None, False)


async def test_firing_by_hand_a_failed_append_reaches_the_caller_and_the_state_stays() -> None:
    journal = BrokenJournal(2, JournalError("disk full"))
    a = rig(journal=journal)
    await a.driver.fire(a.run, E.START)
    with pytest.raises(JournalError, match="disk full"):
        await a.driver.fire(a.run, E.DID)
    assert a.run.state == S.WORK
    with pytest.raises(JournalError, match="lost its journal"):
        await a.driver.fire(a.run, E.DID)
    assert durable(journal) == a.facts.path == ["start"]


async def test_a_write_that_is_itself_cancelled_leaves_the_run_without_a_journal() -> None:
    class Closing:
        backend = "closing"

        async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
            return Lease(run_id, owner, 1, 0, NO_HASH)

        async def release(self, lease: Lease) -> None: ...

        def append(
            self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
        ) -> asyncio.Future[None]:
            write = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(write.cancel)
            return write

    a = rig(journal=Closing())
    with pytest.raises(asyncio.CancelledError):
        await a.driver.drive(a.run)
    assert (a.run.state, a.run.control.detached, a.run.seq, a.facts.path) == (S.INIT, True, 0, [])
    assert [fact.reason for fact in a.facts.of(RunParked)] == ["interrupted"]


@AWAITED
async def test_a_caller_that_cancels_while_an_append_fails_gets_its_cancellation(
    slow: type[SlowJournal],
) -> None:
    journal = slow()
    journal.broken_at = 1
    writing = asyncio.Event()

    async def last_before_the_record(run: ToyRun) -> None:
        asyncio.get_running_loop().call_soon(writing.set)

    a = rig(journal=journal, leave_init=last_before_the_record)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await writing.wait()
    drive.cancel()
    await asyncio.wait((drive,))
    assert drive.cancelled()
    assert (journal.appends, a.run.control.detached, a.run.state) == (1, True, S.INIT)
    assert durable(journal) == a.facts.path == []
