"""What a worker says while its server is away: that it begins anew, and nothing of a library's own."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from orchestrator.engines import procrastinate
from orchestrator.engines.procrastinate import ProcrastinateDispatcher
from orchestrator.errors import StoreDown
from tests.engines.stage import until
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
