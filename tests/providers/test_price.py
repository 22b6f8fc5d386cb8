"""What tokens cost, and what is said where nobody knows."""

from __future__ import annotations

import builtins
import io
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.kernel.fact import LLMCall
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Response, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.fallback import Fallback
from orchestrator.providers.price import genai_prices, price_table
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.telemetry.log import TransitionLog
from tests.runtime.stage import Facts, agent

MILLION = {"input_tokens": 1_000_000, "output_tokens": 1_000_000, "cached_input_tokens": 0}


def warned(log: io.StringIO) -> list[tuple[str, float]]:
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [(line["model"], line["limit"]) for line in lines if line["msg"] == "cost.unknown"]


# ---- the host's own table ----


def test_a_price_is_of_a_million_tokens_and_cached_ones_have_their_own() -> None:
    price = price_table({"plain": (2.0, 8.0), "cached": (2.0, 8.0, 0.5)})
    tokens = {"input_tokens": 3_000, "output_tokens": 500, "cached_input_tokens": 1_000}
    assert price("plain", tokens) == pytest.approx(0.006 + 0.004)
    assert price("cached", tokens) == pytest.approx(0.004 + 0.004 + 0.0005)


@pytest.mark.parametrize("name", ["gpt-main", "gpt-main-2026-05-01", "gpt-main-20260501", "gpt-main-latest"])
def test_a_name_counts_for_its_dated_versions(name: str) -> None:
    assert price_table({"gpt-main": (1, 1)})(name, MILLION) == 2


@pytest.mark.parametrize("name", ["gpt-main-mini", "gpt-main-2", "gpt", "GPT-MAIN", "", None])
def test_a_name_counts_for_nothing_else_that_is_alike(name: str | None) -> None:
    assert price_table({"gpt-main": (1, 1)})(name, MILLION) is None


def test_a_dated_version_may_have_a_price_of_its_own() -> None:
    price = price_table({"gpt-main": (1, 1), "gpt-main-2026-05-01": (3, 3)})
    assert (price("gpt-main-2026-05-01", MILLION), price("gpt-main-2026-06-01", MILLION)) == (6, 2)


def test_a_model_that_is_free_costs_0_and_is_known() -> None:
    assert price_table({"own": (0, 0)})("own", MILLION) == 0


@given(
    read=st.integers(0, 10**9),
    cached=st.integers(0, 10**9),
    said=st.integers(0, 10**9),
    prices=st.tuples(*[st.floats(0, 1_000)] * 3),
)
def test_a_price_is_never_negative_and_at_most_that_of_the_dearest_token(
    read: int, cached: int, said: int, prices: tuple[float, float, float]
) -> None:
    tokens = {"input_tokens": read, "output_tokens": said, "cached_input_tokens": cached}
    cost = price_table({"m": prices})("m", tokens)
    assert cost is not None
    assert 0 <= cost <= max(prices) * (read + said) / 1_000_000 * (1 + 1e-9)


@pytest.mark.parametrize(
    "prices", [(1.0,), (1, 2, 3, 4, 5), (-1, 2), (float("nan"), 1), ("1", 2), "12", 5, (True, 1), None]
)
def test_what_is_no_price_is_refused_where_it_is_given(prices: Any) -> None:
    with pytest.raises(ConfigError, match=r"price of 'm' is .*; give \(input, output\)"):
        price_table({"m": prices})


# ---- genai-prices ----


def test_known_models_have_prices_by_every_way_to_name_them() -> None:
    price = genai_prices()
    names = ["gpt-4o", "gpt-4o-2024-08-06", "openai:gpt-4o", "openai/gpt-4o"]
    assert [price(name, MILLION) for name in names] == [12.5] * 4
    assert price("claude-3-5-sonnet-20241022", MILLION) == 18
    assert genai_prices("openai")("gpt-4o", MILLION) == 12.5


def test_cached_tokens_cost_less_and_more_of_them_than_there_are_is_all() -> None:
    price = genai_prices()
    tokens = {"input_tokens": 1_000_000, "output_tokens": 0, "cached_input_tokens": 400_000}
    assert price("gpt-4o", tokens) == pytest.approx(0.6 * 2.5 + 0.4 * 1.25)
    odd = {"input_tokens": 1_000_000, "output_tokens": 0, "cached_input_tokens": 9_000_000}
    assert price("gpt-4o", odd) == pytest.approx(1.25)


@pytest.mark.parametrize("name", ["my-own-model", "acme:gpt-4o-of-ours", "", None])
def test_an_unknown_model_has_no_price_and_not_0(name: str | None) -> None:
    assert genai_prices()(name, MILLION) is None


def test_a_model_that_is_listed_without_prices_has_none() -> None:
    assert genai_prices("github-copilot")("gpt-4o", MILLION) is None


