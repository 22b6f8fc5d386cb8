"""Signals drain an engine, and its journal names them."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.journal.memory import MemoryJournal
from tests.engines.stage import Stage, agent, until


async def drained_by(journal: MemoryJournal, run_id: str) -> dict[str, Any]:
    (body,) = [dict(record.body) for record in await journal.load(run_id) if record.kind == "control"]
    return {name: body[name] for name in ("kind", "by", "why")}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_engine_that_catches_signals_drains_at_the_first(number: signal.Signals) -> None:
    journal, before = MemoryJournal(), signal.getsignal(number)
    engine = LocalEngine(agent(Stage(), journal), signals=(number,))
    await engine.start()
    assert signal.getsignal(number) is not before
    signal.raise_signal(number)
    await until(lambda: engine.load().phase == "stopped")
    await engine.drain()
    assert await drained_by(journal, engine.run_id) == {"kind": "drain", "by": "signal", "why": number.name}
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("catches", [True, False])
async def test_a_program_that_waits_for_a_signal_gets_the_report_of_the_drain(*, catches: bool) -> None:
    journal, before, stage = MemoryJournal(), signal.getsignal(signal.SIGTERM), Stage()
    stage.let("quick")
    engine = LocalEngine(agent(stage, journal), signals=(signal.SIGTERM,) if catches else ())
    await engine.start()
    await (await engine.submit("quick", run_id="r"))
    waiting = asyncio.create_task(engine.run_until_signal())
    await asyncio.sleep(0)
    assert not waiting.done()
    signal.raise_signal(signal.SIGTERM)
    report = await waiting
    assert report.interrupted == report.parked == ()
    assert await drained_by(journal, engine.run_id) == {"kind": "drain", "by": "signal", "why": "SIGTERM"}
    assert signal.getsignal(signal.SIGTERM) is before
