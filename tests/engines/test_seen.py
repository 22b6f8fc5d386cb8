"""What a scrape shows of an engine, and of what it takes up."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.errors import NotAdmitting, Overloaded
from orchestrator.journal.memory import MemoryJournal
from orchestrator.llm.message import Request
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing.clock import FakeClock
from tests.telemetry.sampling import sampled


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return sampled(registry, f"orchestrator_{name}", **labels)


async def test_slots_queue_waiting_time_and_refusals_are_seen() -> None:
    registry, go = CollectorRegistry(), asyncio.Event()

    async def model(request: Request) -> str:
        await go.wait()
        return "done"

    agent = Agent(FunctionLLM(model), journal=MemoryJournal(), observers=[Metrics(registry)])
    engine = LocalEngine(agent, slots=1, queue=1)
    async with engine:
        first, second = [await engine.submit("go") for _ in range(2)]
        with pytest.raises(Overloaded):
            await engine.submit("one too many")
        assert value(registry, "run_slots", machine="llm_loop") == 1
        assert value(registry, "runs_queued", machine="llm_loop") == 1
        assert value(registry, "runs_rejected_total", machine="llm_loop", reason="queue_full") == 1
        assert value(registry, "runtime_state", state="running") == 1
        go.set()
        await asyncio.gather(first, second)
        assert value(registry, "run_queue_wait_seconds_count", machine="llm_loop") == 2
    with pytest.raises(NotAdmitting):
        await engine.submit("too late")
    assert value(registry, "runs_rejected_total", machine="llm_loop", reason="draining") == 1
    assert value(registry, "run_slots", machine="llm_loop") is None
    assert value(registry, "runs_queued", machine="llm_loop") in {0, None}


async def test_a_run_that_waited_in_the_journal_for_an_engine_has_waited_since_its_deposit() -> None:
    registry, clock, journal = CollectorRegistry(), FakeClock(), MemoryJournal()
    client = Agent(ScriptedLLM([]), runtime=Runtime(journal=journal, clock=clock, observers=()))
    await client.deposit("go", run_id="r")
    await clock.advance(30)
    host = Agent(
        ScriptedLLM(["done"]), runtime=Runtime(journal=journal, clock=clock, observers=[Metrics(registry)])
    )
    async with LocalEngine(host, recover="resume") as engine:
        assert (await engine.recovered["r"]).output == "done"
    assert value(registry, "run_queue_wait_seconds_sum", machine="llm_loop") == 30