def test_no_thread_and_no_socket_come_of_asking() -> None:
    code = """
import socket, threading
def refuse(*_, **__): raise AssertionError("a socket")
socket.socket.connect = refuse; socket.getaddrinfo = refuse; socket.create_connection = refuse
from orchestrator.providers.price import genai_prices
assert genai_prices()("gpt-4o", {"input_tokens": 1000000, "output_tokens": 0, "cached_input_tokens": 0}) == 2.5
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_the_package_the_error_names_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "genai_prices":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtra, match=r"pip install 'fsm-orchestrator\[prices\]'"):
        genai_prices()


# ---- in a run ----


def answer(model: str | None, cost: float | None = None) -> Response:
    return Response("done", usage=Usage(1_000, 500, cost=cost), model=model)


async def test_the_cost_of_a_run_is_that_of_its_answers() -> None:
    facts = Facts()
    runner = agent(
        [call("nothing"), answer("m")],
        price=price_table({"scripted": (0, 0), "m": (2, 8)}),
        observers=[facts],
    )
    result = await runner.run("go")
    assert result.usage.cost == pytest.approx(0.006)
    assert [fact.cost for fact in facts.of(LLMCall)] == [0, pytest.approx(0.006)]


async def test_a_host_may_price_by_the_configured_name_what_answers_under_another() -> None:
    llm = ScriptedLLM([answer("meta/llama-of-theirs")], model="prod")
    result = await agent(llm, price=price_table({"prod": (2, 8)})).run("go")
    assert result.usage.cost == pytest.approx(0.006)


async def test_one_of_several_models_never_has_the_price_of_another() -> None:
    llm = Fallback([ScriptedLLM([answer("strange")], model="dear")])
    result = await agent(llm, price=price_table({"dear": (200, 800)})).run("go")
    assert result.usage.cost is None


async def test_what_the_provider_says_that_it_costs_stands_above_the_table() -> None:
    result = await agent([answer("m", cost=0.5)], price=price_table({"m": (2, 8)})).run("go")
    assert result.usage.cost == 0.5


async def test_an_unknown_model_is_named_once_and_its_tokens_are_counted() -> None:
    log = io.StringIO()
    llm = ScriptedLLM([call("nothing"), answer(None), answer(None)], model="prod")
    runner = agent(llm, price=price_table({}), observers=[TransitionLog(log)])
    first, second = await runner.run("go"), await runner.run("go")
    assert (first.usage.cost, second.usage.cost) == (None, None)
    assert (second.usage.input_tokens, second.usage.output_tokens) == (1_000, 500)
    assert warned(log) == [("prod", 0)]


@pytest.mark.parametrize("prices", [None, {}])
async def test_a_limit_on_cost_that_counts_no_answer_is_said_to_be_so(
    prices: Mapping[str, Any] | None,
) -> None:
    log = io.StringIO()
    llm = ScriptedLLM([answer(None)] * 3, model="prod")
    price = None if prices is None else price_table(prices)
    limits = Limits(max_cost=0.25, on_unknown_cost="ignore")
    runner = agent(llm, price=price, observers=[TransitionLog(log)], limits=limits)
    for _ in range(3):
        assert (await runner.run("go")).outcome is Outcome.COMPLETED
    assert warned(log) == [("prod", 0.25)]


async def test_each_unknown_model_of_a_fallback_is_named() -> None:
    log = io.StringIO()
    llm = Fallback([ScriptedLLM([answer("a-1"), answer("b-1"), answer("a-1")], model="first")])
    runner = agent(llm, price=price_table({}), observers=[TransitionLog(log)])
    for _ in range(3):
        await runner.run("go")
    assert warned(log) == [("a-1", 0), ("b-1", 0)]


async def test_who_wants_no_cost_is_told_nothing() -> None:
    log = io.StringIO()
    await agent([answer(None)], observers=[TransitionLog(log)]).run("go")
    assert warned(log) == []


async def test_a_known_cost_still_ends_a_run_that_has_used_it_up() -> None:
    script = [call("nothing")] * 5
    price = price_table({"scripted": (100_000, 100_000)})  # 0.2 an answer of two tokens
    result = await agent(script, price=price, limits=Limits(max_cost=0.5, wrap_up_turns=0)).run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "cost")
    assert result.usage.cost == pytest.approx(0.6)


def test_genai_prices_knows_the_models_that_only_one_provider_names_so() -> None:
    """`Pricing` asks so for a model of pydantic-ai whose name alone has no price."""
    price = genai_prices()
    tokens = {"input_tokens": 1_000, "output_tokens": 1_000, "cached_input_tokens": 500}
    for name in ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "us.amazon.nova-lite-v1:0"):
        assert price(name, tokens) is None
        assert price(f"bedrock:{name}", tokens)
