"""Limits on cost: refused without a price, reserved before each request, and never exceeded where that is possible."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, LLMError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Record
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.llm.message import Message, Request, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.rlm.model import RlmLimits
from orchestrator.providers import Fallback, price_table
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.agent_tool import agent_tool
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.testing import FakeClock
from orchestrator.tools.spec import tool
from orchestrator_guards.money import cost_micros, limit_micros
from tests.runtime.stage import NO_WAIT, agent
from tests.tiers import examples
from tests.with_runtime import with_runtime

OFF: dict[str, Any] = {
    "max_no_progress": 0,
    "max_repeated_success": 0,
    "max_iterations": 40,
    "max_concurrent_tools": 0,
}


@tool(effect="pure", progress="cumulative")
def step(n: int) -> str:
    """Take a step."""
    return f"step {n} äöü " * (n % 7)


# ---- no price ----


@pytest.mark.parametrize("price", [None, price_table({}), price_table({"other": (1, 1)})])
def test_a_limit_on_cost_without_a_price_refuses_the_agent_and_says_what_to_give(price: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        agent(ScriptedLLM(["x"], model="prod"), price=price, limits=Limits(max_cost=0.25))
    said = str(refused.value)
    assert said.startswith("max_cost is 0.25, but the price of model 'prod' is unknown")
    assert "price_table({'prod': (input, output)})" in said
    assert "on_unknown_cost='ignore'" in said


async def test_limits_of_one_run_are_refused_too_before_anything_is_asked() -> None:
    llm, journal = ScriptedLLM(["x", "y"]), MemoryJournal()
    one = agent(llm, journal=journal)
    for refused in (
        one.run("go", limits=Limits(max_cost=1.0)),
        one.deposit("go", limits=Limits(max_cost=1.0)),
    ):
        with pytest.raises(ConfigError, match="the price of model 'scripted' is unknown"):
            await refused
    assert llm.requests == []
    assert [head async for head in journal.runs()] == []


def test_each_model_of_a_fallback_and_each_agent_among_the_tools_needs_a_price() -> None:
    known = price_table({"a": (1, 1)})
    a, b = ScriptedLLM([], model="a"), ScriptedLLM([], model="b")
    limits = Limits(max_cost=1.0)
    with pytest.raises(ConfigError, match="price of model 'a' is unknown"):
        agent(Fallback([a, b]), price=known, limits=limits)
    child = agent(b)
    with pytest.raises(ConfigError, match="price of model 'b' is unknown"):
        agent(a, [child.as_tool("dig", "")], price=known, limits=limits)
    agent(a, [agent(b, price=price_table({"b": (1, 1)})).as_tool("dig", "")], price=known, limits=limits)


def test_an_rlm_needs_prices_of_both_its_models() -> None:
    limits, known = RlmLimits(max_cost=1.0), price_table({"a": (1, 1)})
    a, b = ScriptedLLM([], model="a"), ScriptedLLM([], model="b")
    with pytest.raises(ConfigError, match="price of model 'b' is unknown"):
        Rlm(a, sub_model=b, limits=limits, runtime=Runtime(price=known, observers=()))
    Rlm(
        a,
        sub_model=b,
        limits=RlmLimits(max_cost=1.0, on_unknown_cost="ignore"),
        runtime=Runtime(price=known, observers=()),
    )


@pytest.mark.parametrize("kind", [Limits, RlmLimits])
def test_what_to_do_about_an_unknown_cost_is_one_of_two_words(kind: Any) -> None:
    with pytest.raises(ConfigError, match="on_unknown_cost is 'warn'; it must be one of: stop, ignore"):
        kind(on_unknown_cost="warn")


def unpriced_from(answer: int) -> FunctionLLM:
    """A model that reports what its answers cost, up to one of them."""
    asked: list[Request] = []

    def model(request: Request) -> Response:
        asked.append(request)
        cost = 0.25 if len(asked) < answer else None
        return Response("so", (call("step", n=len(asked)),), usage=Usage(3, 4, cost=cost))

    return FunctionLLM(model, usage=Usage(cost=0.0))


async def test_an_answer_whose_cost_is_unknown_ends_the_run() -> None:
    llm = unpriced_from(3)
    result = await agent(llm, [step], limits=Limits(max_cost=9.0, wrap_up_turns=1)).run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "cost_unknown")
    assert (len(llm.requests), result.usage.output_tokens, result.usage.cost) == (3, 12, 0.5)
    assert result.verdict is not None
    assert result.verdict.explain() == "cost_unknown: the price of model 'function' is unknown"
    assert "cost_unknown" in REASONS[Outcome.BUDGET_EXCEEDED]


async def test_it_is_counted_as_nothing_where_the_limits_say_so() -> None:
    limits = Limits(max_cost=9.0, on_unknown_cost="ignore", max_iterations=5)
    result = await agent(unpriced_from(3), [step], limits=limits).run("go")
    assert (result.reason, result.usage.cost) == ("max_iterations", 0.5)


async def test_a_child_run_whose_price_is_unknown_asks_nothing_below_a_limit_on_cost() -> None:
    inner = ScriptedLLM(["gold"], model="dark")
    child = agent(inner)
    tools = [agent_tool(lambda: child, "dig", "")]
    parent = agent(
        ScriptedLLM([call("dig", task="a"), "done"], model="a"),
        tools,
        price=price_table({"a": (1, 1)}),
        limits=Limits(max_cost=1.0),
    )
    result = await parent.run("go")
    assert result.outcome is Outcome.COMPLETED
    assert inner.requests == []
    (read,) = [one.text for one in result.messages if one.role == "tool"]
    assert "cost_unknown: the price of model 'dark' is unknown" in read


# ---- reservation ----


async def test_a_tenth_does_not_spend_eleven_hundredths() -> None:
    llm = FunctionLLM(
        lambda request: Response("so", (call("step", n=len(request.messages)),), usage=Usage(0, 1_000))
    )
    options: dict[str, Any] = {
        "price": price_table({"function": (0, 40)}),
        "limits": Limits(max_cost=0.10, **OFF),
    }
    result = await agent(llm, [step], params={"max_tokens": 1_000}, **options).run("go")
    assert (result.outcome, result.reason, result.usage.cost) == (Outcome.BUDGET_EXCEEDED, "cost", 0.08)
    assert result.verdict is not None
    assert result.verdict.explain() == "cost: 0.08 of 0.1 used (the next request can cost up to 0.040000)"
    result = await agent(llm, [step], **options).run("go")
    assert result.usage.cost == 0.12, "without max_tokens nobody knows what the third answer can cost"


async def test_a_first_request_that_can_cost_too_much_is_not_made() -> None:
    llm = ScriptedLLM(["never"])
    options: dict[str, Any] = {"price": price_table({"scripted": (0, 40)}), "params": {"max_tokens": 1_000}}
    result = await agent(llm, limits=Limits(max_cost=0.039), **options).run("go")
    assert (result.reason, len(llm.requests), result.usage.cost) == ("cost", 0, None)


async def test_the_wrap_up_turn_may_use_what_was_kept_back_for_it() -> None:
    def model(request: Request) -> Response:
        if request.tool_choice == "none":
            return Response("so far", usage=Usage(0, 1_000))
        return Response("so", (call("step", n=len(request.messages)),), usage=Usage(0, 1_000))

    limits = Limits(max_cost=0.13, wrap_up_turns=1, wrap_up_share=0.4, **OFF)
    one = agent(
        FunctionLLM(model),
        [step],
        price=price_table({"function": (0, 40)}),
        params={"max_tokens": 1_000},
        limits=limits,
    )
    result = await one.run("go")
    assert (result.outcome, result.reason, result.output) == (Outcome.PARTIAL, "cost", "so far")
    assert result.usage.cost == 0.08


class Provider:
    """Models that use as much as they may: a token for each byte, and answers up to `max_tokens`.

    What an answer costs is added up here, in micro-units, apart from what the runs record.
    """

    def __init__(self, rng: random.Random, prices: Mapping[str, tuple[float, float]]) -> None:
        self.rng = rng
        self.prices = prices
        self.served: list[int] = []
        self._last: dict[str, int] = {}

    def llm(self, name: str, *, calls: tuple[str, ...] = ("step",), fails: float = 0.0) -> FunctionLLM:
        async def model(request: Request) -> Response:
            for _ in range(self.rng.randrange(3)):
                await asyncio.sleep(0)
            if self.rng.random() < fails:
                raise LLMError("busy", kind="rate_limited")
            return self._answer(name, request, calls)

        return FunctionLLM(model, model=name)

    def _answer(self, name: str, request: Request, calls: tuple[str, ...]) -> Response:
        usage = self._usage(request)
        read, said = self.prices[name]
        self.served.append(cost_micros((usage.input_tokens * read + usage.output_tokens * said) / 1_000_000))
        if request.tool_choice == "none" or not self.rng.randrange(6):
            return Response("done", usage=usage)
        asked = [self._call(self.rng.choice(calls)) for _ in range(self.rng.randint(1, 3))]
        return Response(None, tuple(asked), usage=usage)

    def _call(self, name: str) -> ToolCall:
        if name == "step":
            return ToolCall("x", "step", f'{{"n": {self.rng.randrange(50)}}}')
        return ToolCall("x", name, f'{{"task": "{self.rng.random()}"}}')

    def _usage(self, request: Request) -> Usage:
        last = max((at for at, one in enumerate(request.messages) if one.role == "assistant"), default=-1)
        prefix = repr([_plain(one) for one in request.messages[: last + 1]])
        new = "".join(one.text for one in request.messages[last + 1 :])
        read = self._last.get(prefix, 0) + len(new.encode())
        if prefix not in self._last:
            read += sum(len(one.text.encode()) for one in request.messages[: last + 1])
        most = int(request.params.get("max_tokens", 400))
        usage = Usage(self.rng.randint(read // 2, read), self.rng.choice([most, self.rng.randint(0, most)]))
        answered = [*request.messages[: len(request.messages)]]
        self._last[repr([_plain(one) for one in answered])] = usage.input_tokens + usage.output_tokens
        return usage


def _plain(message: Message) -> Any:
    return message.to_openai()


prices = st.tuples(st.floats(0, 20), st.floats(0.01, 80))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "rng": random.Random(draw(st.integers(0, 2**32))),
        "prices": {"a": draw(prices), "b": draw(prices)},
        "max_cost": draw(st.floats(0.000_01, 0.08)),
        "max_tokens": draw(st.integers(1, 300)),
        "wrap_up": draw(st.sampled_from([0, 1])),
        "fails": draw(st.sampled_from([0.0, 0.3])),
    }


def run_of(case: dict[str, Any], llm: Any, tools: Any, **options: Any) -> Any:
    limits = Limits(max_cost=case["max_cost"], wrap_up_turns=case["wrap_up"], completion_retries=0, **OFF)
    one = Agent(
        llm,
        tools=tools,
        limits=limits,
        retry=NO_WAIT,
        **with_runtime(price=price_table(case["prices"]), observers=(), **options),
    )
    return asyncio.run(one.run("go " * 10))


@given(case=cases())
@settings(max_examples=examples(60))
def test_the_limit_is_never_exceeded_where_the_output_is_bounded(case: dict[str, Any]) -> None:
    provider = Provider(case["rng"], case["prices"])
    llm = provider.llm("a", fails=case["fails"])
    result = run_of(case, llm, [step], params={"max_tokens": case["max_tokens"]})
    assert (result.usage.cost_micros or 0) == sum(provider.served)
    assert sum(provider.served) <= limit_micros(case["max_cost"])


@given(case=cases())
@settings(max_examples=examples(60))
def test_it_is_exceeded_by_the_last_answer_at_most_where_the_output_is_not_bounded(
    case: dict[str, Any],
) -> None:
    provider = Provider(case["rng"], case["prices"])
    result = run_of(case, provider.llm("a", fails=case["fails"]), [step])
    assert (result.usage.cost_micros or 0) == sum(provider.served)
    assert sum(provider.served[:-1]) <= limit_micros(case["max_cost"])


@given(case=cases())
@settings(max_examples=examples(40))
def test_a_fallback_reserves_what_its_dearest_model_can_cost(case: dict[str, Any]) -> None:
    provider = Provider(case["rng"], case["prices"])
    llm = Fallback(
        [provider.llm("a", fails=0.4), provider.llm("b", fails=0.1)], on=("rate_limited",), cooldown=0
    )
    result = run_of(case, llm, [step], params={"max_tokens": case["max_tokens"]})
    assert (result.usage.cost_micros or 0) == sum(provider.served)
    assert sum(provider.served) <= limit_micros(case["max_cost"])


@given(case=cases(), bounded=st.booleans(), share=st.sampled_from([0.0, 0.5]))
@settings(max_examples=examples(40))
def test_child_runs_that_share_a_limit_exceed_it_by_one_answer_at_most_and_not_at_all_where_bounded(
    case: dict[str, Any], bounded: bool, share: float
) -> None:
    provider = Provider(case["rng"], case["prices"])
    params = {"max_tokens": case["max_tokens"]} if bounded else {}
    options: dict[str, Any] = {
        "price": price_table(case["prices"]),
        "params": params,
        "observers": (),
        "retry": NO_WAIT,
        "limits": Limits(completion_retries=0, **OFF | {"max_iterations": 6}),
    }
    leaf = Agent(provider.llm("b", fails=case["fails"]), tools=[step], **with_runtime(**options))
    group = Agent(
        provider.llm("b", calls=("leaf", "step")),
        tools=[step, leaf.as_tool("leaf", "")],
        **with_runtime(**options),
    )
    tools = [step, group.as_tool("group", "", share=share), leaf.as_tool("leaf", "", share=share)]
    result = run_of(case, provider.llm("a", calls=("group", "leaf", "step")), tools, params=params)
    assert (result.usage.cost_micros or 0) == sum(provider.served)
    over = sum(provider.served) - limit_micros(case["max_cost"])
    assert over <= (0 if bounded else max(provider.served, default=0))


# ---- lost answers ----


class Hanging:
    """A model that answers `answers` times with a call, and then hangs until `ends` is set."""

    model, double = "m", True

    def __init__(self, answers: int, usage: Usage) -> None:
        self.left = answers
        self.usage = usage
        self.asked = asyncio.Event()
        self.ends = False
        self.max_output_tokens = 0
        self.reports_cost = usage.cost is not None

    async def complete(self, _request: Request) -> Response:
        if self.ends:
            return Response("done", usage=Usage(1, 1, cost=0.0 if self.reports_cost else None))
        if self.left == 0:
            self.asked.set()
            await asyncio.Event().wait()
        self.left -= 1
        return Response(None, (call("step", n=self.left),), usage=self.usage)


async def crashed(llm: Hanging, one: Agent, times: int) -> Result:
    """Give a run up `times` times while its model is asked; then let it end."""
    for time in range(times):
        llm.asked.clear()
        work = asyncio.create_task(one.resume("r") if time else one.run("go", run_id="r"))
        await llm.asked.wait()
        work.cancel()
        await asyncio.wait((work,))
    llm.ends = True
    return await one.resume("r")


@pytest.mark.parametrize(
    ("answers", "params", "maximum", "each"),
    [
        (0, {"max_tokens": 50}, 0, 50),
        (2, {"max_tokens": 50}, 300, 50),
        (2, {}, 300, 7),
        (0, {}, 300, 300),
        (0, {}, 0, 4_096),
    ],
)
async def test_each_lost_answer_is_charged_as_the_best_estimate_and_marked(
    answers: int, params: dict[str, Any], maximum: int, each: int
) -> None:
    llm = Hanging(answers, Usage(3, 7))
    llm.max_output_tokens = maximum
    journal = MemoryJournal()
    one = agent(llm, [step], journal=journal, params=params, price=price_table({"m": (0, 10)}))
    result = await crashed(llm, one, 5)
    assert result.outcome is Outcome.COMPLETED
    assert result.usage.estimated_output_tokens == 5 * each
    assert result.usage.output_tokens == 5 * each + answers * 7 + 1
    assert result.usage.estimated_cost == pytest.approx(5 * each * 10 / 1_000_000)
    stored = StoredRun.of("r", await journal.load("r"))
    assert stored.context["spent"]["usage"]["estimated_output_tokens"] == 5 * each


async def test_five_crashes_do_not_use_up_a_budget_of_twenty_thousand_tokens() -> None:
    llm = Hanging(1, Usage(3, 120))
    one = agent(llm, [step], journal=MemoryJournal(), limits=Limits(max_output_tokens=20_000))
    result = await crashed(llm, one, 5)
    assert (result.outcome, result.usage.output_tokens) == (Outcome.COMPLETED, 6 * 120 + 1)


async def test_a_cost_that_only_the_provider_knows_is_estimated_by_the_dearest_answer() -> None:
    llm = Hanging(2, Usage(3, 7, cost=0.02))
    one = agent(llm, [step], journal=MemoryJournal(), limits=Limits(max_cost=0.09))
    result = await crashed(llm, one, 2)
    assert (result.outcome, result.usage.cost, result.usage.estimated_cost) == (Outcome.COMPLETED, 0.08, 0.04)


# ---- older records ----


def test_a_usage_of_an_earlier_version_is_read_in_micro_units() -> None:
    old = {"input_tokens": 3, "output_tokens": 4, "cached_input_tokens": 0, "reasoning_tokens": 0}
    assert Usage.of({**old, "cost": 0.29}) == Usage(3, 4, cost_micros=290_000)
    assert Usage.of({**old, "cost": None}) == Usage(3, 4)
    for wrong in ({"cost": "x"}, {"cost": -1.0}, {"input_tokens": "3"}, {"input_tokens": True}, 5):
        with pytest.raises(ValueError, match=r"is|cost"):
            Usage.of(wrong)


class OldJournal(MemoryJournal):
    """Hands out records as the version before this one wrote them: costs as fractions, no estimates."""

    async def load(self, run_id: str, since: int = 0) -> list[Record]:
        return [record._replace(body=_older(record.body)) for record in await super().load(run_id, since)]


def _older(value: Any) -> Any:
    if isinstance(value, list):
        return [_older(one) for one in value]
    if not isinstance(value, dict):
        return value
    new = (
        "cost_micros",
        "cost_max_micros",
        "on_unknown_cost",
        "largest_answer",
        "largest_cost",
        "fastest_rate",
    )
    kept = {
        name: _older(one)
        for name, one in value.items()
        if name not in new and not name.startswith("estimated")
    }
    if "cost_micros" in value:
        micros = value["cost_micros"]
        kept["cost"] = None if micros is None else micros / 1_000_000
    return kept


async def test_a_run_with_costs_as_fractions_goes_on_and_its_limit_holds() -> None:
    journal, llm = OldJournal(), Hanging(2, Usage(0, 1_000))
    limits = Limits(max_cost=0.12, **OFF)
    one = agent(llm, [step], journal=journal, price=price_table({"m": (0, 40)}), limits=limits)
    result = await crashed(llm, one, 1)
    (record, *_) = await journal.load("r")
    assert "on_unknown_cost" not in record.body["context"]["limits"]
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "cost")
    assert result.usage.cost_micros == 80_000 + 40_000, (
        "two answers, and a lost one that counts as the last of them"
    )


async def test_a_request_that_a_cancel_cuts_off_is_charged_as_an_estimate() -> None:
    asked = asyncio.Event()

    async def hangs(_: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    clock = FakeClock()
    runtime = Runtime(observers=(), clock=clock)
    runner = Agent(FunctionLLM(hangs), params={"max_tokens": 300}, runtime=runtime)
    running = asyncio.create_task(runner.run("go", run_id="r"))
    await asked.wait()
    await clock.advance(10)
    runner.cancel("r", by="ann")
    result = await running
    assert result.outcome is Outcome.CANCELLED
    assert (result.usage.output_tokens, result.usage.estimated_output_tokens) == (300, 300)
    assert result.usage.input_tokens == result.usage.estimated_input_tokens > 0
