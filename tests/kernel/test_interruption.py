"""Who cancels whom: hooks that swallow or rename a cancellation, stops from within, limits that pass meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from orchestrator.errors import CancelRequested
from orchestrator.kernel.fact import EventFailed, RunCompleted, RunParked
from orchestrator.kernel.graph import Edge
from orchestrator.kernel.outcome import Outcome
from tests.kernel.toy import TOY, E, Rig, S, ToyRun, nothing, rig


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


async def test_no_after_hook_of_an_edge_runs_once_an_enter_hook_stopped_the_run() -> None:
    ran: list[str] = []

    async def stop(run: ToyRun) -> E:
        run.cancel()
        return E.DID

    async def late(run: ToyRun) -> None:
        ran.append(run.hook)

    a = rig(enter_work=stop, after_start=late, after_fail=late)
    await a.driver.drive(a.run)
    assert ran == ["after_fail"]
    assert a.facts.path == ["start", "fail"]


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
    a.run.control.expires_at = a.clock.monotonic() + 10.0
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
    assert (a.run.state, a.run.cursor.pending_event, a.run.cursor.entry_pending) == (S.WORK, E.DID, False)
    await a.driver.drive(a.run)
    assert entered == [1]
    assert a.run.state == S.DONE


async def test_firing_by_hand_a_stopped_run_raises_the_cause_once() -> None:
    a = rig()
    await a.driver.start(a.run)
    a.run.cancel()
    with pytest.raises(CancelRequested):
        await a.driver.fire(a.run, E.START)
    assert a.run.state == S.INIT
    await a.driver.fire(a.run, E.START)
    assert a.run.state == S.WORK


async def test_a_second_request_to_cancel_does_not_stop_the_clean_up_of_the_first() -> None:
    cleaned = []

    async def after_fail(run: ToyRun) -> None:
        run.cancel()
        await asyncio.sleep(0)
        cleaned.append(run.run_id)

    async def enter_work(run: ToyRun) -> E:
        run.cancel()
        await asyncio.sleep(0)
        return E.DID

    a = rig(enter_work=enter_work, after_fail=after_fail)

    await a.driver.drive(a.run)

    assert cleaned == ["r1"]
    assert a.facts.of(RunCompleted)[0].outcome == Outcome.CANCELLED
    assert len(a.facts.of(EventFailed)) == 1
