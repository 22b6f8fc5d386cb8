"""Pipelines in the local engine: slots, what others left, and orders that reach the models of their stages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.errors import ConfigError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.pipeline.model import PipelineLimits, StageRequest
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.runtime.pipeline.pipeline import Pipeline
from orchestrator.runtime.pipeline.prompt_stage import PromptStage
from tests.engines.stage import until
from tests.runtime.pipeline_stage import GOOD, PASS, Port, Stages


async def test_an_engine_carries_no_more_pipelines_at_once_than_it_has_slots() -> None:
    gate, planned = asyncio.Event(), []

    async def planner(request: StageRequest) -> Any:
        planned.append(request.spec)
        await gate.wait()
        return {"steps": 1}

    pipeline = Pipeline(planner, Port(GOOD), Port("code"), Port(PASS), observers=())
    async with LocalEngine(pipeline, slots=2) as engine:
        handles = [await engine.submit(spec, limits=PipelineLimits(max_iterations=1)) for spec in "abc"]
        await until(lambda: len(planned) == 2)
        assert engine.status()["queued"] == 1
        gate.set()
        results = [await handle for handle in handles]
    assert [result.outcome for result in results] == [Outcome.COMPLETED] * 3
    assert planned == ["a", "b", "c"]


async def test_an_engine_takes_up_a_pipeline_that_was_left_to_it() -> None:
    journal, stages = MemoryJournal(), Stages()
    await Stages().pipeline(journal=journal).deposit("x", run_id="p")
    async with LocalEngine(stages.pipeline(journal=journal), recover="resume") as engine:
        result = await engine.recovered["p"]
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "code")


async def test_a_blocked_model_is_not_asked_by_the_stage_that_it_does() -> None:
    llm = ScriptedLLM(["the plan"], model="planner-1")
    pipeline = Pipeline(PromptStage(llm, "Plan it."), Port(GOOD), Port("code"), Port(PASS), observers=())
    async with LocalEngine(pipeline) as engine:
        await engine.control("block_model", model="planner-1", by="ann")
        handle = await engine.submit("x", run_id="p")
        await until(lambda: bool(engine._active_commands._waiting))
        assert llm.requests == []
        await engine.control("unblock_model", model="planner-1", by="ann")
        result = await handle
    assert result.plan is not None
    assert (result.outcome, result.plan.content) == (Outcome.COMPLETED, "the plan")
    llm.assert_complete()


async def test_what_a_pipeline_cannot_take_is_refused_before_it_is_queued() -> None:
    stages = Stages()
    async with LocalEngine({"build": stages.pipeline()}) as engine:
        with pytest.raises(ConfigError, match="no conversations"):
            await engine.submit("x", conversation_id="c")
        with pytest.raises(ConfigError, match="PipelineLimits"):
            await engine.submit("x", limits=Limits())
        assert engine.status()["queued"] == 0
    with pytest.raises(
        ConfigError, match="an engine runs an Agent, a Pipeline, a Ralph, an Rlm or an Approval"
    ):
        LocalEngine({"build": "no agent"})  # type: ignore[dict-item]
