"""What a hook keeps halfway through a state is there after a crash; messages wait until a hook reads them."""

from __future__ import annotations

import pytest

from orchestrator.errors import JournalError
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.mailbox import Mailbox, Signal
from tests.kernel.toy import Context, E, S, SlowJournal, ToyRun, machine, new_run


class Died(BaseException):
    """The process is gone."""


async def _halfway(run: ToyRun) -> E:
    run.ctx.turns += 1
    run.note("half", {"of": run.cursor.state})
    await run.keep()
    raise Died


async def test_what_is_kept_halfway_is_in_one_append_and_the_state_stands_as_it_was() -> None:
    journal = MemoryJournal()
    made = machine(enter_work=_halfway)
    driver = Driver(made, journal=journal, codec=ContextCodec(Context))
    run = new_run(made)

    with pytest.raises(Died):
        await driver.drive(run)

    records = await journal.load("r1")
    assert [record.kind for record in records][-2:] == ["half", "context"]
    stored = StoredRun.of("r1", records)
    assert (stored.state, stored.next, stored.context["turns"]) == (S.WORK, None, 101)


async def test_keeping_raises_where_the_journal_is_lost() -> None:
    journal = SlowJournal()
    journal.broken_at = 2
    seen: list[Exception] = []

    async def work(run: ToyRun) -> E:
        run.ctx.turns += 1
        try:
            await run.keep()
        except JournalError as error:
            seen.append(error)
            raise
        return E.DID

    made = machine(enter_work=work)
    run = new_run(made)
    await Driver(made, journal=journal, codec=ContextCodec(Context)).drive(run)

    assert (run.cursor.state, [str(error) for error in seen]) == (S.LOST, ["disk full"])


async def test_without_a_journal_there_is_nothing_to_keep() -> None:
    async def work(run: ToyRun) -> E:
        run.ctx.turns = 7
        await run.keep()
        return E.DID

    made = machine(enter_work=work)
    run = new_run(made)
    await Driver(made).drive(run)

    assert (run.cursor.state, run.ctx.turns) == (S.DONE, 7)


def test_messages_are_read_in_order_each_id_once_and_apart_from_events_and_answers() -> None:
    box = Mailbox()
    for number in (1, 2, 2, 3):
        box.post(Signal(kind="message", id=str(number), why=f"m{number}"))
    box.post(Signal(kind="decision", why="d"))
    box.post(Signal(E.NOTE, why="e"))

    assert len(box) == 5
    assert [box.message() for _ in range(4)] == [
        *(Signal(kind="message", id=str(number), why=f"m{number}") for number in (1, 2, 3)),
        None,
    ]
    assert (box.decision(), box.take()) == (Signal(kind="decision", why="d"), Signal(E.NOTE, why="e"))
