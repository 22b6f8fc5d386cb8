"""A call has a total limit: reports of progress do not extend it until the limit of its state ends the whole run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator import MemoryJournal
from orchestrator.errors import ConfigError
from orchestrator.kernel.cancellation import TimeLimit, TimeLimitPassed, limited
from orchestrator.kernel.fact import LLMCall, ToolExecution
from orchestrator.llm.message import Request
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.providers import RateLimit, RateLimitedModel
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.testing import FakeClock
from orchestrator.tools.spec import ToolContext, tool
from tests.runtime.stage import Facts, agent, until

TOOLS = LLM_LOOP.time_limits["process_tools"]
MODEL = LLM_LOOP.time_limits["await_llm"]
"""Seconds that a run may stay in these states."""


@tool(timeout=30, effect="idempotent")
async def talkative(context: ToolContext) -> str:
    """Report progress for ever."""
    while True:
        await context.clock.sleep(20)
        context.restart_timeout()


@tool(effect="idempotent")
async def silent() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""


def answers(*calls: str) -> Any:
    def model(request: Request) -> Any:
        return [call(name) for name in calls] if request.messages[-1].role == "user" else "done"

    return FunctionLLM(model)


async def advanced(clock: FakeClock, task: asyncio.Task[Any], step: float = 10.0) -> float:
    """Move the clock until the task is done; return the seconds that passed."""
    began = clock.monotonic()
    while not task.done():
        await clock.advance(step)
    return clock.monotonic() - began


@pytest.mark.parametrize(
    ("name", "total"), [("talkative", None), ("silent", None), ("talkative", 100.0), ("silent", 100.0)]
)
async def test_a_tool_that_reports_progress_for_ever_ends_as_a_call_and_the_run_continues(
    name: str, total: float | None
) -> None:
    clock, facts, journal = FakeClock(), Facts(), MemoryJournal()
    spec = {"talkative": talkative, "silent": silent}[name]
    limited = tool(name=name, effect="idempotent", timeout=spec.timeout, total_timeout=total)(spec.call)
    runner = agent(answers(name), [limited], clock=clock, observers=[facts], journal=journal)
    task = asyncio.create_task(runner.run("go", run_id="r"))
    await until(lambda: bool(clock.pending))
    await advanced(clock, task)
    assert (task.result().output, task.result().outcome) == ("done", "completed")
    [done] = facts.of(ToolExecution)
    seconds = total or 0.9 * TOOLS
    assert (done.outcome, done.seconds) == ("timeout", seconds)
    [record] = [one.body for one in await journal.load("r") if one.kind == "done"]
    assert f"no answer within {seconds:g} s in all" in record["content"]


async def test_the_silence_limit_ends_a_call_before_its_total_limit() -> None:
    clock, facts = FakeClock(), Facts()
    runner = agent(
        answers("quiet"),
        [tool(name="quiet", timeout=30, total_timeout=100)(silent.call)],
        clock=clock,
        observers=[facts],
    )
    task = asyncio.create_task(runner.run("go"))
    await until(lambda: bool(clock.pending))
    await advanced(clock, task)
    assert [one.seconds for one in facts.of(ToolExecution)] == [30]


async def test_a_total_timeout_of_0_leaves_the_call_to_the_limit_of_its_state() -> None:
    clock, facts = FakeClock(), Facts()
    unlimited = tool(name="quiet", total_timeout=0)(silent.call)
    runner = agent(answers("quiet"), [unlimited], clock=clock, observers=[facts])
    task = asyncio.create_task(runner.run("go"))
    await until(lambda: bool(clock.pending))
    assert await advanced(clock, task) == TOOLS
    assert task.result().outcome == "failed"


async def test_both_limits_of_a_call_are_in_the_record_that_announces_it() -> None:
    journal = MemoryJournal()
    quick = tool(name="quick", timeout=30, total_timeout=100)(lambda: "quick")
    runner = agent(answers("quick"), [quick], journal=journal)
    await runner.run("go", run_id="r")
    [intent] = [one.body for one in await journal.load("r") if one.kind == "intent"]
    assert [(one["timeout"], one["total_timeout"]) for one in intent["calls"]] == [(30, 100)]


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_a_total_timeout_that_is_no_time_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=r"total_timeout is .*; possible: seconds, 0 for no limit, or None"):
        tool(name="quick", total_timeout=value)(silent.call)


class Endless:
    """A model that streams for ever at its first request."""

    model = "endless"

    def __init__(self) -> None:
        self.requests = 0

    async def complete(self, request: Request) -> Any:
        self.requests += 1
        if self.requests == 1:
            await asyncio.Event().wait()
        return await ScriptedLLM(["done"]).complete(request)


async def test_a_request_that_never_ends_is_ended_and_retried_before_the_state_ends() -> None:
    clock, facts, model = FakeClock(), Facts(), Endless()
    runner = agent(
        model,
        clock=clock,
        observers=[facts],
        retry=RetryPolicy(attempts=2, base=0.0, jitter=0.0, deadline=MODEL),
    )
    task = asyncio.create_task(runner.run("go"))
    await until(lambda: bool(clock.pending))
    assert await advanced(clock, task) < MODEL
    assert (task.result().output, model.requests) == ("done", 2)
    assert [(one.outcome, one.seconds) for one in facts.of(LLMCall)] == [
        ("timeout", 0.9 * MODEL),
        ("ok", 0.0),
    ]


async def test_the_time_in_a_rate_limiter_does_not_count() -> None:
    clock, facts = FakeClock(), Facts()
    model = RateLimitedModel(ScriptedLLM(["one", "two"]), RateLimit(concurrency=1, max_wait=0), clock=clock)
    entry = await model.limiter.enter(0)
    runner = agent(model, clock=clock, observers=[facts], retry=RetryPolicy(attempts=1))
    task = asyncio.create_task(runner.run("go"))
    await until(lambda: clock.pending == 1)  # the limit of the state, without one of the call
    await clock.advance(0.95 * MODEL)
    assert not task.done()
    model.limiter.leave(entry, 0)
    assert (await task).output == "one"
    assert [one.outcome for one in facts.of(LLMCall)] == ["ok"]


async def test_the_total_time_continues_after_a_part_that_does_not_count() -> None:
    clock = FakeClock()
    limit, answered = TimeLimit(), asyncio.Event()

    async def work() -> None:
        await clock.sleep(40)
        await limit.outside(answered.wait())
        await asyncio.Event().wait()

    task = asyncio.create_task(limited(work, None, clock, limit, total=100))
    await until(lambda: clock.pending == 2)
    await clock.advance(40)
    await clock.advance(10_000)
    assert not task.done()
    answered.set()
    await until(lambda: clock.pending == 1)
    await clock.advance(59)
    assert not task.done()
    await clock.advance(1)
    with pytest.raises(TimeLimitPassed, match="no answer within 100 s in all"):
        await task
    assert clock.pending == 0
