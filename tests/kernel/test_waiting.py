"""Signals from outside: read by the one driver, in waiting states; a stop at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.errors import CancelRequested, Refused
from orchestrator.kernel.fact import EventFailed, RunCompleted, RunParked, RunStarted, Transition
from orchestrator.kernel.mailbox import Mailbox, Signal
from tests.kernel.toy import TOY, E, Rig, S, ToyRun, nothing, rig


async def parked() -> Rig:
    a = rig(E.ASKED)
    await a.driver.drive(a.run)
    assert a.run.state == S.ASK
    return a


async def test_a_waiting_state_parks_and_goes_on_with_the_next_drive() -> None:
    a = await parked()
    assert not a.run.ended
    assert asyncio.all_tasks() == {asyncio.current_task()}
    a.run.mailbox.post(Signal(E.ANSWER, payload={"text": "yes"}))
    await a.driver.drive(a.run)
    assert a.run.state == S.DONE
    assert a.run.control.signal is not None
    assert a.run.control.signal.payload == {"text": "yes"}
    assert [fact.origin for fact in a.facts.of(RunStarted)] == ["new", "resumed"]
    assert a.facts.path == ["start", "did", "asked", "answer", "did", "finish"]


async def test_a_signal_that_is_there_already_is_taken_without_parking() -> None:
    a = rig(E.ASKED)
    a.run.mailbox.post(Signal(E.ANSWER))
    await a.driver.drive(a.run)
    assert a.run.state == S.DONE
    assert a.facts.of(RunParked) == []


async def test_with_park_false_it_waits_in_place() -> None:
    a = rig(E.ASKED)
    drive = asyncio.create_task(a.driver.drive(a.run, park=False))
    await a.clock.advance(0)
    assert a.run.state == S.ASK
    await a.clock.advance(1.0)
    assert not drive.done()
    assert a.clock.pending == 1, "the limit of the waiting state"
    a.run.mailbox.post(Signal(E.ANSWER))
    await drive
    assert a.run.state == S.DONE
    assert a.clock.pending == 0
    assert a.facts.of(RunParked) == []


async def test_an_internal_event_leaves_the_run_waiting() -> None:
    a = await parked()
    a.run.mailbox.post(Signal(E.NOTE))
    await a.driver.drive(a.run)
    assert a.run.state == S.ASK
    assert [fact.internal for fact in a.facts.of(Transition)] == [False, False, False, True]


async def test_the_same_id_counts_once() -> None:
    a = await parked()
    assert a.run.mailbox.post(Signal(E.NOTE, id="1"))
    assert not a.run.mailbox.post(Signal(E.NOTE, id="1"))
    assert a.run.mailbox.post(Signal(E.NOTE, id="2"))
    await a.driver.drive(a.run)
    assert not a.run.mailbox.post(Signal(E.NOTE, id="1"))
    await a.driver.drive(a.run)
    assert a.facts.path[3:] == ["note", "note"]


async def test_signals_without_an_id_all_count_and_keep_their_order() -> None:
    a = await parked()
    for event in (E.NOTE, E.NOTE, E.ANSWER):
        a.run.mailbox.post(Signal(event))
    await a.driver.drive(a.run)
    assert a.facts.path[3:] == ["note", "note", "answer", "did", "finish"]


@pytest.mark.parametrize(
    ("event", "reason"), [(E.FINISH, "undeclared_edge"), ("fly", "unknown_event")], ids=["unfit", "unknown"]
)
async def test_an_event_that_does_not_fit_is_told_and_the_run_stays(event: Any, reason: str) -> None:
    a = await parked()
    a.run.mailbox.post(Signal(event))
    await a.driver.drive(a.run)
    assert a.run.state == S.ASK
    (failed,) = a.facts.of(EventFailed)
    assert (failed.event, failed.reason, failed.state, failed.committed) == (event, reason, "ask", False)
    assert (a.run.error, a.run.failure, a.run.cursor.pending_event) == (None, None, None)
    a.run.mailbox.post(Signal(E.ANSWER))
    await a.driver.drive(a.run)
    assert a.run.state == S.DONE


async def test_a_vetoed_request_is_told_and_the_run_stays() -> None:
    async def veto(run: ToyRun) -> None:
        raise Refused("the plan changed")

    a = rig(E.ASKED, before_answer=veto)
    a.run.mailbox.post(Signal(E.ANSWER))
    await a.driver.drive(a.run)
    assert a.run.state == S.ASK
    assert [(fact.reason, fact.hook) for fact in a.facts.of(EventFailed)] == [("refused", "before_answer")]
    assert [fact.reason for fact in a.facts.of(RunParked)] == ["waiting"]


async def test_an_event_given_to_drive_is_fired_in_a_waiting_state() -> None:
    entered: list[str] = []

    async def ask(run: ToyRun) -> None:
        entered.append(run.state)

    a = rig(E.ASKED, enter_ask=ask)
    await a.driver.drive(a.run)
    await a.driver.drive(a.run, E.ANSWER)
    assert a.run.state == S.DONE
    assert entered == [S.ASK], "the work of the state is not done again"


async def test_an_event_given_to_drive_that_does_not_fit_leaves_the_run_waiting() -> None:
    a = await parked()
    await a.driver.drive(a.run, E.START)
    assert a.run.state == S.ASK
    assert [fact.reason for fact in a.facts.of(EventFailed)] == ["undeclared_edge"]
    assert a.run.cursor.pending_event is None


async def test_a_rest_state_waits_like_any_other_and_needs_no_end() -> None:
    graph = TOY.extend(terminal=frozenset(), rest=frozenset((S.DONE, S.LOST)), strict=False)
    a = rig(graph=graph)
    await a.driver.drive(a.run)
    assert (a.run.state, a.run.ended) == (S.DONE, False)
    assert [fact.reason for fact in a.facts.of(RunParked)] == ["waiting"]


# ---- a stop ----


async def test_a_stop_posted_to_a_parked_run_ends_it() -> None:
    a = await parked()
    a.run.mailbox.post(Signal(by="ann", why="changed my mind"))
    assert len(a.run.mailbox) == 1
    await a.driver.drive(a.run)
    assert a.run.state == S.LOST
    assert isinstance(a.run.error, CancelRequested)
    assert (a.run.error.reason, str(a.run.error)) == ("caller", "cancelled by caller: changed my mind")
    assert a.facts.of(RunCompleted)[0].outcome == "cancelled"
    assert a.run.control.signal is not None
    assert a.run.control.signal.by == "ann"


async def test_a_stop_interrupts_work_and_overtakes_other_signals() -> None:
    began = asyncio.Event()

    async def work(run: ToyRun) -> None:
        began.set()
        await asyncio.Event().wait()

    a = rig(enter_work=work)
    drive = asyncio.create_task(a.driver.drive(a.run))
    await began.wait()
    a.run.mailbox.post(Signal(E.ANSWER))
    a.run.mailbox.post(Signal(by="shutdown"))
    await drive
    assert a.run.state == S.LOST
    assert isinstance(a.run.error, CancelRequested)
    assert a.run.error.reason == "shutdown"
    assert len(a.run.mailbox) == 1


async def test_a_stop_reaches_a_run_that_waits_in_place() -> None:
    a = rig(E.ASKED)
    drive = asyncio.create_task(a.driver.drive(a.run, park=False))
    await a.clock.advance(0)
    assert a.run.state == S.ASK
    a.run.mailbox.post(Signal())
    await drive
    assert a.run.state == S.LOST


async def test_the_first_stop_counts() -> None:
    a = await parked()
    a.run.mailbox.post(Signal(why="one"))
    a.run.mailbox.post(Signal(why="two"))
    await a.driver.drive(a.run)
    assert "one" in str(a.run.error)


async def test_a_mailbox_that_has_something_does_not_wait() -> None:
    mailbox = Mailbox()
    mailbox.post(Signal(E.NOTE))
    await mailbox.wait()
    assert mailbox.take() == Signal(E.NOTE)
    assert mailbox.take() is None
    assert len(mailbox) == 0


# ---- can and cannot ----


async def test_a_run_knows_what_it_can_do() -> None:
    a = await parked()
    assert a.run.current == S.ASK
    assert a.run.available_events() == (E.ANSWER, E.FAIL, E.LATE, E.NOTE)
    assert a.run.can(E.ANSWER)
    assert a.run.can("answer")
    assert a.run.cannot(E.FINISH)
    assert a.run.cannot("fly")


async def test_a_guard_that_says_no_is_a_cannot() -> None:
    a = rig(turns=0)
    a.run.cursor.state = "check"
    assert a.run.cannot(E.AGAIN)
    a.run.ctx.turns = 1
    assert a.run.can(E.AGAIN)


async def test_nothing_can_be_done_while_an_event_is_in_flight() -> None:
    seen: list[bool] = []

    async def look(run: ToyRun) -> None:
        await nothing(run)
        seen.append(run.can(E.FAIL))

    a = rig(before_did=look)
    await a.driver.drive(a.run)
    assert seen == [False]
