"""Readiness that asks the store itself: yes while a journal answers, no when it is closed, hangs or is not heard."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.telemetry.exposition import answers
from orchestrator.telemetry.exposition.page import HealthCheck


async def test_a_journal_that_is_open_is_ready_and_a_closed_one_is_not(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        health = HealthCheck(ready={"journal": answers(journal, patience=60)})
        assert await asyncio.to_thread(health.ready) == (True, {"ready": True, "checks": {"journal": True}})
    assert await asyncio.to_thread(health.ready) == (False, {"ready": False, "checks": {"journal": False}})


async def test_a_store_that_hangs_is_not_ready_and_is_not_asked_for_ever() -> None:
    dropped = asyncio.Event()

    class Hanging:
        async def news(self, since: int) -> tuple[int, list[str]]:
            try:
                await asyncio.Event().wait()
            finally:
                dropped.set()
            raise AssertionError(since)

    health = HealthCheck(ready={"journal": answers(Hanging(), patience=0.05)})
    assert not (await asyncio.to_thread(health.ready))[0]
    await asyncio.wait_for(dropped.wait(), 60)


async def test_a_store_whose_loop_is_blocked_is_not_ready() -> None:
    health = HealthCheck(ready={"journal": answers(MemoryJournal(), patience=0.05)})
    said: list[bool] = []
    asking = threading.Thread(target=lambda: said.append(health.ready()[0]))
    asking.start()
    asking.join(60)  # on the loop's own thread: nothing else runs on it meanwhile
    assert said == [False]
    async with asyncio.timeout(60):
        while not (await asyncio.to_thread(health.ready))[0]:
            pass  # the loop runs again, but not always within the patience of the check


@pytest.mark.filterwarnings("error")
def test_a_store_whose_loop_is_gone_is_not_ready() -> None:
    async def made() -> HealthCheck:
        return HealthCheck(ready={"journal": answers(MemoryJournal())})

    assert not asyncio.run(made()).ready()[0]
