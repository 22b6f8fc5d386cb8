"""Time limits: of a state (dwell) and of the whole run. All by a clock whose hands the tests move."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from orchestrator.errors import CancelRequested, DeadlineExceeded, Refused, StateTimeout
from orchestrator.kernel.fact import EventFailed, RunCompleted, RunParked
from orchestrator.kernel.graph import Edge
from orchestrator.kernel.journal import Lease
from orchestrator.kernel.mailbox import Signal
from tests.kernel.toy import TOY, E, Rig, S, SlowJournal, ToyRun, raises, rig


async def hang(run: ToyRun) -> None:
    await asyncio.Event().wait()


async def driven(a: Rig, *, park: bool = True) -> asyncio.Task[None]:
    task = asyncio.create_task(a.driver.drive(a.run, park=park))
    await a.clock.advance(0)
    return task


async def test_a_state_that_lasts_too_long_is_interrupted_and_fails() -> None:
    a = rig(enter_work=hang)
    drive = await driven(a)
    await a.clock.advance(9.9)
    assert not drive.done()
    await a.clock.advance(0.1)
    await drive
    assert a.run.state == S.LOST
    assert isinstance(a.run.error, StateTimeout)
    assert (a.run.error.state, a.run.error.seconds) == ("work", 10.0)
    (failed,) = a.facts.of(EventFailed)
    assert (failed.reason, failed.event, failed.hook) == ("timeout", "fail", "enter_work")
    assert not failed.committed


async def test_the_limit_is_that_of_the_state_one_is_in_not_of_the_one_before() -> None:
    async def wait(run: ToyRun) -> E:
        await a.clock.sleep(30.0)
        return E.DID

    a = rig(
        graph=TOY.extend(dwell={S.INIT: (5.0, E.FAIL), S.WORK: (40.0, E.FAIL), S.ASK: None}), enter_work=wait
    )
    drive = await driven(a)
    await a.clock.advance(30.0)
    await drive
    assert a.run.state == S.DONE


async def test_each_stay_has_the_whole_limit() -> None:
    async def wait(run: ToyRun) -> E:
        await a.clock.sleep(8.0)
        return E.DID

    a = rig(E.AGAIN, E.AGAIN, enter_work=wait)
    drive = await driven(a)
    await a.clock.advance(24.0)
    await drive
    assert a.run.state == S.DONE


async def test_a_hook_that_swallows_the_interruption_does_not_defeat_the_limit() -> None:
    async def stubborn(run: ToyRun) -> E:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return E.DID

    a = rig(enter_work=stubborn)
    drive = await driven(a)
    await a.clock.advance(10.0)
    await drive
    assert a.facts.path == ["start", "fail"]


@pytest.mark.campaign
async def test_hooks_that_never_wait_are_under_the_limit_too() -> None:
    async def spin(run: ToyRun) -> E:
        a.clock._move_to(a.clock._elapsed + 0.5)
        return E.DID

    a = rig(*[E.AGAIN] * 10_000, turns=10_000, enter_work=spin)
    a.run.control.expires_at = a.clock.monotonic() + 1_000.0
    await a.driver.drive(a.run)
    assert isinstance(a.run.error, DeadlineExceeded)


@pytest.mark.parametrize("park", [True, False], ids=["parked", "in place"])
async def test_a_waiting_states_own_event_is_fired_as_it_is(park: bool) -> None:
    a = rig(E.ASKED)
    drive = await driven(a, park=park)
    await a.clock.advance(60.0)
    if park:
        await a.driver.drive(a.run)
    await drive
    assert a.facts.path == ["start", "did", "asked", "late"]
    assert (a.run.error, a.facts.of(EventFailed)) == (None, [])
    assert a.facts.of(RunCompleted)[0].outcome == "completed"


async def test_an_answer_that_was_posted_counts_even_if_the_limit_has_passed_since() -> None:
    a = rig(E.ASKED)
    await a.driver.drive(a.run)
    a.run.mailbox.post(Signal(E.ANSWER))
    await a.clock.advance(61.0)
    await a.driver.drive(a.run)
    assert a.run.state == S.DONE


async def test_a_working_states_own_event_is_fired_and_the_interrupted_hook_told() -> None:
    slow = Edge(E.LATE, (S.WORK,), S.CHECK)
    graph = TOY.extend(edges=[slow], dwell={S.WORK: (10.0, E.LATE), S.ASK: None})
    a = rig(graph=graph, enter_work=hang)
    drive = await driven(a)
    await a.clock.advance(10.0)
    await drive
    assert a.facts.path == ["start", "late", "finish"]
    assert a.run.error is None
    assert [(f.event, f.reason, f.hook) for f in a.facts.of(EventFailed)] == [
        ("late", "timeout", "enter_work")
    ]


async def test_a_limit_that_fired_once_fires_again_in_a_later_stay() -> None:
    slow = Edge(E.LATE, (S.WORK,), S.CHECK)
    graph = TOY.extend(edges=[slow], dwell={S.WORK: (10.0, E.LATE), S.ASK: None})
    a = rig(E.AGAIN, graph=graph, enter_work=hang)
    drive = await driven(a)
    await a.clock.advance(20.0)
    await drive
    assert a.facts.path == ["start", "late", "again", "late", "finish"]


async def test_a_limit_that_a_hook_vetoes_fires_once_a_stay() -> None:
    a = rig(E.ASKED, before_late=raises(Refused("not yet")))
    await a.driver.drive(a.run)
    await a.clock.advance(60.0)
    await a.driver.drive(a.run)
    await a.driver.drive(a.run)
    assert a.run.state == S.ASK
    assert [fact.hook for fact in a.facts.of(EventFailed)] == ["before_late"]
    a.run.mailbox.post(Signal(E.ANSWER))
    await a.driver.drive(a.run)
    assert a.run.state == S.DONE


async def test_the_runs_deadline_interrupts_any_state() -> None:
    a = rig(enter_work=hang, graph=TOY.extend(dwell={S.ASK: None}))
    a.run.control.expires_at = a.clock.monotonic() + 7.0
    drive = await driven(a)
    await a.clock.advance(7.0)
    await drive
    assert a.run.state == S.LOST
    assert isinstance(a.run.error, DeadlineExceeded)
    assert a.run.error.seconds == 7.0


async def test_the_deadline_is_said_once_so_that_the_way_to_the_end_can_take_its_time() -> None:
    cleaned: list[str] = []

    async def clean(run: ToyRun) -> None:
        await a.clock.sleep(3.0)
        cleaned.append(run.cursor.state)

    a = rig(enter_work=hang, after_fail=clean)
    a.run.control.expires_at = a.clock.monotonic() + 7.0
    drive = await driven(a)
    await a.clock.advance(10.0)
    await drive
    assert cleaned == ["lost"]
    assert [type(fact.error) for fact in a.facts.of(EventFailed)] == [DeadlineExceeded]


async def test_a_deadline_that_has_passed_while_the_run_was_parked_fires_when_it_is_taken_up() -> None:
    a = rig(E.ASKED, graph=TOY.extend(dwell={S.WORK: None, S.ASK: None}))
    a.run.control.expires_at = a.clock.monotonic() + 5.0
    await a.driver.drive(a.run)
    await a.clock.advance(6.0)
    await a.driver.drive(a.run)
    assert isinstance(a.run.error, DeadlineExceeded)
    assert a.run.state == S.LOST


async def test_a_deadline_in_a_state_without_a_failure_edge_reaches_the_caller_once() -> None:
    graph = TOY.extend(without=[("ask", "fail")], dwell={S.ASK: None})
    a = rig(E.ASKED, graph=graph)
    await a.driver.drive(a.run)
    a.run.control.expires_at = a.clock.monotonic() + 5.0
    await a.clock.advance(6.0)
    with pytest.raises(DeadlineExceeded):
        await a.driver.drive(a.run)
    await a.driver.drive(a.run)
    assert a.run.state == S.ASK
    assert [fact.reason for fact in a.facts.of(RunParked)] == ["waiting", "interrupted"]


async def test_no_timer_is_left_when_a_run_is_over_or_parked() -> None:
    for plan in ((), (E.ASKED,)):
        a = rig(*plan)
        await a.driver.drive(a.run)
        assert [timer for timer in a.clock._timers if timer.callback] == []
        assert a.run.control.alarm is None


# ---- a limit that passes just as the state is left ----


class Blocked(SlowJournal):
    """Appends that last until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def append(self, lease: Lease, drafts: Any, blobs: Any = None) -> None:
        await self.gate.wait()
        await super().append(lease, drafts, blobs)


