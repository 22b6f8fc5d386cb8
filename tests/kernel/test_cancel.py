"""Cancellation at every await point: the caller's passes through untouched, the run's own ends the run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import CancelRequested
from orchestrator.kernel.graph import Edge
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.record import EventFailed, RunCompleted, RunParked
from orchestrator.kernel.run import Signal
from tests.kernel.toy import TOY, E, Rig, S, SlowJournal, ToyRun, nothing, rig, suspended_at


async def _done(run: ToyRun) -> None:
    await asyncio.sleep(0)


class Host:
    async def leave_state(self, run: ToyRun) -> None:
        await asyncio.sleep(0)


def eventful(*host: Host) -> tuple[Rig, SlowJournal]:
    """A run through every kind of state, with a hook that suspends in every slot and a journal that does."""
    journal = SlowJournal()
    a = rig(
        E.AGAIN,
        E.ASKED,
        journal=journal,
        extra=host,
        before_event=nothing,
        leave_state=nothing,
        enter_state=nothing,
        after_event=nothing,
        enter_done=_done,
    )
    a.run.mailbox.post(Signal(E.NOTE))
    a.run.mailbox.post(Signal(E.ANSWER))
    return a, journal


WHOLE = ["start", "did", "again", "did", "asked", "note", "answer", "did", "finish"]


def check_journal(a: Rig, journal: SlowJournal) -> None:
    """What is told is what is durable, in the same order without a gap, and leads to where the run is."""
    durable = journal.path()
    assert [body["seq"] for body in durable] == list(range(1, len(durable) + 1))
    assert [body["event"] for body in durable] == a.facts.path
    assert a.run.seq == len(durable)
    assert a.run.cursor == (durable[-1]["dest"] if durable else "init")
    assert (a.run.drafts, a.run.unsent, a.run.driving) == ([], [], False)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def interrupted(number: int, act: Callable[[Rig], object]) -> tuple[Rig, SlowJournal, bool]:
    """Drive; `act` while the driver is suspended for the `number`-th time. Third: whether it came to that."""
    a, journal = eventful()
    hit: list[bool] = []

    def strike() -> None:
        hit.append(True)
        act(a)

    await suspended_at(number, a.driver.drive(a.run, park=False), strike)
    return a, journal, bool(hit)


async def test_undisturbed_it_takes_the_whole_path() -> None:
    a, journal, _ = await interrupted(0, lambda _: None)
    assert a.facts.path == WHOLE
    assert a.run.state == S.DONE
    check_journal(a, journal)


async def go_on(a: Rig, journal: SlowJournal) -> None:
    """An interrupted run ends as it would have, when somebody takes it up again."""
    was_told = a.run.started_at is not None
    ended = a.run.ended
    assert len(a.facts.of(RunParked)) == int(was_told and not ended)
    assert {fact.reason for fact in a.facts.of(RunParked)} <= {"interrupted"}
    check_journal(a, journal)
    await a.driver.drive(a.run, park=False)
    assert a.run.ended
    check_journal(a, journal)


class Sibling(Exception):
    pass


async def _by_cancel(number: int, *host: Host) -> tuple[Rig, SlowJournal, bool]:
    a, journal = eventful(*host)
    hit: list[bool] = []
    task: asyncio.Task[Any]

    def strike() -> None:
        hit.append(task.cancel())

    task = asyncio.create_task(suspended_at(number, a.driver.drive(a.run, park=False), strike))
    await asyncio.wait((task,))
    assert task.cancelled() == bool(hit)
    return a, journal, bool(hit)


async def _by_cancel_with_a_host(number: int) -> tuple[Rig, SlowJournal, bool]:
    return await _by_cancel(number, Host())


async def _by_timeout(number: int) -> tuple[Rig, SlowJournal, bool]:
    a, journal = eventful()
    try:
        async with asyncio.timeout(None) as limit:
            await suspended_at(number, a.driver.drive(a.run, park=False), lambda: limit.reschedule(0))
    except TimeoutError:
        return a, journal, True
    return a, journal, False


async def _by_group(number: int) -> tuple[Rig, SlowJournal, bool]:
    a, journal = eventful()
    struck = asyncio.Event()
    cut: list[bool] = []

    async def sibling() -> None:
        await struck.wait()
        if not a.run.ended:
            raise Sibling

    async def drive() -> None:
        try:
            await suspended_at(number, a.driver.drive(a.run, park=False), struck.set)
        except asyncio.CancelledError:
            cut.append(True)
            raise
        struck.set()

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(sibling())
            group.create_task(drive())
    except* Sibling:
        assert cut
    return a, journal, bool(cut)


@pytest.mark.parametrize(
    "way",
    [_by_cancel, _by_cancel_with_a_host, _by_timeout, _by_group],
    ids=["cancel", "host", "timeout", "group"],
)
async def test_the_callers_cancellation_passes_through_at_every_await_and_the_run_can_go_on(way: Any) -> None:
    number = 1
    while True:
        a, journal, hit = await way(number)
        if not hit:
            break
        assert a.run.error is None
        assert a.facts.of(EventFailed) == []
        await go_on(a, journal)
        assert a.run.state == S.DONE
        assert [path for path in a.facts.path if path != "note"] == [e for e in WHOLE if e != "note"]
        number += 1
    print(f"{way.__name__}: {number - 1} await points")  # noqa: T201
    assert number > 40
    assert a.run.ended


async def test_the_runs_own_cancellation_ends_it_at_every_await() -> None:
    number = 1
    while True:
        a, journal, hit = await interrupted(number, lambda a: a.run.cancel("caller", "enough"))
        if not hit:
            break
        check_journal(a, journal)
        assert a.run.ended
        if a.run.error is not None:  # else the last record was on its way: too late
            assert isinstance(a.run.error, CancelRequested)
            assert a.run.state == S.LOST
            assert a.facts.path[-1] == "fail"
            assert a.facts.of(RunCompleted)[0].outcome == Outcome.CANCELLED
        number += 1
    print(f"cancel(): {number - 1} await points")  # noqa: T201
    assert number > 40


async def test_any_cause_ends_the_run_as_if_the_hook_had_raised_it() -> None:
    for number in range(1, 40):
        cause = OSError("the plug")
        a, journal, _ = await interrupted(number, lambda a, cause=cause: a.run.stop(cause))  # type: ignore[misc]
        assert (a.run.state, a.run.error) == (S.LOST, cause)
        check_journal(a, journal)


async def test_with_both_at_once_the_callers_wins_at_every_await() -> None:
    number = 1
    while True:
        a, journal = eventful()
        hit: list[bool] = []
        task: asyncio.Task[Any]

        def both(rig: Rig = a, hits: list[bool] = hit) -> None:
            rig.run.cancel()
            hits.append(task.cancel())  # noqa: B023 - bound below, before it is called

        task = asyncio.create_task(suspended_at(number, a.driver.drive(a.run, park=False), both))
        await asyncio.wait((task,))
        assert task.cancelled() == bool(hit)
        if not hit:
            break
        await go_on(a, journal)
        assert a.run.state == (S.LOST if a.run.error else S.DONE)
        number += 1
    assert number > 40


# ---- who cancels whom ----


def swallowing(then: Exception | None = None) -> tuple[Any, asyncio.Event]:
    """A hook that swallows a CancelledError and goes on, or raises something else instead."""
    began = asyncio.Event()

    async def hook(run: ToyRun) -> E:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            if then is not None:
                raise then  # noqa: B904
        return E.DID

    return hook, began


@pytest.mark.parametrize("then", [None, ValueError("other")], ids=["goes on", "renames"])
async def test_a_hook_that_swallows_the_runs_cancellation_does_not_defeat_it(then: Exception | None) -> None:
    hook, began = swallowing(then)
    a = rig(enter_work=hook)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await began.wait()
    a.run.cancel()
    await drive
    assert isinstance(a.run.error, CancelRequested)
    assert a.facts.path == ["start", "fail"]
    assert a.facts.of(RunCompleted)[0].outcome == Outcome.CANCELLED


@pytest.mark.parametrize("then", [None, ValueError("other")], ids=["goes on", "renames"])
async def test_a_hook_that_swallows_the_callers_cancellation_does_not_defeat_it(
    then: Exception | None,
) -> None:
    hook, began = swallowing(then)
    a = rig(enter_work=hook)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await began.wait()
    drive.cancel()
    await asyncio.wait((drive,))
    assert drive.cancelled()
    assert not a.run.ended
    assert a.run.error is None
    assert [fact.reason for fact in a.facts.of(RunParked)] == ["interrupted"]


async def test_a_group_in_a_hook_whose_task_fails_while_cancelled_does_not_rename_it() -> None:
    began = asyncio.Event()

    async def tool() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("while cleaning up")

    async def work(run: ToyRun) -> E:
        async with asyncio.TaskGroup() as group:
            group.create_task(tool())
            began.set()
        return E.DID

    a = rig(enter_work=work)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await began.wait()
    await asyncio.sleep(0)
    drive.cancel()
    await asyncio.wait((drive,))
    assert drive.cancelled()
    assert a.run.error is None


async def test_a_hook_may_cancel_its_own_run() -> None:
    async def work(run: ToyRun) -> E:
        run.cancel("shutdown")
        return E.DID

    a = rig(enter_work=work)
    await a.driver.drive(a.run)
    assert a.facts.path == ["start", "fail"]
    assert isinstance(a.run.error, CancelRequested)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0
    await asyncio.sleep(0)  # and nothing of it is left over for the caller


async def test_a_hook_that_cancels_its_own_run_is_interrupted_at_its_next_await() -> None:
    reached: list[str] = []

    async def work(run: ToyRun) -> E:
        run.cancel()
        await asyncio.Event().wait()
        reached.append("after")
        return E.DID

    a = rig(enter_work=work)
    await a.driver.drive(a.run)
    assert reached == []
    assert a.run.state == S.LOST


async def test_a_veto_hook_that_stops_the_run_keeps_the_event_from_happening() -> None:
    async def stop(run: ToyRun) -> None:
        run.cancel()

    a = rig(before_did=stop, before_event=nothing)
    await a.driver.drive(a.run)
    assert a.facts.path == ["start", "fail"]


async def test_no_hook_runs_after_one_that_stopped_the_run() -> None:
    ran: list[str] = []

    async def stop(run: ToyRun) -> None:
        ran.append(run.hook)
        run.cancel()

    async def late(run: ToyRun) -> None:
        ran.append(run.hook)

    a = rig(after_did=stop, after_event=late)
    await a.driver.drive(a.run)
    assert ran == ["after_event", "after_did", "after_event"]
    assert a.facts.path == ["start", "did", "fail"]


async def test_a_limit_that_passes_while_a_stop_is_open_changes_nothing() -> None:
    began = asyncio.Event()

    async def stubborn(run: ToyRun) -> E:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await a.clock.sleep(20.0)
        return E.DID

    a = rig(enter_work=stubborn)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await began.wait()
    a.run.cancel()
    await a.clock.advance(20.0)
    await drive
    assert isinstance(a.run.error, CancelRequested)
    assert a.facts.path == ["start", "fail"]


async def test_a_deadline_that_passes_while_a_stop_is_open_is_not_lost() -> None:
    began = asyncio.Event()

    async def stubborn(run: ToyRun) -> E:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await a.clock.sleep(20.0)
        return E.DID

    to_ask = Edge(E.FAIL, (S.WORK,), S.ASK)
    graph = TOY.extend(without=[("work", "fail")], edges=[to_ask], dwell={S.ASK: None})
    a = rig(graph=graph, enter_work=stubborn)
    a.run.expires_at = 10.0
    drive = asyncio.create_task(a.driver.drive(a.run, park=False))
    await began.wait()
    a.run.cancel()
    await a.clock.advance(20.0)
    await drive
    assert a.facts.path == ["start", "fail", "fail"]
    assert [fact.reason for fact in a.facts.of(EventFailed)] == ["cancelled", "timeout"]


async def test_a_run_interrupted_in_its_terminal_state_ends_when_it_is_taken_up() -> None:
    began = asyncio.Event()

    async def after_finish(run: ToyRun) -> None:
        began.set()
        await asyncio.Event().wait()

    a = rig(after_finish=after_finish)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await began.wait()
    drive.cancel()
    await asyncio.wait((drive,))
    assert (a.run.state, a.run.ended) == (S.DONE, False)
    await a.driver.drive(a.run)
    assert a.run.ended


async def test_a_run_cancelled_before_it_is_driven_does_no_work() -> None:
    a = rig()
    a.run.cancel()
    await a.driver.drive(a.run)
    assert a.facts.path == ["fail"]
    assert a.run.ctx.iteration == 0


async def test_a_second_cause_is_ignored_while_the_first_is_open() -> None:
    a = rig()
    a.run.cancel("caller", "one")
    a.run.cancel("shutdown", "two")
    await a.driver.drive(a.run)
    assert str(a.run.error) == "cancelled by caller: one"


async def test_a_run_can_be_driven_on_in_a_task_that_was_asked_to_cancel_before() -> None:
    async def clean_up() -> Rig:
        a = rig(enter_work=hang)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            drive = a.driver.drive(a.run)
            asyncio.get_running_loop().call_soon(a.run.cancel)
            await drive
            assert a.run.state == S.LOST
            return a
        raise AssertionError

    async def hang(run: ToyRun) -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    task.cancel()
    a = await task
    assert isinstance(a.run.error, CancelRequested)


async def test_a_cancelled_hook_is_run_again_and_a_pending_event_is_fired_again() -> None:
    entered: list[int] = []
    began = asyncio.Event()

    async def work(run: ToyRun) -> E:
        entered.append(run.seq)
        return E.DID

    async def slow(run: ToyRun) -> None:
        began.set()
        if len(entered) == 1 and not a.facts.of(RunParked):
            await asyncio.Event().wait()

    a = rig(enter_work=work, before_did=slow)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await began.wait()
    drive.cancel()
    await asyncio.wait((drive,))
    assert (a.run.state, a.run.pending, a.run.fresh) == (S.WORK, E.DID, False)
    await a.driver.drive(a.run)
    assert entered == [1]
    assert a.run.state == S.DONE


async def test_firing_by_hand_a_cancelled_caller_gets_its_cancellation_and_the_journal_is_right() -> None:
    for number in range(1, 40):
        a, journal = eventful()
        task: asyncio.Task[Any] = asyncio.create_task(
            suspended_at(number, a.driver.fire(a.run, E.START), lambda: task.cancel())  # noqa: B023, PLW0108
        )
        await asyncio.wait((task,))
        check_journal(a, journal)
        if not task.cancelled():
            assert number > 8
            return
    raise AssertionError("it never got through")


async def test_firing_by_hand_a_stopped_run_raises_the_cause_once() -> None:
    a = rig()
    await a.driver.start(a.run)
    a.run.cancel()
    with pytest.raises(CancelRequested):
        await a.driver.fire(a.run, E.START)
    assert a.run.state == S.INIT
    await a.driver.fire(a.run, E.START)
    assert a.run.state == S.WORK
