"""Requests that are cancelled, time out or break off: a range of usage. Limits keep its maximum, costs its minimum."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import Agent, Limits, LLMError, MemoryJournal, Response, RetryPolicy, Runtime, Usage, tool
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import ArgumentsPiece, Request
from orchestrator.machines.rlm.model import RlmLimits
from orchestrator.providers import RateLimit, RateLimitedModel, price_table
from orchestrator.providers.scripted import call
from orchestrator.rlm import Rlm
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.runs.story import Story
from orchestrator.testing import FakeClock

PRICE = price_table({"m": (1.0, 10.0)})
"""One micro-unit for a token of input, ten for one of output."""


@tool(effect="pure", progress="cumulative")
def step(n: int) -> str:
    """Take a step."""
    return f"step {n}"


class Model:
    """Gives its answers, each after `seconds`; after the last one it says `partial` and then nothing."""

    model, double = "m", True

    def __init__(self, clock: FakeClock, *answers: Response | Exception, seconds: float = 0.0) -> None:
        self.clock, self.left, self.seconds = clock, list(answers), seconds
        self.partial, self.max_output_tokens = "", 0
        self.asked = asyncio.Event()
        self.requests = 0

    async def complete(self, request: Request) -> Response:
        self.requests += 1
        if self.left:
            await self.clock.sleep(self.seconds)
            answer = self.left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if request.on_delta is not None and self.partial:
            request.on_delta(self.partial)
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not come true")


def calling(n: int, usage: Usage) -> Response:
    return Response(None, (call("step", n=n),), usage=usage)


async def stopped_after(
    agent: Agent, llm: Model, clock: FakeClock, seconds: float, *, reader: bool = False
) -> Result:
    """Cancel a run when its last request is so many seconds old."""
    stream = agent.stream("go", run_id="r") if reader else None

    async def read() -> Result:
        assert stream is not None
        async with stream:
            async for _ in stream:
                pass
            return await stream.result()

    work = asyncio.create_task(agent.run("go", run_id="r") if stream is None else read())
    await llm.asked.wait()
    await clock.advance(seconds)
    await agent.cancel("r")
    return await work


def agent_of(llm: Any, clock: FakeClock, journal: MemoryJournal, **options: Any) -> Agent:
    return Agent(llm, tools=[step], runtime=Runtime(price=PRICE, clock=clock, journal=journal), **options)


@pytest.mark.parametrize(
    ("seconds", "params", "maximum", "output"),
    [
        (2.0, {}, 0, 400),
        (2.0, {"max_tokens": 50}, 0, 50),
        (2.0, {}, 300, 300),
        (60.0, {"max_tokens": 50}, 300, 50),
        (0.0, {}, 0, 0),
    ],
)
async def test_a_cancelled_request_has_at_most_what_the_time_and_its_limit_allow(
    seconds: float, params: dict[str, Any], maximum: int, output: int
) -> None:
    clock, journal = FakeClock(), MemoryJournal()
    llm = Model(clock)
    llm.max_output_tokens = maximum
    result = await stopped_after(agent_of(llm, clock, journal, params=params), llm, clock, seconds)
    used = result.usage
    assert (result.outcome, used.output_tokens) == (Outcome.CANCELLED, output)
    assert used.cost_micros == used.input_tokens == used.estimated_input_tokens, "nothing arrived"
    assert used.cost_for_limits == used.input_tokens + 10 * output
    assert used.estimated_output_tokens == output
    stored = StoredRun.of("r", await journal.load("r"))
    assert Usage.of(stored.context["spent"]["usage"]) == used


async def test_the_fastest_answer_of_the_run_bounds_a_request_that_follows() -> None:
    clock, journal = FakeClock(auto=True), MemoryJournal()
    answers = calling(1, Usage(3, 20)), calling(2, Usage(3, 60)), calling(3, Usage(3, 10))
    llm = Model(clock, *answers, seconds=2.0)
    result = await stopped_after(agent_of(llm, clock, journal), llm, clock, 5.0)
    assert result.usage.estimated_output_tokens == 150
    assert result.usage.output_tokens == 20 + 60 + 10 + 150
    stored = StoredRun.of("r", await journal.load("r"))
    assert stored.context["spent"]["largest_answer"] == 60


async def test_the_minimum_is_what_arrived() -> None:
    clock, journal = FakeClock(), MemoryJournal()
    llm = Model(clock)
    llm.partial = "four" * 25
    agent = agent_of(llm, clock, journal)
    used = (await stopped_after(agent, llm, clock, 2.0, reader=True)).usage
    assert (used.output_tokens, used.cost_micros) == (400, used.input_tokens + 10 * 25)
    assert used.as_json()["cost"] < used.as_json()["cost_max"]
    assert Story.of("r", await journal.load("r")).estimated.cost_for_limits == used.cost_for_limits


async def test_what_arrived_is_never_more_than_the_maximum() -> None:
    clock, journal = FakeClock(), MemoryJournal()
    llm = Model(clock)
    llm.partial = "four" * 25
    used = (await stopped_after(agent_of(llm, clock, journal), llm, clock, 0.0, reader=True)).usage
    assert (used.output_tokens, used.cost_for_limits) == (25, used.cost_micros)


async def test_a_request_that_waits_for_a_rate_limiter_was_not_sent() -> None:
    clock, journal = FakeClock(), MemoryJournal()
    llm = Model(clock)
    limited = RateLimitedModel(llm, RateLimit(concurrency=1), clock=clock)
    agent = agent_of(limited, clock, journal)
    first = asyncio.create_task(agent.run("go", run_id="first"))
    await llm.asked.wait()
    second = asyncio.create_task(agent.run("go", run_id="r"))
    await until(lambda: bool(limited.limiter._waiting))
    await clock.advance(9.0)
    await agent.cancel("r")
    assert (await second).usage == Usage()
    await agent.cancel("first")
    assert (await first).usage.output_tokens == 9 * 200
    assert llm.requests == 1


async def test_a_run_that_is_cancelled_between_two_tries_has_no_request_in_flight() -> None:
    clock, journal = FakeClock(), MemoryJournal()
    llm = Model(clock, LLMError("busy", kind="server_error"))
    agent = agent_of(llm, clock, journal, retry=RetryPolicy(base=60.0, max_delay=60.0, jitter=0.0))
    work = asyncio.create_task(agent.run("go", run_id="r"))
    await until(lambda: not llm.left and clock.pending > 0)
    await clock.advance(5.0)
    await agent.cancel("r")
    assert (await work).usage == Usage()


class ConnectTimeout(Exception):
    """That of an HTTP library."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "output"),
    [
        (LLMError("late", kind="timeout"), 600),
        (LLMError("late", kind="timeout", sent=False), 0),
        (LLMError("late", kind="timeout", status=504), 0),
        (LLMError("lost", kind="connection"), 600),
        (LLMError("refused", kind="connection", sent=False), 0),
        (ConnectionResetError("lost"), 600),
        (ConnectionRefusedError("refused"), 0),
        (socket.gaierror("unknown host"), 0),
        (caused(TimeoutError("late"), ConnectTimeout()), 0),
        (caused(ConnectionError("no connection"), ConnectionRefusedError("refused")), 0),
        (caused(LLMError("no connection", kind="connection"), ConnectionRefusedError("refused")), 0),
        (LLMError("busy", kind="server_error"), 0),
    ],
    ids=repr,
)
async def test_a_try_without_an_answer_is_charged_if_it_was_sent_although_the_next_one_succeeds(
    error: Exception, output: int
) -> None:
    clock, journal = FakeClock(auto=True), MemoryJournal()
    llm = Model(clock, error, Response("done", usage=Usage(3, 1)), seconds=3.0)
    result = await agent_of(llm, clock, journal).run("go", run_id="r")
    assert (result.outcome, result.usage.output_tokens) == (Outcome.COMPLETED, output + 1)
    assert result.usage.cost_for_limits - (result.usage.cost_micros or 0) == 10 * output


