"""Requests to cancel that nobody made: what a task group leaves in the task it failed in, on Python 3.11 and 3.12."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.errors import CancelRequested
from orchestrator.kernel.fact import RunCompleted, RunParked
from tests.kernel.toy import E, S, ToyRun, rig


async def fails() -> None:
    await asyncio.sleep(0)
    raise ValueError("no such thing")


async def group() -> None:
    """A group that fails while it waits for its tasks."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fails())


async def handled(run: ToyRun) -> E:
    try:
        await group()
    except* ValueError:
        pass
    return E.DID


async def raised(run: ToyRun) -> E:
    await group()
    return E.DID


async def test_a_hook_whose_group_fails_fails_the_run_with_the_groups_error() -> None:
    a = rig(enter_work=raised)
    await asyncio.create_task(a.driver.drive(a.run))
    assert a.facts.path == ["start", "fail"]
    assert isinstance(a.run.error, ExceptionGroup)
    assert [str(error) for error in a.run.error.exceptions] == ["no such thing"]
    assert a.facts.of(RunCompleted)[0].outcome == "failed"


async def test_a_hook_that_handles_what_its_group_raises_goes_on() -> None:
    a = rig(enter_work=handled)
    await asyncio.create_task(a.driver.drive(a.run))
    assert (a.run.state, a.run.error) == (S.DONE, None)
    assert a.facts.of(RunParked) == []


async def test_a_time_limit_in_a_later_hook_is_still_one() -> None:
    async def late(run: ToyRun) -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    a = rig(enter_work=handled, after_did=late)
    await asyncio.create_task(a.driver.drive(a.run))
    assert a.facts.path == ["start", "did", "fail"]
    assert isinstance(a.run.error, TimeoutError)


@pytest.mark.parametrize("hook", [handled, raised])
@pytest.mark.parametrize("turn", range(6))
async def test_a_caller_who_gives_up_while_a_group_fails_gets_its_cancellation(
    hook: object, turn: int
) -> None:
    async def work(run: ToyRun) -> E:
        began.set()
        return await hook(run)  # type: ignore[operator,no-any-return]

    began = asyncio.Event()
    a = rig(enter_work=work)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await began.wait()
    for _ in range(turn):
        await asyncio.sleep(0)
    was_over = a.run.ended or a.run.error is not None
    drive.cancel()
    await asyncio.wait((drive,))
    assert drive.cancelled() or was_over
    assert was_over or a.run.error is None
    if drive.cancelled() and not a.run.ended:
        assert [fact.reason for fact in a.facts.of(RunParked)] == ["interrupted"]


@pytest.mark.parametrize("hook", [handled, raised])
async def test_a_run_that_is_stopped_while_a_group_fails_ends_as_cancelled(hook: object) -> None:
    async def work(run: ToyRun) -> E:
        asyncio.get_running_loop().call_soon(run.cancel)
        return await hook(run)  # type: ignore[operator,no-any-return]

    a = rig(enter_work=work)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await drive
    assert isinstance(a.run.error, CancelRequested)
    assert a.facts.of(RunCompleted)[0].outcome == "cancelled"
    assert not drive.cancelling()


async def test_whoever_cancels_the_task_that_a_hook_runs_in_leaves_the_run_where_it_is() -> None:
    inside: list[asyncio.Task[object]] = []

    async def work(run: ToyRun) -> E:
        task = asyncio.current_task()
        assert task is not None
        inside.append(task)
        began.set()
        await asyncio.Event().wait()
        return E.DID

    began = asyncio.Event()
    a = rig(enter_work=work)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await began.wait()
    inside[0].cancel()
    await asyncio.wait((drive,))
    assert drive.cancelled()
    assert a.run.error is None
    assert [fact.reason for fact in a.facts.of(RunParked)] == ["interrupted"]
