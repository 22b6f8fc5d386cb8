"""A run of an engine, told while it waits for its slot and goes: who stops reading leaves the run alone."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.errors import ConfigError, NotAdmitting, Overloaded, RunError
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.live_event import RunEvent, TextDelta
from orchestrator.llm.message import Request
from orchestrator.llm.run_event import RunCreated, RunFinished
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.run_stream import RunStream
from orchestrator.testing.clock import FakeClock
from tests.runtime.stage import agent, until


class Held:
    """A model that answers once it is let."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.let = asyncio.Event()

    async def __call__(self, request: Request) -> str:
        self.requests.append(request)
        await self.let.wait()
        return f"{request.messages[-1].text} done"


async def test_a_submitted_run_is_told_from_its_beginning_and_only_it_is_asked_for_words() -> None:
    model = Held()
    async with LocalEngine(agent(FunctionLLM(model)), slots=1) as engine:
        first = await engine.submit("one")
        stream = engine.stream("two", run_id="r")
        reading = asyncio.create_task(_read(stream))
        await until(lambda: engine.status()["queued"] == 1)
        assert not reading.done()
        model.let.set()
        facts = await reading
        assert (await first).output == "one done"
        assert (await stream.result()).output == "two done"
    assert isinstance(facts[0], RunCreated)
    assert isinstance(facts[-1], RunFinished)
    assert {fact.run_id for fact in facts} == {"r"}
    assert "".join(fact.text for fact in facts if isinstance(fact, TextDelta)) == "two done"
    assert [request.on_delta is not None for request in model.requests] == [False, True]


async def _read(stream: RunStream) -> list[RunEvent]:
    return [fact async for fact in stream]


async def test_who_leaves_the_stream_leaves_the_run_alone() -> None:
    model = Held()
    runner = agent(FunctionLLM(model))
    async with LocalEngine(runner) as engine:
        async with engine.stream("go", run_id="r") as stream:
            async for fact in stream:
                assert isinstance(fact, RunCreated)
                break
        with pytest.raises(RunError, match="continues in engine 'local'"):
            await stream.result()
        live = runner.hosting.live("r")
        assert live is not None
        model.let.set()
        await until(lambda: runner.hosting.live("r") is None)
        assert len(stream._backlog) < 10, "nobody reads, so nothing is kept"
    assert (await runner.resume("r")).outcome is Outcome.COMPLETED


async def test_what_submit_refuses_is_raised_in_the_loop_and_a_deadline_counts_from_the_submission() -> None:
    clock, model = FakeClock(), Held()
    engine = LocalEngine({"a": agent(FunctionLLM(model), clock=clock)}, slots=1, queue=1)
    with pytest.raises(ConfigError, match="agent must be one of"):
        engine.stream("go", agent="b")
    with pytest.raises(NotAdmitting):
        await engine.stream("go").result()
    async with engine:
        await engine.submit("one")
        late = asyncio.create_task(engine.stream("two", deadline=5.0).result())
        await until(lambda: engine.status()["queued"] == 1)
        with pytest.raises(Overloaded):
            await engine.stream("three").result()
        await clock.advance(6.0)
        model.let.set()
        result = await late
        assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "time")
