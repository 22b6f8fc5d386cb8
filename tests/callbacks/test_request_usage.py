"""Cost of requests: which price counts, what an answer may report, and what a lost answer is charged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Message, Request, Response, Usage
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator.providers.price import price_table
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.telemetry.scope import scope
from orchestrator_callbacks.llm_loop import request_usage
from orchestrator_callbacks.llm_loop.request_usage import Pricing
from tests.callbacks.stand import loop_run

PRICES = {"cheap": 1e-6, "dear": 3e-6}


def price(name: str | None, tokens: Mapping[str, int]) -> float | None:
    """So much for each token of input or output; cached ones are free."""
    rate = PRICES.get(name or "")
    read = tokens["input_tokens"] - tokens["cached_input_tokens"]
    return None if rate is None else rate * (read + tokens["output_tokens"])


class Model(ScriptedLLM):
    """A model with the attributes that tell its prices."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__([])
        for name, value in attributes.items():
            setattr(self, name, value)


def pricing(model: str = "cheap", **attributes: Any) -> Pricing:
    return Pricing(price, Model(**attributes), model)


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (pricing(), True),
        (pricing("new"), False),
        (pricing("new", reports_cost=True), True),
        (pricing("new", models=("cheap", "dear")), True),
        (pricing("cheap", models=("cheap", "new")), False),
        (Pricing(None, Model(), "cheap"), False),
    ],
)
def test_a_cost_is_known_from_the_provider_or_from_a_price_of_each_model(
    given: Pricing, *, known: bool
) -> None:
    assert given.known is known


@pytest.mark.parametrize(
    ("given", "answered_by", "cost"),
    [
        (pricing(), None, 12),
        (pricing(), "cheap", 12),
        (pricing(), "dear", 36),
        (pricing(), "cheap-2026-01-01", 12),
        (pricing("new"), "cheap", 12),
        (pricing("new"), "newer", None),
        (pricing("cheap", models=("cheap", "dear")), "dear", 36),
        (pricing("cheap", models=("cheap", "dear")), "cheap-2026-01-01", None),
    ],
)
def test_the_price_is_that_of_the_name_in_the_answer_then_of_the_configured_one(
    given: Pricing, answered_by: str | None, cost: int | None
) -> None:
    assert given.cost(Usage(10, 4, 2), answered_by) == cost
    assert given.cost(Usage(10, 4, 2, cost_micros=0), answered_by) == 0


def test_nothing_is_looked_up_twice_under_one_name() -> None:
    asked: list[str | None] = []

    def unknown(name: str | None, _: Mapping[str, int]) -> None:
        asked.append(name)

    given = Pricing(unknown, Model(), "new")
    assert (given.cost(Usage(1, 1), "new"), given.cost(Usage(1, 1), None)) == (None, None)
    assert asked == ["new", "new"]


def test_a_name_without_a_price_is_looked_up_as_one_of_the_models_provider() -> None:
    def sold(name: str | None, _: Mapping[str, int]) -> float | None:
        return 3.0 if name == "groq:new" else None

    assert Pricing(sold, Model(provider="groq"), "new").cost(Usage(1, 1), None) == 3_000_000
    assert Pricing(sold, Model(provider="other"), "new").cost(Usage(1, 1), None) is None
    assert Pricing(sold, None, "groq:new").cost(Usage(1, 1), None) == 3_000_000


def request(**params: Any) -> Request:
    return Request((Message("user", "go"),), (), params=params)


@pytest.mark.parametrize(
    ("params", "attributes", "bounded"),
    [
        ({"max_tokens": 10}, {}, True),
        ({}, {"max_output_tokens": 10}, True),
        ({}, {"max_output_tokens": None}, False),
        ({}, {}, False),
        ({"max_tokens": 10, "n": 2}, {}, False),
        ({"max_tokens": 10, "tools": [{"type": "web_search"}]}, {}, False),
    ],
)
def test_the_most_that_a_request_costs_is_known_where_its_output_is_bounded(
    params: dict[str, Any], attributes: dict[str, Any], *, bounded: bool
) -> None:
    most = pricing(**attributes).max_request_cost(request(**params))
    assert (most is not None) is bounded
    if most is not None:
        dear = pricing("cheap", models=("cheap", "dear"), **attributes).max_request_cost(request(**params))
        assert dear == 3 * most, "whichever model answers"
        assert (
            pricing("cheap", models=("cheap", "new"), **attributes).max_request_cost(request(**params))
            is None
        )


def test_what_the_last_answer_reported_counts_for_one_model_and_not_for_several() -> None:
    asked = Request((Message("user", "x" * 5000), Message("assistant", "hm"), Message("user", "y")), ())
    asked = replace(asked, params={"max_tokens": 10})
    whole, reported = pricing().max_request_cost(asked), pricing().max_request_cost(asked, 7, 2)
    assert whole is not None
    assert reported is not None
    assert 17 < reported < 5000 < whole
    several = pricing("cheap", models=("cheap",))
    assert several.max_request_cost(asked, 7, 2) == several.max_request_cost(asked) == whole


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens"])
@pytest.mark.parametrize(
    ("count", "fault"),
    [
        (0, None),
        (2**53 - 1, None),
        (2**53, "of 2**53 or more"),
        (-1, "below 0"),
        (True, "'True'; it must be a whole number, 0 or more"),
        ("1" * 50, f"'{'1' * 40}'; it must be a whole number, 0 or more"),
    ],
)
def test_an_answer_reports_whole_numbers_that_every_journal_can_add(
    name: str, count: Any, fault: str | None
) -> None:
    said = request_usage.uncountable(replace(Usage(1, 1), **{name: count}))
    assert said == (None if fault is None else f"usage with {name} {fault}")


