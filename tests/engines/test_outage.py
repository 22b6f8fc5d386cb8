"""What an outage leaves behind: what a worker says of it, and that it is reached again by whoever gave it up."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from orchestrator.engines import procrastinate, registration
from orchestrator.engines.local import LocalEngine
from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.engines.registration import STATUS
from orchestrator.engines.roster import ask, engines
from orchestrator.engines.worker import Worker
from orchestrator.errors import StoreDown
from orchestrator.journal.postgres import PostgresJournal
from tests.engines.stage import Stage, agent, until
from tests.postgres import Cluster


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
    monkeypatch.setattr(registration, "POLL", 0.01)
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
            while not (found := await engines(host)):  # noqa: ASYNC110 - another task makes it
                await asyncio.sleep(0.02)
        [again] = found
        assert (again.name, again.alive, again.run_id != seen.run_id) == ("w1", True, True)
        assert await worker._leads()
        said = await ask(host, again, STATUS, {}, "ann")
        assert said is not None
        assert said["engine"] == "w1"
