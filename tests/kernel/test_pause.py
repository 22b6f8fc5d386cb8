"""A pause at any moment: the run parks between two steps, no work is lost or repeated, and a resume continues it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from orchestrator.errors import JournalError
from orchestrator.kernel.fact import RunCompleted, RunParked
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.outcome import Outcome
from tests.kernel.toy import E, Hook, Rig, S, SlowJournal, ToyRun, nothing, rig, suspended_at

PAUSE = Signal(kind="pause", by="ann", why="lunch")
RESUME = Signal(kind="resume", by="ann")


def counted(*, objects: bool, journal: Any = None) -> tuple[Rig, list[str]]:
    """A run whose hooks wait and are counted; with `objects` its events are objects, as those of an RLM."""
    seen: list[str] = []

    def hook(name: str, event: E | None = None) -> Hook:
        async def counts(run: ToyRun) -> E | None:
            await nothing(run)
            seen.append(f"{name} {run.state}")
            if objects and event is not None:
                run.set_event_object(object())
            return event

        return counts

    made = rig(
        journal=journal,
        enter_init=hook("enter", E.START),
        enter_work=hook("enter", E.DID),
        enter_check=hook("enter", E.FINISH),
        enter_done=hook("enter"),
        leave_state=hook("leave"),
        after_event=hook("after"),
    )
    return made, seen


@pytest.mark.parametrize("objects", [False, True], ids=["names", "objects"])
@pytest.mark.parametrize("moment", range(1, 13))
async def test_a_pause_parks_the_run_between_two_steps_and_a_resume_repeats_nothing(
    moment: int, *, objects: bool
) -> None:
    whole, hooks = counted(objects=objects)
    await whole.driver.drive(whole.run)
    a, seen = counted(objects=objects)
    await suspended_at(moment, a.driver.drive(a.run), lambda: a.run.mailbox.post(PAUSE))
    if not a.run.ended:
        (parked,) = a.facts.of(RunParked)
        assert (parked.reason, parked.state) == ("paused", a.run.state)
        assert (a.run.cursor.pending_event is None) or not objects, (
            "a pending event that is an object is lost"
        )
        await a.driver.drive(a.run)
        assert len(a.facts.of(RunParked)) == 1, "it is still parked"
        a.run.mailbox.post(RESUME)
        await a.driver.drive(a.run)
    assert a.run.state == S.DONE
    assert seen == hooks
    assert a.facts.path == whole.facts.path


async def test_a_pause_in_a_transition_lets_the_work_of_the_next_state_finish_where_events_are_names() -> (
    None
):
    a, seen = counted(objects=False)
    a.run.mailbox.post(PAUSE)
    await a.driver.drive(a.run)
    assert (a.run.state, seen) == (S.INIT, [])
    a.run.mailbox.post(RESUME)

    async def pauses(run: ToyRun) -> None:
        run.mailbox.post(PAUSE)

    b = rig(leave_init=pauses)
    await b.driver.drive(b.run)
    assert (b.run.state, b.run.cursor.pending_event, b.run.ctx.iteration) == (S.WORK, E.DID, 1)


@pytest.mark.parametrize("broken", [2, 3])
@pytest.mark.parametrize("moment", range(8, 16))
async def test_a_paused_run_whose_events_are_objects_fails_when_it_loses_its_journal(
    moment: int, broken: int
) -> None:
    """No request to resume could reach it, so it is not parked, and its failure state does its work."""
    journal = SlowJournal()
    journal.broken_at = broken
    a, _ = counted(objects=True, journal=journal)
    async with asyncio.timeout(60):
        with contextlib.suppress(JournalError):  # the record of its parking was the one that failed
            await suspended_at(moment, a.driver.drive(a.run), lambda: a.run.mailbox.post(PAUSE))
    if a.run.ended and a.run.control.detached:
        assert a.run.state == S.LOST
        assert [end.outcome for end in a.facts.of(RunCompleted)] == [Outcome.FAILED]
    else:
        assert len(a.facts.of(RunParked)) == 1
