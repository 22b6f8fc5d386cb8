"""A list of models: who is asked when, for how long, and under which name it is told."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.errors import ConfigError, LLMError
from orchestrator.kernel.fact import LLMCall, OperationAttempt
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Request, Response, Usage
from orchestrator.llm.retry import RetryPolicy, classify
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.fallback import Fallback
from orchestrator.providers.limiter import RateLimit, RateLimitedModel
from orchestrator.providers.model_guard import refuse_real_models
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing.clock import FakeClock
from tests.runtime.stage import Facts, agent
from tests.telemetry.sampling import sampled

ASK = Request((Message("user", "hello"),))


def failing(kind: str, **more: Any) -> LLMError:
    return LLMError("no", kind=kind, **more)


def named(name: str, *script: Any, window: int = 0) -> ScriptedLLM:
    llm = ScriptedLLM(script, model=name)
    llm.context_window = window  # type: ignore[attr-defined]
    return llm


async def answers(llm: Fallback, count: int) -> list[str | None]:
    """Ask until there are so many answers; the models that gave them."""
    found: list[str | None] = []
    for _ in range(count):
        response = await RetryPolicy(base=0, jitter=0).call(llm.complete, ASK)
        found.append(response.model)
    return found


@pytest.mark.parametrize("kind", ["rate_limited", "server_error", "timeout", "connection"])
async def test_the_next_model_is_asked_at_once_by_the_next_try(kind: str) -> None:
    first, second = named("a", failing(kind, status=429, retry_after=20)), named("b", "hi")
    llm = Fallback([first, second], clock=FakeClock())
    with pytest.raises(LLMError, match=r"a failed \(no\); b is asked next") as error:
        await llm.complete(ASK)
    assert classify(error.value) == (kind, True, 0.0)
    assert (error.value.status, error.value.__cause__) == (429, first.script[0])
    assert (await llm.complete(ASK)).content == "hi"


async def test_an_error_that_another_model_follows_says_whether_it_was_sent_and_names_its_request() -> None:
    answered = Response("hi", usage=Usage(3, 1))
    unsent = failing("timeout", sent=False, request_id="req-1", usage=Usage(2, 1))
    with pytest.raises(LLMError) as error:
        await Fallback([named("a", unsent), named("b")]).complete(ASK)
    told = error.value.sent, error.value.request_id, error.value.usage
    assert told == (False, "req-1", Usage(2, 1))
    unsent = failing("timeout", sent=False)
    result = await agent(Fallback([named("a", unsent), named("b", answered)])).run("go")
    assert result.usage == answered.usage, "a request that was not sent costs nothing"


async def test_an_error_of_another_kind_is_raised_as_it_is_and_changes_nothing() -> None:
    refused = failing("auth")
    first, second = named("a", refused, "again"), named("b")
    llm = Fallback([first, second])
    with pytest.raises(LLMError) as error:
        await llm.complete(ASK)
    assert error.value is refused
    assert (await llm.complete(ASK)).content == "again"
    assert not second.requests


async def test_what_on_names_decides() -> None:
    llm = Fallback([named("a", failing("auth")), named("b", "hi")], on=["auth"])
    assert await answers(llm, 1) == ["b"]


async def test_a_provider_that_says_do_not_try_again_is_no_reason_not_to_ask_another() -> None:
    spent = failing("rate_limited", retryable=False)  # only money lifts this limit
    llm = Fallback([named("a", spent), named("b", "hi")])
    assert await answers(llm, 1) == ["b"]


async def test_with_no_model_left_the_last_error_is_raised_with_its_own_delay() -> None:
    last = failing("rate_limited", retry_after=9.0)
    llm = Fallback([named("a", failing("server_error")), named("b", last)], clock=FakeClock())
    with pytest.raises(LLMError, match="asked next"):
        await llm.complete(ASK)
    with pytest.raises(LLMError) as error:
        await llm.complete(ASK)
    assert error.value is last


async def test_it_stays_with_what_works_until_the_first_has_cooled_down() -> None:
    clock = FakeClock()
    first = named("a", failing("server_error"), "back")
    llm = Fallback([first, named("b", "1", "2")], cooldown=30, clock=clock)
    assert await answers(llm, 1) == ["b"]
    await clock.advance(29.9)
    assert await answers(llm, 1) == ["b"]
    await clock.advance(0.1)
    assert await answers(llm, 1) == ["a"]
    assert len(first.requests) == 2


async def test_a_delay_that_the_provider_asks_for_stands_in_for_the_cooldown() -> None:
    clock = FakeClock()
    first = named("a", failing("rate_limited", retry_after=90), "back")
    llm = Fallback([first, named("b", "1", "2")], cooldown=30, clock=clock)
    await answers(llm, 1)
    await clock.advance(89)
    assert await answers(llm, 1) == ["b"]
    await clock.advance(1)
    assert await answers(llm, 1) == ["a"]


async def test_with_all_of_them_cooling_down_the_one_is_asked_that_is_ready_soonest() -> None:
    clock = FakeClock()
    first = named("a", failing("rate_limited", retry_after=60))
    second = named("b", failing("server_error"), "hi")
    llm = Fallback([first, second], cooldown=30, clock=clock)
    for _ in range(2):
        with pytest.raises(LLMError):
            await llm.complete(ASK)
    assert (await llm.complete(ASK)).model == "b"


async def test_a_request_that_is_too_long_goes_to_a_larger_model_and_stays_there() -> None:
    small = named("small", failing("context_length", status=400), "short", window=100)
    same = named("same", window=100)
    large = named("large", "long", "longer", window=1_000)
    llm = Fallback([small, same, large], on=["context_length"], clock=FakeClock())
    long = Request((Message("user", "x" * 400),))
    longer = Request((Message("user", "x" * 500),))
    told = [await RetryPolicy(base=0).call(llm.complete, one) for one in (long, longer, ASK)]
    assert [response.model for response in told] == ["large", "large", "small"]
    assert (len(small.requests), len(same.requests)) == (2, 0)


async def test_a_request_too_long_for_the_largest_is_the_requests_fault() -> None:
    too_long = failing("context_length")
    large = named("large", too_long, window=1_000)
    llm = Fallback([large, named("small", window=100)], on=["context_length"])
    with pytest.raises(LLMError) as error:
        await llm.complete(ASK)
    assert error.value is too_long


@pytest.mark.parametrize(
    ("windows", "on", "window"),
    [
        ((200, 100), ["timeout"], 100),
        ((200, 100), ["context_length"], 200),
        ((0, 100), ["timeout"], 100),
        ((0, 100), ["context_length"], 0),
        ((0, 0), ["timeout"], 0),
    ],
)
def test_what_can_be_read_at_once_is_what_every_model_that_may_be_asked_can_read(
    windows: tuple[int, int], on: list[str], window: int
) -> None:
    models = [named(str(place), window=size) for place, size in enumerate(windows)]
    assert Fallback(models, on=on).context_window == window


async def test_an_answer_without_a_name_gets_the_configured_one() -> None:
    class Nameless:
        model = "mine"

        async def complete(self, request: Request) -> Response:
            return Response("hi")

    assert (await Fallback([Nameless()]).complete(ASK)).model == "mine"


async def test_closing_it_closes_every_model_that_can_be_closed_limited_or_not() -> None:
    class Open(ScriptedLLM):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    first, second = Open([]), Open([])
    await Fallback([first, named("b"), RateLimitedModel(second, RateLimit())]).aclose()
    assert (first.closed, second.closed) == (True, True)


async def test_doubles_alone_are_a_double() -> None:
    class Paid:
        async def complete(self, request: Request) -> Response:
            raise AssertionError("that costs")

    with refuse_real_models():
        assert (await agent(Fallback([named("a", "hi")])).run("go")).output == "hi"
        with pytest.raises(ConfigError, match="not a test double"):
            await agent(Fallback([named("a", "hi"), Paid()])).run("go")


# ---- in a run ----


async def test_every_try_is_a_fact_under_the_configured_name_of_the_model_that_was_asked() -> None:
    facts, registry = Facts(), CollectorRegistry()
    first = ScriptedLLM([failing("server_error")], model="gpt-main")
    first.provider = "openai"  # type: ignore[attr-defined]
    dated = Response("done", usage=Usage(10, 5), model="claude-2026-01-01")
    second = ScriptedLLM([call("nothing"), dated], model="claude")
    second.provider = "anthropic"  # type: ignore[attr-defined]
    runner = agent(Fallback([first, second]), observers=[facts, Metrics(registry)])

    def requests(provider: str, model: str, outcome: str) -> float | None:
        labels = {"provider": provider, "model": model, "outcome": outcome}
        return sampled(registry, "orchestrator_llm_requests_total", **labels)

    assert requests("anthropic", "claude", "ok") == 0, "declared before anything falls back"
    result = await runner.run("go")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "done")
    told = [(fact.model, fact.outcome) for fact in facts.of(LLMCall)]
    assert told == [("gpt-main", "server_error"), ("claude", "ok"), ("claude", "ok")]
    assert [(fact.outcome, fact.delay) for fact in facts.of(OperationAttempt)] == [("retry", 0.0)]
    assert requests("openai", "gpt-main", "server_error") == 1
    assert requests("anthropic", "claude", "ok") == 2
    overflow = {"metric": "llm_requests_total", "label": "model"}
    assert sampled(registry, "orchestrator_label_overflow_total", **overflow) == 0


async def test_the_retry_policy_bounds_the_tries_of_all_models_together() -> None:
    models = [FunctionLLM(lambda _: failing("server_error"), model=name) for name in "abc"]
    runner = agent(Fallback(models), retry=RetryPolicy(attempts=2, base=0, jitter=0))
    result = await runner.run("go")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "llm_error")
    assert [len(model.requests) for model in models] == [1, 1, 0]


async def test_the_budget_of_retries_counts_them() -> None:
    models = [FunctionLLM(lambda _: failing("server_error"), model=name) for name in "abc"]
    result = await agent(Fallback(models), limits=Limits(max_retries=1)).run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "retries")


async def test_a_full_rate_limiter_sends_a_request_on() -> None:
    clock = FakeClock()
    first = RateLimitedModel(named("a", "one"), RateLimit(requests_per_minute=1, max_wait=5), clock=clock)
    llm = Fallback([first, named("b", "two")], clock=clock)
    assert await answers(llm, 2) == ["a", "b"]


@pytest.mark.parametrize(
    ("models", "more", "said"),
    [
        ([], {}, "give a list"),
        (["gpt"], {}, "str has not"),
        ([named("a")], {"on": ["oops"]}, "on has 'oops'; possible: auth, client_error"),
        ([named("a")], {"on": "other"}, "on has 'other'"),
        ([named("a")], {"cooldown": -1}, "cooldown is -1"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_given(
    models: list[Any], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Fallback(models, **more)
