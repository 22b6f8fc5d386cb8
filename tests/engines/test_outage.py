"""What an outage leaves behind: what a worker says of it, and that it is reached again by whoever gave it up."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging

import pytest

from orchestrator.engines import engine_directory, procrastinate
from orchestrator.engines import engine_directory as roster
from orchestrator.engines.engine_directory import STATUS, ask, engines
from orchestrator.engines.local_engine import LocalEngine
from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.engines.worker import Worker
from orchestrator.errors import ConfigError, Corrupt, JournalError, NotAdmitting, StoreDown, TooNew
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.testing.clock import FakeClock
from tests.engines.stage import Stage, agent, until
from tests.postgres import Cluster


@pytest.mark.campaign
async def test_a_worker_of_procrastinate_says_that_it_begins_anew_and_shows_no_traceback(
    server: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procrastinate, "_PATIENCE", 0.5)
    driven: list[str] = []

    async def drive(run_id: str, slice: int) -> None:  # noqa: A002 - the seam's word
        driven.append(run_id)

    one = ProcrastinateDispatcher(server.database())
    await one.start(drive, "w1", 1)
    try:
        with caplog.at_level(logging.WARNING):
            await asyncio.to_thread(server.stop, "immediate")
            await until(lambda: caplog.text.count("begins anew") > 1, 60)
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(60):
                while not driven:
                    with contextlib.suppress(StoreDown):  # its connections come back one by one
                        await one.submit("r", 0)
                    await asyncio.sleep(0.05)
    finally:
        await one.stop()
    assert not any(record.name.startswith("procrastinate") for record in caplog.records)
    assert "error connecting" not in caplog.text
    assert not any(record.exc_info for record in caplog.records)


async def test_a_worker_that_was_taken_for_dead_is_reached_again_and_looks_after_the_dead(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off for longer than its ttl, and the engine that closed its records has gone since."""
    monkeypatch.setattr(engine_directory, "POLL", 0.01)
    monkeypatch.setattr(roster, "ANSWERS_WITHIN", 30.0)
    async with (
        PostgresJournal(database) as host,
        PostgresJournal(database, name="w1") as journal,
        Worker(agent(Stage(), journal), ProcrastinateDispatcher(database), slots=1, grace=0) as worker,
    ):
        [seen] = await engines(host)
        await host.release(await host.claim(seen.run_id, "nobody", steal=True))
        async with LocalEngine(agent(Stage(), host), slots=1):
            assert (await host.head(seen.run_id)).reason == "process_died"
        async with asyncio.timeout(60):
            # A clock of the server that steps ends leases; the next beat renews them.
            while not (found := [one for one in await engines(host) if one.alive]):  # noqa: ASYNC110 - another task
                await asyncio.sleep(0.02)
        [again] = found
        assert (again.name, again.alive, again.run_id != seen.run_id) == ("w1", True, True)
        assert await worker._leads()
        said = await ask(host, again, STATUS, {}, "ann")
        assert said is not None
        assert said["engine"] == "w1"


def idle_worker(clock: FakeClock) -> Worker:
    """A worker that was not started, whose journal has no server."""
    journal = PostgresJournal("postgresql://127.0.0.1:1/none", name="w1")
    return Worker(
        Agent(FunctionLLM(lambda _: "done"), runtime=Runtime(journal=journal, clock=clock, observers=())),
        ProcrastinateDispatcher("postgresql://127.0.0.1:1/none"),
    )


async def test_a_run_that_cannot_be_carried_now_is_tried_again_after_doubling_delays_of_at_most_five_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(auto=True)
    worker = idle_worker(clock)
    steps = [
        StoreDown("away"),
        NotAdmitting("w1", "it starts", "wait"),
        *[JournalError("lost")] * 6,
        None,
        StoreDown("never"),
    ]

    async def driven(run_id: str) -> None:
        if (step := steps.pop(0)) is not None:
            raise step

    monkeypatch.setattr(worker, "_driven", driven)
    await worker._drive("r", 0)
    assert clock.slept == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert len(steps) == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    "error", [Corrupt("bad"), TooNew("version 9"), ConfigError("no agent"), ValueError("a defect")]
)
async def test_what_no_further_try_mends_is_logged_once_and_not_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(auto=True)
    worker = idle_worker(clock)

    async def driven(run_id: str) -> None:
        raise error

    monkeypatch.setattr(worker, "_driven", driven)
    await worker._drive("r", 3)
    assert clock.slept == []
    [record] = caplog.records
    assert record.getMessage() == f"run 'r' (slice 3) could not be driven: {type(error).__name__}: {error}"


@pytest.mark.parametrize("phase", ["draining", "stopped"])
async def test_a_worker_that_drains_leaves_a_run_to_the_next_sweep(
    phase: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(auto=True)
    worker = idle_worker(clock)
    load = worker.load()
    asked: list[str] = []

    async def driven(run_id: str) -> None:
        asked.append(run_id)
        if len(asked) == 2:
            monkeypatch.setattr(worker._engine, "load", lambda: dataclasses.replace(load, phase=phase))
        raise StoreDown("away")

    monkeypatch.setattr(worker, "_driven", driven)
    await worker._drive("r", 0)
    assert (asked, clock.slept, caplog.records) == (["r", "r"], [0.2], [])


async def test_a_cancelled_drive_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    worker = idle_worker(clock)
    asked: list[str] = []

    async def driven(run_id: str) -> None:
        asked.append(run_id)
        raise StoreDown("away")

    monkeypatch.setattr(worker, "_driven", driven)
    driving = asyncio.create_task(worker._drive("r", 0))
    await clock.advance(0.3)
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    assert asked == ["r", "r"]


class Library:
    """The worker of Procrastinate: each start ends as the next of `ends` says, the last one waits."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.starts = 0

    async def run_worker_async(self, **_: object) -> None:
        self.starts += 1
        if self.ends:
            if (end := self.ends.pop(0)) is not None:
                raise end
            return
        with contextlib.suppress(asyncio.CancelledError):  # as the library does
            await asyncio.Event().wait()


async def test_a_worker_of_procrastinate_is_started_again_each_second_until_it_ceases(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, library = FakeClock(), Library(OSError("gone"), None, OSError("gone"))
    one = ProcrastinateDispatcher("postgresql://127.0.0.1:1/none", clock=clock)
    one._app = library
    one._working = working = asyncio.create_task(one._work("w1", 1))
    await clock.advance(0.9)
    assert library.starts == 1
    await clock.advance(0.1)
    assert library.starts == 2
    await clock.advance(2)
    assert library.starts == 4
    await clock.advance(60)
    await one.cease()
    await working  # the library swallowed the cancellation: the worker ends all the same
    assert (library.starts, clock.slept) == (4, [1.0, 1.0, 1.0])
    assert [record.getMessage() for record in caplog.records] == [
        "worker w1 begins anew: OSError: gone",
        "worker w1 begins anew: StoreDown: the worker of Procrastinate ended with its connection",
        "worker w1 begins anew: OSError: gone",
    ]


async def test_a_worker_of_procrastinate_that_ceases_between_two_starts_is_not_started_again() -> None:
    clock, library = FakeClock(), Library(OSError("gone"))
    one = ProcrastinateDispatcher("postgresql://127.0.0.1:1/none", clock=clock)
    one._app = library
    one._working = working = asyncio.create_task(one._work("w1", 1))
    await clock.advance(0.5)
    await one.cease()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert library.starts == 1
