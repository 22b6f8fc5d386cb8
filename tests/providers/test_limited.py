"""A model behind a rate limiter, alone and in runs: who waits, what counts, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.errors import ConfigError, LLMError
from orchestrator.kernel.fact import LLMCall
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Request, Response, Route, Usage
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.limiter import RateLimit, RateLimitedModel, RateLimiter
from orchestrator.providers.model_guard import refuse_real_models
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.otel import llm_attributes
from orchestrator.telemetry.semconv import DEFAULT, QUEUED, VERSIONS
from orchestrator.testing.clock import FakeClock
from tests.runtime.stage import Facts, agent
from tests.telemetry.sampling import sampled

ASK = Request((Message("user", "hello"),))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def started(waiting: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(waiting)


# ---- a model behind it ----


async def test_a_delay_that_the_provider_asks_for_holds_everybody_back() -> None:
    clock = FakeClock()
    full = LLMError("slow down", kind="rate_limited", status=429, retry_after=7.0)
    llm = RateLimitedModel(ScriptedLLM([full, "one", "two"]), RateLimit(concurrency=5), clock=clock)
    with pytest.raises(LLMError, match="slow down"):
        await llm.complete(ASK)
    both = [started(llm.complete(ASK)) for _ in range(2)]
    await clock.advance(6.9)
    assert [task.done() for task in both] == [False, False]
    await clock.advance(0.1)
    assert [task.result().content for task in both] == ["one", "two"]


@pytest.mark.parametrize(
    ("kind", "counted"),
    [("rate_limited", 0), ("auth", 0), ("server_error", 4101), ("timeout", 4101), ("connection", 4101)],
)
async def test_tokens_of_a_request_that_was_turned_away_are_free_again(kind: str, counted: int) -> None:
    llm = RateLimitedModel(ScriptedLLM([LLMError("no", kind=kind)]), RateLimit(tokens_per_minute=10_000))
    with pytest.raises(LLMError):
        await llm.complete(Request((Message("user", "ten chars!"),)))
    assert llm.limiter._tokens == counted  # (10 + 1) // 2 of the text, and 4,096 that it might have answered
    assert llm.limiter.active == 0


async def test_what_an_answer_reports_counts_and_an_answer_that_reports_nothing_as_estimated() -> None:
    script = [Response("a", usage=Usage(30, 12)), Response("b")]
    llm = RateLimitedModel(ScriptedLLM(script), RateLimit(tokens_per_minute=10_000))
    await llm.complete(Request((Message("user", "ab"),), params={"max_tokens": 100}))
    assert llm.limiter._tokens == 42
    await llm.complete(Request((Message("user", "ab"),), params={"max_tokens": 100}))
    assert llm.limiter._tokens == 42 + 101


async def test_a_request_that_is_cancelled_under_way_frees_its_slot() -> None:
    clock = FakeClock()
    llm = RateLimitedModel(FunctionLLM(lambda _: "late", latency=60, clock=clock), RateLimit(concurrency=1))
    task = started(llm.complete(ASK))
    await settled()
    assert llm.limiter.active == 1
    task.cancel()
    await settled()
    assert (task.cancelled(), llm.limiter.active) == (True, 0)


def waited(route: Route) -> tuple[str | None, float | None]:
    """Return model and wait of the finished try, and reset the route for the next one."""
    done = route.take()
    return done.model, done.queued


async def test_the_wait_stands_in_the_route_of_the_request() -> None:
    clock = FakeClock()
    limiter = RateLimiter(RateLimit(requests_per_minute=1), clock=clock)
    inner = RateLimitedModel(ScriptedLLM(["one", "two"]), limiter)
    route = Route()
    await inner.complete(Request(ASK.messages, route=route))
    assert waited(route) == (None, 0.0)
    task = started(inner.complete(Request(ASK.messages, route=route)))
    await clock.advance(60)
    await task
    assert waited(route) == (None, 60.0)
    assert route == Route()


async def test_behind_two_limiters_a_request_waits_for_both_and_tells_of_both() -> None:
    clock = FakeClock()
    account = RateLimiter(RateLimit(requests_per_minute=1), clock=clock)
    inner = RateLimitedModel(ScriptedLLM(["done"]), RateLimit(requests_per_minute=1), clock=clock)
    await account.enter()
    await clock.advance(20)
    await inner.limiter.enter()
    await clock.advance(10)
    route = Route()
    task = started(RateLimitedModel(inner, account).complete(Request(ASK.messages, route=route)))
    await clock.advance(49)
    assert not task.done()
    await clock.advance(1)
    assert task.done()
    assert waited(route) == (None, 50.0)


async def test_two_models_of_an_account_share_a_limiter() -> None:
    limiter = RateLimiter(RateLimit(concurrency=1), clock=FakeClock())
    clock = FakeClock()
    one = RateLimitedModel(FunctionLLM(lambda _: "slow", latency=5, clock=clock), limiter)
    two = RateLimitedModel(ScriptedLLM(["quick"]), limiter)
    first, second = started(one.complete(ASK)), started(two.complete(ASK))
    await settled()
    assert not second.done()
    await clock.advance(5)
    assert [(await task).content for task in (first, second)] == ["slow", "quick"]


async def test_a_limited_model_is_in_all_else_the_model() -> None:
    class Sized(ScriptedLLM):
        context_window = 9_000
        provider = "acme"

    llm = RateLimitedModel(Sized(["hi"], model="m-1"), RateLimit(concurrency=1))
    assert (llm.model, llm.provider, llm.context_window) == ("m-1", "acme", 9_000)
    with refuse_real_models():
        assert (await agent(llm).run("go")).output == "hi"
    with pytest.raises(AttributeError, match="voice"):
        _ = llm.voice


async def test_a_real_model_behind_a_limiter_is_still_refused_in_tests() -> None:
    class Paid:
        model = "paid"

        async def complete(self, request: Request) -> Response:
            raise AssertionError("that costs")

    with refuse_real_models(), pytest.raises(ConfigError, match="not a test double"):
        await agent(RateLimitedModel(Paid(), RateLimit())).run("go")


# ---- in a run ----


async def test_each_try_of_a_run_waits_for_its_turn_again_and_says_how_long() -> None:
    clock, facts, registry = FakeClock(), Facts(), CollectorRegistry()
    down = LLMError("down", kind="server_error")
    model = ScriptedLLM([down, call("nothing"), "done"], model="m-1")
    llm = RateLimitedModel(model, RateLimit(requests_per_minute=1), clock=clock)
    runner = agent(
        llm,
        observers=[facts, Metrics(registry)],
        clock=clock,
        retry=RetryPolicy(base=0, jitter=0),
        limits=Limits(),
    )
    run = started(runner.run("go"))
    await clock.advance(120)
    result = await run
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "done")
    told = [(fact.outcome, fact.model, fact.seconds, fact.queued) for fact in facts.of(LLMCall)]
    assert told == [
        ("server_error", "m-1", 0.0, 0.0),
        ("ok", "m-1", 0.0, 60.0),
        ("ok", "m-1", 0.0, 60.0),
    ]
    labels = {"provider": "_unknown", "model": "m-1"}
    name = "orchestrator_llm_rate_limit_wait_seconds"
    assert sampled(registry, f"{name}_count", **labels) == 3
    assert sampled(registry, f"{name}_sum", **labels) == 120
    assert sampled(registry, "orchestrator_llm_request_duration_seconds_sum", **labels) == 0


@pytest.mark.parametrize(("queued", "shown"), [(None, {}), (0.0, {}), (2.5, {QUEUED: 2.5})])
def test_the_span_of_a_request_says_how_long_it_waited(queued: float | None, shown: dict[str, float]) -> None:
    fact = LLMCall("loop", "r", "think", 1, "m", "ok", 0.5, queued=queued)
    told = llm_attributes(fact, VERSIONS[DEFAULT], None)
    assert {name: value for name, value in told.items() if name == QUEUED} == shown


async def test_a_run_without_a_limiter_tells_of_no_wait() -> None:
    facts, registry = Facts(), CollectorRegistry()
    await agent(["done"], observers=[facts, Metrics(registry)]).run("go")
    assert [fact.queued for fact in facts.of(LLMCall)] == [None]
    labels = {"provider": "_unknown", "model": "scripted"}
    assert sampled(registry, "orchestrator_llm_rate_limit_wait_seconds_count", **labels) == 0


async def test_agents_that_have_the_same_limited_model_share_its_limits() -> None:
    most = 0
    active = 0

    async def answer(_: Request) -> str:
        nonlocal most, active
        active += 1
        most = max(most, active)
        await asyncio.sleep(0)
        active -= 1
        return "done"

    llm = RateLimitedModel(FunctionLLM(answer), RateLimit(concurrency=2))
    one, two = agent(llm), agent(llm)
    results = await asyncio.gather(*(runner.run("go") for runner in (one, two) * 10))
    assert {result.output for result in results} == {"done"}
    assert most == 2


async def test_a_run_cancelled_while_its_request_waits_ends_and_frees_the_place() -> None:
    clock = FakeClock()
    llm = RateLimitedModel(ScriptedLLM(["never"]), RateLimit(concurrency=1), clock=clock)
    await llm.limiter.enter()
    runner = agent(llm, clock=clock)
    run = started(runner.run("go", run_id="r"))
    await settled()
    assert llm.limiter.waiting == 1
    await runner.cancel("r")
    result = await run
    assert result.outcome is Outcome.CANCELLED
    assert llm.limiter.waiting == 0


def test_what_is_no_model_or_no_limit_is_refused_where_it_is_given() -> None:
    with pytest.raises(ConfigError, match=r"give RateLimit\(…\), or a RateLimiter to share"):
        RateLimitedModel(ScriptedLLM([]), 8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="str has not"):
        RateLimitedModel("gpt", RateLimit())  # type: ignore[arg-type]