async def test_a_limit_that_passes_while_the_record_of_leaving_is_written_came_too_late() -> None:
    entered: list[str] = []

    async def done(run: ToyRun) -> None:
        entered.append("done")
        await asyncio.sleep(0)
        entered.append("left alone")

    journal = Blocked()
    journal.gate.set()
    graph = TOY.extend(pure=frozenset(), dwell={S.CHECK: (10.0, E.FAIL), S.ASK: None})
    a = rig(graph=graph, journal=journal, enter_done=done, before_finish=hold(journal))
    drive = await driven(a)
    await a.clock.advance(11.0)
    assert a.run.control.halted
    journal.gate.set()
    await drive
    assert a.facts.path == ["start", "did", "finish"]
    assert entered == ["done", "left alone"]
    assert (a.run.state, a.run.error) == (S.DONE, None)


def hold(journal: Blocked) -> Any:
    async def hook(run: ToyRun) -> None:
        journal.gate.clear()

    return hook


async def test_a_stop_that_comes_while_such_a_limit_is_open_is_not_lost_with_it() -> None:
    journal = Blocked()
    journal.gate.set()
    graph = TOY.extend(pure=frozenset(), dwell={S.CHECK: (10.0, E.FAIL), S.ASK: None})
    a = rig(graph=graph, journal=journal, before_finish=hold(journal))
    drive = await driven(a)
    await a.clock.advance(11.0)
    a.run.cancel()
    journal.gate.set()
    await drive
    assert a.facts.path == ["start", "did", "finish", "fail"]
    assert isinstance(a.run.error, CancelRequested)