class Cut(Model):
    """Says `partial`, by text or by the arguments of a call, and fails after `seconds`; then it answers."""

    def __init__(self, clock: FakeClock, error: LLMError, said: str, *, in_call: bool = False) -> None:
        super().__init__(clock, error, Response("done", usage=Usage(3, 1)), seconds=3.0)
        self.said, self.in_call = said, in_call

    async def complete(self, request: Request) -> Response:
        if not self.requests:
            if self.in_call and request.on_piece is not None:
                request.on_piece(ArgumentsPiece(0, "step", self.said))
            elif not self.in_call and request.on_delta is not None:
                request.on_delta(self.said)
        return await super().complete(request)


@pytest.mark.parametrize(
    ("error", "in_call"),
    [
        (LLMError("cut", kind="connection", partial="four" * 25), False),
        (LLMError("cut", kind="connection"), True),
        (LLMError("overloaded", kind="server_error", status=529, partial="four" * 25), False),
        (LLMError("late", kind="timeout"), False),
    ],
    ids=["cut", "cut in a call", "an error in the stream", "timed out"],
)
async def test_a_try_that_failed_in_the_middle_of_its_answer_is_charged_with_what_arrived(
    error: LLMError, in_call: bool
) -> None:
    clock, journal = FakeClock(auto=True), MemoryJournal()
    agent = agent_of(Cut(clock, error, "four" * 25, in_call=in_call), clock, journal)
    async with agent.stream("go", run_id="r") as stream:
        async for _ in stream:
            pass
        used = (await stream.result()).usage
    assert (used.output_tokens, used.estimated_output_tokens) == (600 + 1, 600)
    assert used.cost_micros == used.input_tokens + 10 * (25 + 1), "the input of both, and what arrived"
    assert used.cost_for_limits == used.input_tokens + 10 * (600 + 1)


