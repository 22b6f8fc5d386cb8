"""The purse of a run and of those below it: in micro-units, reserved before each request."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import LimitReached
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Request, Response, Usage
from orchestrator.machines.rlm.model import RlmLimits
from orchestrator.providers import price_table
from orchestrator.providers.scripted import FunctionLLM
from orchestrator_callbacks.rlm.model_call import RunBudget, estimated
from orchestrator_guards import cost_unknown
from tests.rlm.test_rlm import rlm
from tests.tiers import examples


@given(
    limits=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    requests=st.lists(st.tuples(st.integers(0, 90), st.booleans(), st.booleans()), max_size=25),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=examples(150))
def test_requests_at_once_exceed_no_limit_where_their_most_cost_is_known_and_else_by_one_answer(
    limits: tuple[int, int], requests: list[tuple[int, bool, bool]], seed: int
) -> None:
    rng = random.Random(seed)
    root = RunBudget(RlmLimits(max_cost=limits[0] / 1_000_000))
    below = RunBudget(RlmLimits(max_cost=limits[1] / 1_000_000), lender=root)
    unbounded = [0]

    async def one(most: int, inner: bool, bounded: bool) -> None:
        purse = below if inner else root
        try:
            async with purse.request(Usage(1, 1, cost_micros=most if bounded else None)) as bill:
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                bill.usage = Usage(1, 1, cost_micros=rng.choice([most, rng.randint(0, most)]))
                if not bounded:
                    unbounded.append(most)
        except LimitReached:
            return

    async def all_of_them() -> None:
        await asyncio.gather(*(one(*request) for request in requests))

    asyncio.run(all_of_them())
    for purse, limit in ((root, limits[0]), (below, limits[1])):
        assert (purse.usage.cost_micros or 0) <= limit + max(unbounded)


async def test_a_request_that_can_cost_more_than_is_left_above_is_refused_and_reserves_nothing() -> None:
    root = RunBudget(RlmLimits(max_cost=0.000_1))
    below = RunBudget(RlmLimits(), lender=root)
    root.add(Usage(cost_micros=60))
    with pytest.raises(LimitReached, match=r"the next request can cost up to 0\.000041"):
        async with below.request(Usage(cost_micros=41)):
            raise AssertionError("unreachable")
    async with below.request(Usage(cost_micros=40)) as bill:
        bill.usage = Usage(cost_micros=40)
    assert root.usage.cost_micros == 100


async def test_a_request_that_is_cut_off_is_charged_as_an_estimate() -> None:
    purse = RunBudget(RlmLimits())
    with pytest.raises(asyncio.CancelledError):
        async with purse.request(Usage(1, 1), Usage(10, 20, cost_micros=5).as_estimate()):
            raise asyncio.CancelledError
    assert (purse.usage.output_tokens, purse.usage.estimated_output_tokens) == (20, 20)


async def test_after_an_answer_of_unknown_cost_nothing_is_asked_here_and_above() -> None:
    root = RunBudget(RlmLimits(max_cost=1.0))
    below = RunBudget(RlmLimits(), lender=root)
    with pytest.raises(LimitReached):
        below.refuse(cost_unknown(1, model="m"))
    for purse in (root, below):
        refusal = purse.refusal()
        assert refusal is not None
        assert refusal.explain() == "cost_unknown: the price of model 'm' is unknown"
    free = RunBudget(RlmLimits(max_cost=1.0, on_unknown_cost="ignore"))
    free.refuse(cost_unknown(1, model="m"))
    assert free.refusal() is None


def endless(cost: float | None) -> FunctionLLM:
    def model(_request: Request) -> Response:
        return Response("```repl\na = 1\n```", usage=Usage(0, 1_000, cost=cost))

    return FunctionLLM(model, usage=Usage(cost=0.0) if cost is None else Usage(), model="m")


@pytest.mark.parametrize(
    ("options", "spent"),
    [({"params": {"max_tokens": 1_000}}, 0.08), ({}, 0.12)],
)
async def test_an_rlm_run_reserves_the_most_that_a_request_can_cost(options: Any, spent: float) -> None:
    one = rlm(endless(0.04), price=price_table({"m": (0, 40)}), limits=RlmLimits(max_cost=0.10), **options)
    done = await one.run("p")
    assert (done.outcome, done.reason, done.usage.cost) == (Outcome.BUDGET_EXCEEDED, "cost", spent)


async def test_an_rlm_run_ends_by_an_answer_whose_cost_is_unknown() -> None:
    llm = endless(None)
    done = await rlm(llm, limits=RlmLimits(max_cost=0.10)).run("p")
    assert (done.outcome, done.reason, len(llm.requests)) == (Outcome.BUDGET_EXCEEDED, "cost_unknown", 1)


async def test_a_blank_answer_completes_with_a_reason_of_its_own() -> None:
    done = await rlm([Response('FINAL("  ")')]).run("p")
    assert done.outcome is Outcome.COMPLETED
    assert (done.reason == "empty_answer") == (not (done.output or "").strip())


# ---- the account ----


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
