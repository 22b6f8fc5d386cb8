"""Budgets of sub-calls: every purse above counts, a limit is exceeded by no more than one request."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import LimitReached
from orchestrator.llm.message import Message, Usage
from orchestrator.machines.rlm.model import RlmLimits
from orchestrator_callbacks.rlm.model_call import RunBudget, estimated


def test_what_is_spent_below_counts_in_every_purse_above() -> None:
    root = RunBudget(RlmLimits(max_output_tokens=100))
    middle = RunBudget(RlmLimits(), lender=root)
    leaf = RunBudget(RlmLimits(), lender=middle)
    leaf.add(Usage(10, 60))
    middle.add(Usage(1, 39))
    assert (leaf.usage, middle.usage, root.usage) == (Usage(10, 60), Usage(11, 99), Usage(11, 99))
    assert leaf.refusal() is None
    root.add(Usage(0, 1))
    refusal = leaf.refusal()
    assert refusal is not None
    assert (refusal.guard, refusal.observed, refusal.limit) == ("output_tokens", 100, 100)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_exactly_as_many_questions_as_allowed_are_counted_here_and_above(limit: int) -> None:
    root = RunBudget(RlmLimits(max_sub_calls=limit))
    below = RunBudget(RlmLimits(), lender=root)
    for _ in range(limit):
        below.count_call()
    with pytest.raises(LimitReached, match=f"sub_calls: {limit} of {limit} used"):
        below.count_call()
    assert (root.calls, below.calls) == (limit, limit)


def test_a_refused_question_is_counted_nowhere() -> None:
    root = RunBudget(RlmLimits(max_sub_calls=1))
    below = RunBudget(RlmLimits(max_sub_calls=5), lender=root)
    root.count_call()
    with pytest.raises(LimitReached):
        below.count_call()
    assert (root.calls, below.calls) == (1, 0)


async def test_requests_that_would_not_fit_together_wait_for_each_other() -> None:
    purse = RunBudget(RlmLimits(max_input_tokens=100))
    order: list[str] = []
    began, release = asyncio.Event(), asyncio.Event()

    async def ask(name: str) -> None:
        async with purse.request(Usage(60, 0)) as bill:
            order.append(f"{name} out")
            began.set()
            await release.wait()
            bill.usage = Usage(30, 1)
        order.append(f"{name} in")

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(ask(name))
        async with asyncio.timeout(5):
            await began.wait()
        assert order == ["a out"]
        release.set()
    assert order == ["a out", "a in", "b out", "b in", "c out", "c in"]
    assert purse.usage == Usage(90, 3)


async def test_a_used_up_limit_refuses_and_lets_those_who_wait_know() -> None:
    purse = RunBudget(RlmLimits(max_input_tokens=100))
    entered = asyncio.Event()

    async def greedy() -> None:
        async with purse.request(Usage(80, 0)) as bill:
            entered.set()
            await asyncio.sleep(0)
            bill.usage = Usage(150, 0)

    async def late() -> None:
        await entered.wait()
        async with purse.request(Usage(50, 0)):
            pytest.fail("nothing is left")

    first = asyncio.ensure_future(greedy())
    with pytest.raises(LimitReached, match="input_tokens: 150 of 100 used"):
        await late()
    await first


async def test_a_request_that_failed_gives_back_what_was_reserved() -> None:
    purse = RunBudget(RlmLimits(max_input_tokens=100))
    with pytest.raises(ConnectionError):
        async with purse.request(Usage(100, 0)):
            raise ConnectionError
    async with asyncio.timeout(5):
        async with purse.request(Usage(100, 0)) as bill:
            bill.usage = Usage(7, 0)
    assert purse.usage == Usage(7, 0)


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100)), min_size=1, max_size=30),
    st.integers(1, 3),
)
async def test_no_limit_is_exceeded_by_more_than_one_request(
    limit: int, requests: list[tuple[int, int]], depth: int
) -> None:
    """Whatever is estimated and used, as long as no request uses more than it estimated."""
    root = RunBudget(RlmLimits(max_input_tokens=limit))
    purses = [root]
    for _ in range(depth):
        purses.append(RunBudget(RlmLimits(), lender=purses[-1]))
    refused = 0

    async def ask(number: int, need: int, used: int) -> None:
        nonlocal refused
        try:
            async with purses[number % len(purses)].request(Usage(need, 0)) as bill:
                await asyncio.sleep(0)
                bill.usage = Usage(min(used, need), 0)
        except LimitReached:
            refused += 1

    async with asyncio.timeout(20):
        await asyncio.gather(*(ask(number, *one) for number, one in enumerate(requests)))
    largest = max(min(one) for one in requests)
    assert root.usage.input_tokens < limit + largest
    assert refused == 0 or root.usage.input_tokens >= limit


def test_an_estimate_counts_four_characters_a_token() -> None:
    assert estimated([Message("user", "x" * 9)]) == Usage(3, 0)
