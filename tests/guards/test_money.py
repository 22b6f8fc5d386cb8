"""Amounts of money as integers: what is rounded which way, and that sums are exact."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator_guards import cost, request_cost
from orchestrator_guards.money import cost_micros, in_currency, limit_micros

amounts = st.decimals(0, 1_000_000, places=6)
micros = st.integers(0, 10**12)


@given(amount=amounts)
def test_an_amount_with_six_decimals_is_the_same_in_micro_units(amount: Decimal) -> None:
    exact = int(amount * 1_000_000)
    assert cost_micros(float(amount)) == exact
    assert limit_micros(float(amount)) == exact
    assert cost_micros(in_currency(exact)) == exact


@given(amount=st.floats(1e-6, 1e6))
def test_a_cost_is_rounded_up_and_a_limit_down_by_less_than_a_micro_unit(amount: float) -> None:
    assert 0 <= cost_micros(amount) - limit_micros(amount) <= 1
    assert abs(cost_micros(amount) - amount * 1_000_000) < 1.001


@pytest.mark.parametrize(("amount", "cost", "limit"), [(4e-10, 0, 1), (6e-10, 1, 1), (2.0000004e-6, 2, 2)])
def test_less_than_a_thousandth_of_a_micro_unit_does_not_count(amount: float, cost: int, limit: int) -> None:
    assert (cost_micros(amount), limit_micros(amount)) == (cost, limit)
    assert limit_micros(3e-6 - 4e-10) == limit_micros(3e-6 - 6e-10) + 1 == 3


def test_no_cost_and_no_limit_is_rounded_to_nothing() -> None:
    assert (cost_micros(1e-8), limit_micros(1e-8), cost_micros(0), limit_micros(0)) == (1, 1, 0, 0)


@given(spent=micros, most=micros, limit=st.integers(1, 10**12))
def test_a_request_fits_exactly_where_the_most_that_it_costs_is_left(
    spent: int, most: int, limit: int
) -> None:
    verdict = request_cost(spent, most, limit)
    assert verdict.ok is (spent + most <= limit)
    assert verdict.guard == cost(spent, limit).guard == "cost"


def test_a_request_that_does_not_fit_is_explained_in_the_currency() -> None:
    said = request_cost(60_000, 50_000, 100_000).explain()
    assert said == "cost: 0.06 of 0.1 used (the next request can cost up to 0.050000)"
