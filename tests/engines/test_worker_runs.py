"""A worker and the slices that its dispatcher gives it: what it executes, leaves alone, hands on and logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.engines import engine_directory
from orchestrator.engines import worker as workers
from orchestrator.engines.dispatcher import Drive
from orchestrator.engines.worker import Worker
from orchestrator.errors import ConfigError, StoreDown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import Draft
from orchestrator.kernel.outcome import Outcome
from orchestrator.testing.clock import FakeClock
from tests.engines.stage import Stage, agent, until


class Shared(MemoryJournal):
    """A journal that many machines share, with the workers that are said to use it."""

    def __init__(self, name: str = "w1") -> None:
        super().__init__()
        self.name = name
        self.peers = [SimpleNamespace(name=name, alive=True)]

    async def open(self) -> None: ...

    async def holders(self) -> list[Any]:
        return list(self.peers)


class Placed:
    """A dispatcher that stores what it is asked to do."""

    def __init__(self) -> None:
        self.submitted: list[tuple[str, int, str]] = []
        self.living: list[frozenset[str]] = []
        self.calls: list[str] = []
        self.lost: Callable[[], int] = lambda: 0
        self.fails = ""
        self.drive: Drive | None = None

    async def start(self, drive: Drive, name: str, slots: int) -> None:
        self.calls.append(f"start {name} {slots}")
        self.drive = drive
        self._failing("start")

    async def submit(self, run_id: str, slice: int, *, tenant: str = "") -> None:  # noqa: A002 - the protocol's name
        self.submitted.append((run_id, slice, tenant))

    async def reap(self, living: frozenset[str]) -> int:
        self.living.append(living)
        return self.lost()

    async def cease(self) -> None:
        self.calls.append("cease")
        self._failing("cease")

    async def stop(self) -> None:
        self.calls.append("stop")

    def _failing(self, call: str) -> None:
        if self.fails == call:
            raise StoreDown("the server does not answer")

    async def drives(self, run_id: str, slice: int) -> None:  # noqa: A002 - the protocol's name
        """Give the worker a slice, in a task of its own as a dispatcher does."""
        assert self.drive is not None
        await asyncio.create_task(self._driven(self.drive, run_id, slice))

    async def _driven(self, drive: Drive, run_id: str, slice: int) -> None:  # noqa: A002
        await drive(run_id, slice)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "BEAT", 0.002)


async def stored(journal: Shared, run_id: str, prompt: str) -> None:
    await agent(Stage(), journal).deposit(prompt, run_id=run_id, tenant="acme")


async def test_a_slice_is_executed_to_its_end_and_one_of_an_ended_run_is_nothing() -> None:
    stage, journal, dispatcher = Stage(), Shared(), Placed()
    stage.let("quick")
    await stored(journal, "r", "quick")
    async with Worker(agent(stage, journal), dispatcher, slots=3) as worker:
        assert worker.name == "w1"
        await dispatcher.drives("r", 0)
        assert (await journal.head("r")).outcome == Outcome.COMPLETED
        await dispatcher.drives("r", 0)
        await dispatcher.drives("unknown", 0)
    assert stage.asked == ["quick"]
    assert dispatcher.calls == ["start w1 3", "cease", "stop"]
    assert dispatcher.submitted == [("r", 0, "acme")], "the engine found it at its start"


async def test_a_run_of_another_process_or_a_paused_one_is_left_alone() -> None:
    stage, journal, dispatcher = Stage(), Shared(), Placed()
    await stored(journal, "owned", "quick")
    await stored(journal, "paused", "quick")
    await journal.claim("owned", "somewhere else")
    lease = await journal.claim("paused", "w0")
    journal.append(lease, [Draft("parked", {"reason": "paused", "at": 1.0})])
    await journal.release(lease)
    before = [await journal.head(name) for name in ("owned", "paused")]
    async with Worker(agent(stage, journal), dispatcher):
        for name in ("owned", "paused"):
            await dispatcher.drives(name, 0)
    assert [await journal.head(name) for name in ("owned", "paused")] == before
    assert stage.asked == []


async def test_a_run_that_a_draining_worker_leaves_is_submitted_again_for_its_tenant() -> None:
    stage, journal, dispatcher = Stage(), Shared(), Placed()
    await stored(journal, "r", "look")
    async with Worker(agent(stage, journal), dispatcher, grace=0) as worker:
        driving = asyncio.create_task(dispatcher.drives("r", 0))
        await until(lambda: bool(stage.waiting))
        draining = asyncio.create_task(worker._engine.drain(0))
        await until(lambda: worker.load().phase == "draining")
        stage.let("look")
        await draining
        await driving
        head = await journal.head("r")
        assert (head.status, head.reason) == ("parked", "shutdown")
        assert head.seq > 0
        assert dispatcher.submitted == [("r", 0, "acme"), ("r", head.seq, "acme")], (
            "when it was found, and left"
        )


async def test_a_slice_that_comes_to_a_draining_worker_is_returned_for_a_worker_that_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "RETURN", 0.001)
    monkeypatch.setattr(engine_directory, "_REREAD", 0.0)
    stage, journal, dispatcher = Stage(), Shared(), Placed()
    async with (
        Worker(agent(stage, journal), Placed(), rescan=1000.0),
        Worker(agent(stage, journal), dispatcher, rescan=1000.0) as leaving,
    ):
        await stored(journal, "r", "quick")
        await leaving._engine.drain(0)
        dispatcher.submitted.clear()
        await dispatcher.drives("r", 0)
        await until(lambda: not leaving._driving)
        assert dispatcher.submitted == [("r", 0, "acme")]
        assert (await journal.head("r")).seq == 0
    assert stage.asked == []


async def test_a_run_that_cannot_be_executed_is_logged_with_its_slice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, dispatcher = Shared(), Placed()
    worker = agent(Stage(), journal)
    body = {"graph": "llm_loop", "fingerprint": worker.hosting.fingerprint, "at": 0.0, "schema": 1}
    body["context"] = {"limits": 3}
    await journal.release(await journal.create("r", "", body))
    with caplog.at_level(logging.ERROR, "orchestrator"):
        async with Worker(worker, dispatcher):
            await dispatcher.drives("r", 7)
    said = [record.getMessage() for record in caplog.records]
    assert any(one.startswith("run 'r' (slice 7) could not be driven: ") for one in said), said


async def test_a_slice_of_another_agent_is_returned_as_long_as_a_live_worker_has_that_agent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "RETURN", 0.001)
    monkeypatch.setattr(engine_directory, "_REREAD", 0.0)
    journal, dispatcher, others = Shared(), Placed(), Placed()
    sales = agent(Stage(), journal, name="sales")
    await sales.deposit("quick", run_id="r", tenant="acme")
    before = await journal.head("r")
    with caplog.at_level(logging.WARNING, "orchestrator"):
        async with Worker(agent(Stage(), journal, name="support"), dispatcher) as worker:
            await dispatcher.drives("r", 0)
            await until(lambda: not worker._driving)
            assert dispatcher.submitted == [], "no live worker has the agent: the run waits in the journal"
            async with Worker(sales, others):
                await dispatcher.drives("r", 0)
                await until(lambda: not worker._driving)
                assert dispatcher.submitted == [("r", 0, "acme")]
    assert (caplog.records, await journal.head("r")) == ([], before)


async def test_the_first_worker_by_name_returns_the_slices_of_dead_ones_and_logs_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, dispatcher = Shared(), Placed()
    journal.peers += [SimpleNamespace(name="w0", alive=False), SimpleNamespace(name="w2", alive=True)]
    found = iter([2])
    dispatcher.lost = lambda: next(found, 0)
    with caplog.at_level(logging.WARNING, "orchestrator"):
        async with Worker(agent(Stage(), journal), dispatcher):
            await until(lambda: len(dispatcher.living) > 2)
    assert set(dispatcher.living) == {frozenset({"w1", "w2"})}
    assert [record.getMessage() for record in caplog.records] == [
        "worker w1 returned 2 slices of dead workers to the queue"
    ]


async def test_another_worker_does_not_look_for_dead_ones() -> None:
    journal, first, second = Shared(), Placed(), Placed()
    async with Worker(agent(Stage(), journal), first):
        journal.name = "w2"
        async with Worker(agent(Stage(), journal), second):
            seen = len(first.living)
            await until(lambda: len(first.living) > seen + 3)
            assert second.living == []


async def test_a_search_that_fails_is_logged_once_until_another_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, dispatcher = Shared(), Placed()
    turns = iter([True, True, False, True])

    def lost() -> int:
        if next(turns, False):
            raise StoreDown("the server does not answer")
        return 0

    dispatcher.lost = lost
    with caplog.at_level(logging.WARNING, "orchestrator"):
        async with Worker(agent(Stage(), journal), dispatcher):
            await until(lambda: len(dispatcher.living) > 5)
    said = "worker w1 cannot look for dead workers: StoreDown: the server does not answer"
    assert [record.getMessage() for record in caplog.records] == [said] * 2


async def test_a_worker_without_a_name_or_with_that_of_a_living_one_is_refused() -> None:
    nameless, dispatcher = Shared(""), Placed()
    with pytest.raises(ConfigError, match="a worker needs a unique name"):
        async with Worker(agent(Stage(), nameless), dispatcher):
            pass
    journal, clock = Shared(), FakeClock()
    journal.peers *= 2
    worker = Worker(agent(Stage(), journal, clock=clock), dispatcher)
    starting = asyncio.create_task(worker.__aenter__())
    await clock.advance(workers.TWIN - 0.1)
    await asyncio.sleep(0.05)
    assert not starting.done()
    await clock.advance(0.2)
    with pytest.raises(ConfigError, match="a worker named 'w1' runs already"):
        await starting
    assert dispatcher.calls == []


@pytest.mark.parametrize("parks", [True, False])
async def test_agents_park_while_they_belong_to_a_worker_and_are_as_before_after_a_failed_start(
    *, parks: bool
) -> None:
    journal, dispatcher = Shared(), Placed()
    one = agent(Stage(), journal)
    one.parks = parks
    dispatcher.fails = "start"
    with pytest.raises(StoreDown):
        async with Worker(one, dispatcher):
            pass
    assert (one.parks, dispatcher.calls) == (parks, ["start w1 16", "stop"])
    dispatcher.fails = ""
    async with Worker(one, dispatcher):
        assert one.parks
    assert one.parks is parks


async def test_a_worker_that_cannot_leave_the_queue_ends_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, dispatcher = Shared(), Placed()
    dispatcher.fails = "cease"
    with caplog.at_level(logging.ERROR, "orchestrator"):
        async with Worker(agent(Stage(), journal), dispatcher):
            pass
    said = "worker w1 could not leave the queue: StoreDown: the server does not answer"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert dispatcher.calls[-1] == "stop"
