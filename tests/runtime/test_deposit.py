"""A run is put into a journal without being carried; whoever takes it up first is who begins it."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.errors import ConfigError, RunExists
from orchestrator.journal.difference import heads
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import RunRecovered, RunStarted
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.pipeline.model import PipelineLimits
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM
from orchestrator.runtime.llm_loop.agent import Agent
from tests.runtime.pipeline_stage import Stages
from tests.runtime.stage import Facts


async def test_nobody_asks_the_model_or_tells_of_a_run_before_somebody_takes_it_up() -> None:
    journal, told = MemoryJournal(), Facts()
    client = Agent(ScriptedLLM([]), journal=journal, observers=(told,))
    run_id = await client.deposit("What is open?", run_id="r", limits=Limits(max_iterations=7))
    assert run_id == "r"
    head = await journal.head("r")
    assert (head.status, head.owner, head.seq) == ("open", None, 0)
    assert told.of(RunStarted) == []
    assert [(run.run_id, run.unattended) for run in await client.hosting.open_runs()] == [("r", True)]


async def test_whoever_takes_it_up_first_begins_it_with_the_limits_it_was_given() -> None:
    journal, told = MemoryJournal(), Facts()
    client = Agent(ScriptedLLM([]), journal=journal, observers=(), instructions="Be brief.", version="1")
    await client.deposit("What is open?", run_id="r", limits=Limits(max_iterations=7))
    worker = Agent(ScriptedLLM(["Nothing."]), journal=journal, observers=(told,))
    result = await worker.resume("r")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "Nothing.")
    assert [message.text for message in result.messages] == ["Be brief.", "What is open?", "Nothing."]
    assert [fact.origin for fact in told.of(RunStarted)] == ["new"]
    assert told.of(RunRecovered) == [], "nobody had lost it"
    created = (await journal.load("r"))[0].body
    assert created["context"]["limits"]["max_iterations"] == 7


async def test_after_that_it_is_resumed_as_any_other() -> None:
    journal, told = MemoryJournal(), Facts()
    client = Agent(ScriptedLLM([]), journal=journal, observers=())
    await client.deposit("What is open?", run_id="r")
    asked = asyncio.Event()

    async def silent(_: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    first = Agent(FunctionLLM(silent), journal=journal, observers=(told,))
    carrying = asyncio.create_task(first.resume("r"))
    await asked.wait()
    carrying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await carrying
    second = Agent(ScriptedLLM(["Nothing."]), journal=journal, observers=(told,))
    result = await second.resume("r")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "Nothing.")
    assert [fact.origin for fact in told.of(RunStarted)] == ["new", "resumed"]


async def test_a_known_id_is_refused_and_bad_arguments_leave_nothing_behind() -> None:
    journal = MemoryJournal()
    client = Agent(ScriptedLLM([]), journal=journal, observers=())
    await client.deposit("one", run_id="r")
    with pytest.raises(RunExists):
        await client.deposit("two", run_id="r")
    with pytest.raises(ConfigError, match="limits"):
        await client.deposit("three", run_id="s", limits=7)  # type: ignore[arg-type]
    assert [head.run_id for head in (await heads(journal))[0]] == ["r"]


async def test_a_pipeline_is_left_to_a_worker_too() -> None:
    journal, told = MemoryJournal(), Facts()
    client, worker = Stages(), Stages()
    limits = PipelineLimits(max_iterations=2)
    await client.pipeline(journal=journal).deposit({"goal": "x"}, run_id="p", limits=limits)
    assert sum(client.calls.values()) == 0
    result = await worker.pipeline(journal=journal, observers=(told,)).resume("p")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "code")
    assert worker.planner.requests[0].spec == {"goal": "x"}
    assert [fact.origin for fact in told.of(RunStarted)] == ["new"]
