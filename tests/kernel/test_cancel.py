"""Cancellation at every await point: the caller's passes through untouched, the run's own ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import CancelRequested
from orchestrator.kernel.fact import EventFailed, RunCompleted, RunParked
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.outcome import Outcome
from tests.kernel.toy import E, Rig, S, SlowJournal, ToyRun, nothing, rig, suspended_at


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
    assert a.run.cursor.state == (durable[-1]["dest"] if durable else "init")
    assert (a.run.writes.drafts, a.run.writes.unpublished, a.run.control.driving) == ([], [], False)
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