@pytest.mark.parametrize("cost", [None, 0.0005], ids=["priced", "reported"])
async def test_a_try_whose_answer_was_none_has_the_usage_that_the_server_reported(cost: float | None) -> None:
    clock, journal = FakeClock(auto=True), MemoryJournal()
    broken = LLMError("aborted", kind="malformed", partial="four" * 25, usage=Usage(7, 2, cost=cost))
    llm = Model(clock, broken, Response("done", usage=Usage(3, 1)), seconds=3.0)
    micros = (7 + 10 * 2 if cost is None else 500) + 3 + 10 * 1
    assert (await agent_of(llm, clock, journal).run("go", run_id="r")).usage == Usage(
        10, 3, cost_micros=micros
    )
    llm.left = [broken, Response("done", usage=Usage(3, 1))]
    runtime = Runtime(price=PRICE, clock=clock)
    assert (
        await Rlm(llm, mode="tools", limits=RlmLimits(), runtime=runtime).run("go")
    ).usage.cost_micros == micros


async def test_another_machine_is_charged_for_a_try_that_failed_in_the_middle_of_its_answer() -> None:
    clock, journal = FakeClock(auto=True), MemoryJournal()
    cut = LLMError("cut", kind="connection", partial="four" * 25)
    llm = Model(clock, cut, Response("done", usage=Usage(3, 1)), seconds=3.0)
    rlm = Rlm(
        llm, mode="tools", limits=RlmLimits(), runtime=Runtime(price=PRICE, clock=clock, journal=journal)
    )
    used = (await rlm.run("go", run_id="r")).usage
    assert (used.output_tokens, used.estimated_output_tokens) == (600 + 1, 600)


async def test_a_limit_of_the_run_and_of_its_parent_keep_the_maximum_for_good() -> None:
    """The child is stopped by its own time limit; what it may have cost is gone for its parent, too."""
    clock, journal = FakeClock(), MemoryJournal()
    llm = Model(clock)
    child = Agent(
        llm, name="child", limits=Limits(max_seconds=2.0), runtime=Runtime(price=PRICE, clock=clock)
    )
    parents = Model(clock, Response(None, (call("child", task="go"),), usage=Usage(1, 1)))
    parents.left.append(Response("done", usage=Usage(1, 1)))
    agent = Agent(
        parents,
        name="parent",
        tools=[child.as_tool("child", "A child.")],
        limits=Limits(max_cost=0.004),
        runtime=Runtime(price=PRICE, clock=clock, journal=journal),
    )
    work = asyncio.create_task(agent.run("go", run_id="r"))
    await llm.asked.wait()
    await clock.advance(2.0)
    result = await work
    used = result.usage
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "cost")
    assert used.cost_for_limits >= 4_000 > (used.cost_micros or 0)
    assert parents.requests == 1
    head = await journal.head("r")
    assert head.cost_micros == used.cost_micros


async def test_a_request_of_another_machine_has_the_same_range() -> None:
    clock, journal = FakeClock(), MemoryJournal()
    llm = Model(clock)
    rlm = Rlm(
        llm, mode="tools", limits=RlmLimits(), runtime=Runtime(price=PRICE, clock=clock, journal=journal)
    )
    work = asyncio.create_task(rlm.run("go", run_id="r"))
    await llm.asked.wait()
    await clock.advance(2.0)
    await rlm.cancel("r")
    used = (await work).usage
    assert (used.output_tokens, used.cost_micros) == (400, used.input_tokens)
    assert used.cost_for_limits == used.input_tokens + 4_000


def test_sums_keep_minimum_and_maximum_apart() -> None:
    sure, ranged = Usage(1, 1, cost_micros=5), Usage(1, 9, cost_micros=1, cost_max_micros=9)
    assert (sure + sure).cost_max_micros is None
    assert ((sure + ranged).cost_micros, (sure + ranged).cost_max_micros) == (6, 14)
    assert (sure + ranged).combined(sure, lambda one, other: one - other).cost_for_limits == 9
    assert Usage.of((sure + ranged).short()) == sure + ranged
    assert (Usage() + ranged).cost_max == 9e-6
    assert (Usage().cost_max, sure.cost_max, Usage().cost_for_limits) == (None, 5e-6, 0)
