"""Signals drain an engine, and its journal names them."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.errors import ConfigError
from orchestrator.journal.memory import MemoryJournal
from tests.engines.stage import Stage, agent, until


async def drained_by(journal: MemoryJournal, run_id: str) -> dict[str, Any]:
    (body,) = [dict(record.body) for record in await journal.load(run_id) if record.kind == "control"]
    return {name: body[name] for name in ("kind", "by", "why")}


def handlers() -> dict[signal.Signals, object]:
    return {each: signal.getsignal(each) for each in signal.Signals}


async def test_an_engine_as_a_context_manager_leaves_every_handler_of_its_host() -> None:
    before, stage = handlers(), Stage()
    stage.let("quick")
    async with LocalEngine(agent(stage), recover="resume") as engine:
        assert handlers() == before
        await (await engine.submit("quick"))
        assert handlers() == before
        await engine.drain()
        assert handlers() == before
    assert handlers() == before


async def test_a_host_drains_the_engine_in_its_own_handler() -> None:
    journal, loop, received = MemoryJournal(), asyncio.get_running_loop(), asyncio.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(received.set))
    try:
        async with LocalEngine(agent(Stage(), journal)) as engine:
            signal.raise_signal(signal.SIGTERM)
            await received.wait()
            assert engine.load().phase == "running"
        assert engine.load().phase == "stopped"
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_signal_is_waited_for_only_in_the_main_thread() -> None:
    async def waits() -> None:
        async with LocalEngine(agent(Stage())) as engine:
            await engine.run_until_signal()

    with pytest.raises(ConfigError, match="only the main thread can wait for signals"):
        await asyncio.to_thread(asyncio.run, waits())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_program_that_waits_for_a_signal_gets_the_report_of_the_drain(number: signal.Signals) -> None:
    journal, before, stage = MemoryJournal(), handlers(), Stage()
    stage.let("quick")
    async with LocalEngine(agent(stage, journal)) as engine:
        await (await engine.submit("quick", run_id="r"))
        report = await engine.run_until_signal(ready=lambda: signal.raise_signal(number))
        assert handlers() == before
    assert report.interrupted == report.parked == ()
    assert await drained_by(journal, engine.run_id) == {"kind": "drain", "by": "signal", "why": number.name}


async def test_a_program_that_waits_for_a_signal_also_gets_the_report_of_an_operators_drain() -> None:
    journal, before = MemoryJournal(), handlers()
    async with LocalEngine(agent(Stage(), journal)) as engine:
        waiting = asyncio.create_task(engine.run_until_signal())
        await until(lambda: handlers() != before)
        await engine.control("drain", by="ann", why="deploy")
        assert (await waiting).parked == ()
        assert handlers() == before
    assert await drained_by(journal, engine.run_id) == {"kind": "drain", "by": "ann", "why": "deploy"}
