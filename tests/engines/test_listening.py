"""An engine goes on listening for orders whatever one of them, or the store, does to it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.engines import engine_directory
from orchestrator.engines.engine_directory import Registration
from orchestrator.errors import JournalError, StoreDown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.clock import SystemClock
from orchestrator.kernel.journal import Posted
from tests.engines.stage import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_directory, "POLL", 0.001)


@asynccontextmanager
async def listening(
    journal: MemoryJournal, take: Callable[[Posted], Awaitable[None]]
) -> AsyncIterator[tuple[Registration, asyncio.Task[None]]]:
    engine = Registration(journal, SystemClock())
    await engine.begin({"name": "mill"})
    task = asyncio.create_task(engine.listen(take))
    try:
        yield engine, task
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_an_order_that_fails_by_a_defect_is_told_once_and_those_behind_it_are_carried_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, carried_out = MemoryJournal(), []

    async def take(posted: Posted) -> None:
        if posted.id == "first":
            raise ValueError("no such thing")
        carried_out.append(posted.id)

    async with listening(journal, take) as (engine, task):
        for name in ("first", "second"):
            await journal.post(engine.run_id, Posted(name, "pause_all", {}, "ann"))
        await until(lambda: carried_out == ["second"])
        await journal.post(engine.run_id, Posted("third", "drain", {}, "ann"))
        await until(lambda: carried_out == ["second", "third"])
        assert not task.done()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(
        f"engine run {engine.run_id} could not carry out 'pause_all' of ann (request first)"
    )
    assert told.endswith(" and skips it: ValueError: no such thing")


async def test_an_order_that_the_store_could_not_take_down_is_tried_again() -> None:
    journal, tries = MemoryJournal(), []

    async def take(posted: Posted) -> None:
        tries.append(posted.id)
        if len(tries) == 1:
            raise StoreDown("the disk is full")

    async with listening(journal, take) as (engine, _):
        await journal.post(engine.run_id, Posted("only", "drain", {}, "ann"))
        await until(lambda: len(tries) == 2)


async def test_a_store_with_a_defect_is_told_of_once_and_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(MemoryJournal):
        asked = 0

        async def news(self, since: int) -> tuple[int, list[str]]:
            self.asked += 1
            if 1 < self.asked < 20:
                raise KeyError("position")
            return await super().news(since)

    journal, carried_out = Odd(), []

    async def take(posted: Posted) -> None:
        carried_out.append(posted.id)

    with caplog.at_level(logging.ERROR, "orchestrator"):
        async with listening(journal, take) as (engine, _):
            await until(lambda: journal.asked > 1)
            await journal.post(engine.run_id, Posted("only", "drain", {}, "ann"))
            await until(lambda: carried_out == ["only"])
    assert [record.getMessage() for record in caplog.records] == [
        f"engine run {engine.run_id} cannot read its operator commands: KeyError: 'position'"
    ]


async def test_an_engine_that_was_taken_for_dead_goes_on_under_a_new_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was frozen, or cut off from the server, and the next engine that started closed its records."""
    journal, carried_out = MemoryJournal(), []

    async def take(posted: Posted) -> None:
        carried_out.append(posted.id)

    async with listening(journal, take) as (engine, _):
        first, other = engine.run_id, Registration(journal, SystemClock())
        await journal.release(await journal.claim(first, "nobody", steal=True))
        await other.begin({"name": "other"})
        await other.close_lost("engine other")
        assert (await journal.head(first)).status == "ended"
        await until(lambda: engine.run_id != first)
        await until(lambda: engine._lease is not None)
        head = await journal.head(engine.run_id)
        assert (head.status, head.owner is None) == ("open", False)
        about = (await journal.load(engine.run_id))[0].body["engine"]
        assert (about["name"], about["before"]) == ("mill", first)
        await journal.post(engine.run_id, Posted("first", "pause_all", {}, "ann"))
        await until(lambda: carried_out == ["first"])
        await engine.end({})
        assert (await journal.head(engine.run_id)).status == "ended"
        [told] = [record.getMessage() for record in caplog.records]
        assert told == f"engine run {first} was taken for dead; the engine continues as {engine.run_id}"


async def test_an_engine_that_cannot_say_that_it_stops_does_not_seem_to_live() -> None:
    class Full(MemoryJournal):
        full = False

        def append(self, *about: Any, **more: Any) -> Any:
            if self.full:
                raise StoreDown("the disk is full")
            return super().append(*about, **more)

    journal = Full()
    engine = Registration(journal, SystemClock())
    await engine.begin({"name": "mill"})
    journal.full = True
    with pytest.raises(StoreDown):
        await engine.end({})
    assert (await journal.head(engine.run_id)).owner is None


class LateJournal(MemoryJournal):
    """A store whose creation of runs waits until it is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = asyncio.Event()

    async def create(self, *args: Any, **options: Any) -> Any:
        await self.allowed.wait()
        return await super().create(*args, **options)


async def test_an_engine_that_stops_before_its_run_is_created_ends_that_run_afterwards() -> None:
    journal = LateJournal()
    engine = Registration(journal, SystemClock())
    starting = asyncio.create_task(engine.begin({"name": "mill"}))
    await asyncio.sleep(0)
    with pytest.raises(JournalError, match="is not held here"):
        await engine.end({})
    journal.allowed.set()
    await starting
    head = await journal.head(engine.run_id)
    assert (head.status, head.owner) == ("ended", None)


async def test_an_engine_that_is_cancelled_while_its_run_is_created_ends_that_run() -> None:
    journal = LateJournal()
    engine = Registration(journal, SystemClock())
    starting = asyncio.create_task(engine.begin({"name": "mill"}))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.sleep(0)
    journal.allowed.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    head = await journal.head(engine.run_id)
    assert (head.status, head.owner) == ("ended", None)