def test_a_count_of_another_integer_type_is_taken() -> None:
    class Tokens(int):
        pass

    assert request_usage.uncountable(Usage(Tokens(5), 1)) is None
    assert request_usage.uncountable(Usage(Tokens(-5), 1)) == "usage with input_tokens below 0"


@pytest.mark.parametrize(
    ("cost", "fault"),
    [(None, None), (0, None), (5, None), (-1, "usage with cost -1; it must be None or a number, 0 or more")],
)
def test_an_answer_reports_a_cost_of_zero_or_more_or_none(cost: int | None, fault: str | None) -> None:
    assert request_usage.uncountable(replace(Usage(1, 1), cost_micros=cost)) == fault


@pytest.mark.parametrize(
    ("params", "largest", "most", "tokens"),
    [({"max_tokens": 7}, 5, 9, 7), ({}, 5, 9, 5), ({}, 0, 9, 9), ({}, 0, 0, 4096)],
)
def test_a_lost_answer_has_the_tokens_of_its_limit_else_of_the_largest_else_of_the_model(
    params: dict[str, int], largest: int, most: int, tokens: int
) -> None:
    assert request_usage.lost_output(params, largest, pricing(max_output_tokens=most)) == tokens


def test_a_lost_answer_is_charged_what_was_reported_and_a_token_for_two_bytes_since() -> None:
    run = loop_run(
        Message("assistant", "a" * 100), Message("tool", "t" * 41), price=price, params={"max_tokens": 4}
    )
    run.deps.model = "cheap"
    assert request_usage.lost_answer_usage(run) == Usage(72, 4, cost_micros=76).as_estimate(), (
        "143 bytes, none reported"
    )
    run.ctx.context.tokens = 1000
    assert request_usage.lost_answer_usage(run) == Usage(1021, 4, cost_micros=1025).as_estimate()
    run.deps.params = {}
    run.ctx.response = Response("x", usage=Usage(1, 6))
    assert request_usage.lost_answer_usage(run).output_tokens == 6
    run.ctx.spent.largest_answer = 8
    assert request_usage.lost_answer_usage(run).output_tokens == 8


@pytest.mark.parametrize(("largest", "cost"), [(0, None), (9, 9)])
def test_a_lost_answer_without_a_price_costs_what_the_dearest_one_did(largest: int, cost: int | None) -> None:
    assert request_usage.estimated(Usage(5, 5), pricing("new"), largest).cost_micros == cost
    assert request_usage.estimated(Usage(5, 5), pricing(), largest).cost_micros == 10


class Lines:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **members: Any) -> None:
        self.lines.append({"event": event, **members})


def unpriced(run: Any, *answered_by: str | None) -> list[dict[str, Any]]:
    logger = Lines()
    with scope({}, logger):  # type: ignore[arg-type]
        for model in answered_by:
            assert request_usage.unknown_cost_refusal(run, Response("x", model=model)) is None
    return logger.lines


def test_an_unknown_cost_is_logged_once_for_each_model_and_limit() -> None:
    run = loop_run(price=price)
    line = {
        "event": "cost.unknown", "iteration": 0, "state": "INIT", "model": "scripted", "limit": 0.0, "cost": None
    }  # fmt: skip
    assert unpriced(run, "a", "b", None) == [{**line, "state": run.cursor.state}]
    run.deps.llm = Model(models=("a", "b"))
    assert [one["model"] for one in unpriced(run, "a", "b", "a", None, "x" * 200)] == ["a", "b", "x" * 120]
    assert unpriced(loop_run(), "a") == [], "without prices and a limit there is nothing to say"
    many = loop_run(price=price, llm=Model(models=("a",)))
    assert len(unpriced(many, *(str(number) for number in range(70)))) == 64


def test_an_unknown_cost_ends_a_run_whose_limit_on_cost_needs_it() -> None:
    run = loop_run(price=price, limits=replace(OFF, max_cost=1.0))
    logger = Lines()
    with scope({}, logger):  # type: ignore[arg-type]
        verdict = request_usage.unknown_cost_refusal(run, Response("x", model="m" * 200))
    assert verdict is not None
    assert (verdict.ok, verdict.guard) == (False, "cost_unknown")
    assert verdict.detail == f"the price of model {'m' * 120!r} is unknown"
    assert [line["limit"] for line in logger.lines] == [1.0]
    run = loop_run(limits=replace(OFF, max_cost=1.0, on_unknown_cost="ignore"))
    assert unpriced(run, None)[0]["limit"] == 1.0


def test_one_request_to_a_model_without_a_price_is_refused_below_a_limit_on_cost() -> None:
    prices = price_table({"another": (1, 1)})
    run = loop_run(price=prices, limits=replace(OFF, max_cost=1.0))
    verdict = request_usage.cost_refusal(run, Request(run.ctx.messages))
    assert verdict is not None
    assert (verdict.guard, verdict.observed, verdict.limit) == ("cost_unknown", 1, 1)


@pytest.mark.parametrize("given", [True, "1", -1e-9, float("nan")])
def test_a_price_that_is_no_amount_is_an_error_with_the_name_of_the_model(given: Any) -> None:
    wrong = Pricing(lambda name, tokens: given, Model(), "m")
    with pytest.raises(ConfigError, match="the price of 'm' is "):
        wrong.cost(Usage(1, 1), None)
