"""The rate limiter: what goes out when, who waits how long, and what is told of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, LLMError
from orchestrator.llm.message import Message, Request
from orchestrator.providers.limiter import MINUTE, AdmittedRequest, RateLimit, RateLimiter
from orchestrator.testing.clock import FakeClock

ASK = Request((Message("user", "hello"),))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def started(waiting: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(waiting)


async def entered(limiter: RateLimiter, *tokens: int) -> list[AdmittedRequest]:
    return [await limiter.enter(one) for one in tokens]


# ---- how many at once ----


async def test_no_more_requests_are_under_way_than_allowed() -> None:
    limiter = RateLimiter(RateLimit(concurrency=2), clock=FakeClock())
    first, _ = await entered(limiter, 0, 0)
    third = started(limiter.enter())
    await settled()
    assert (limiter.active, limiter.waiting, third.done()) == (2, 1, False)
    limiter.leave(first)
    await third
    assert (limiter.active, limiter.waiting) == (2, 0)


async def test_who_came_first_goes_first_and_nobody_passes() -> None:
    limiter = RateLimiter(RateLimit(concurrency=1), clock=FakeClock())
    order: list[int] = []

    async def one(number: int) -> None:
        entry = await limiter.enter()
        order.append(number)
        await asyncio.sleep(0)
        limiter.leave(entry)

    await asyncio.gather(*(one(number) for number in range(50)))
    assert order == list(range(50))


async def test_a_request_that_needs_much_is_not_passed_by_small_ones() -> None:
    clock = FakeClock()
    limiter = RateLimiter(RateLimit(tokens_per_minute=100), clock=clock)
    await limiter.enter(60)
    big, small = started(limiter.enter(90)), started(limiter.enter(10))
    await settled()
    assert not small.done()
    await clock.advance(MINUTE)
    assert (big.done(), small.done()) == (True, True)


# ---- how many in a minute ----


async def test_a_limit_of_n_requests_a_minute_allows_exactly_n_in_any_minute() -> None:
    clock = FakeClock()
    limiter = RateLimiter(RateLimit(requests_per_minute=3), clock=clock)
    await limiter.enter()
    await clock.advance(30)
    await entered(limiter, 0, 0)
    later = started(limiter.enter())
    await clock.advance(29.9)
    assert not later.done()
    await clock.advance(0.1)
    assert later.done()
    last = started(limiter.enter())
    await clock.advance(29.9)
    assert not last.done()
    await clock.advance(0.1)
    assert last.done()


async def test_an_estimate_of_tokens_is_corrected_by_what_was_used() -> None:
    limiter = RateLimiter(RateLimit(tokens_per_minute=100), clock=FakeClock())
    cautious = await limiter.enter(100)
    waiting = started(limiter.enter(50))
    await settled()
    assert not waiting.done()
    limiter.leave(cautious, 50)
    await settled()
    assert waiting.done()


async def test_a_request_bigger_than_the_limit_goes_out_alone() -> None:
    clock = FakeClock()
    limiter = RateLimiter(RateLimit(tokens_per_minute=100), clock=clock)
    await limiter.enter(1)
    huge = started(limiter.enter(5_000))
    await clock.advance(MINUTE - 1)
    assert not huge.done()
    await clock.advance(1)
    assert huge.done()


async def test_a_correction_that_comes_after_the_minute_changes_nothing() -> None:
    clock = FakeClock()
    limiter = RateLimiter(RateLimit(tokens_per_minute=100), clock=clock)
    slow = await limiter.enter(100)
    await clock.advance(MINUTE)
    await limiter.enter(100)
    limiter.leave(slow, 5)
    waiting = started(limiter.enter(1))
    await settled()
    assert not waiting.done()
    waiting.cancel()


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 40), st.integers(0, 60), st.integers(0, 120)), min_size=1, max_size=25
    ),
    requests=st.integers(0, 4),
    tokens=st.integers(0, 100),
)
def test_no_minute_ever_has_more_than_the_limits(
    steps: list[tuple[float, int, int]], requests: int, tokens: int
) -> None:
    async def play() -> None:
        clock = FakeClock()
        limit = RateLimit(requests_per_minute=requests, tokens_per_minute=tokens, max_wait=0)
        limiter = RateLimiter(limit, clock=clock)
        went: list[tuple[float, AdmittedRequest]] = []

        async def one(need: int, used: int) -> None:
            entry = await limiter.enter(need)
            went.append((clock.monotonic(), entry))
            limiter.leave(entry, min(need, used))  # an estimate is an upper one

        tasks = []
        for pause, need, used in steps:
            tasks.append(started(one(need, used)))
            await clock.advance(pause)
        for _ in steps:
            await clock.advance(MINUTE)
        assert all(task.done() for task in tasks), "everybody had a turn"
        for at, _ in went:
            within = [entry for when, entry in went if at - MINUTE + 1e-5 < when <= at]
            assert not requests or len(within) <= requests
            total = sum(entry.tokens for entry in within)
            assert not tokens or total <= tokens or len([one for one in within if one.tokens]) == 1

    asyncio.run(play())


# ---- the queue ----


async def test_a_full_queue_refuses_with_the_delay_that_is_known() -> None:
    clock = FakeClock()
    limiter = RateLimiter(RateLimit(requests_per_minute=1, queue=1), clock=clock)
    await limiter.enter()
    await clock.advance(20)
    waiting = started(limiter.enter())
    await settled()
    with pytest.raises(LLMError, match=r"refused a request: 1 wait already \(queue=1\)") as refused:
        await limiter.enter()
    assert (refused.value.kind, refused.value.retry_after) == ("rate_limited", 40.0)
    await clock.advance(40)
    assert waiting.done()


async def test_one_who_waits_too_long_gives_up_and_frees_the_place() -> None:
    clock = FakeClock()
    limiter = RateLimiter(RateLimit(concurrency=1, max_wait=5), clock=clock)
    busy = await limiter.enter()
    first, second = started(limiter.enter()), started(limiter.enter())
    await clock.advance(2)
    third = started(limiter.enter())
    await clock.advance(3)
    for task in (first, second):
        with pytest.raises(LLMError, match=r"max_wait=5 s"):
            await task
    limiter.leave(busy)
    await third
    assert (limiter.active, limiter.waiting) == (1, 0)


async def test_a_wait_that_would_be_too_long_is_refused_at_once() -> None:
    limiter = RateLimiter(RateLimit(requests_per_minute=1, max_wait=10), clock=FakeClock())
    await limiter.enter()
    with pytest.raises(LLMError, match=r"60\.0 s more") as refused:
        await limiter.enter()
    assert refused.value.retry_after == 60.0
    assert limiter.waiting == 0


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_that_is_cancelled_while_it_waits_leaves_its_place_to_the_next(place: int) -> None:
    limiter = RateLimiter(RateLimit(concurrency=1, queue=3), clock=FakeClock())
    busy = await limiter.enter()
    tasks = [started(limiter.enter()) for _ in range(3)]
    await settled()
    tasks[place].cancel()
    await settled()
    assert limiter.waiting == 2
    entry = busy
    for task in (one for one in tasks if one is not tasks[place]):
        limiter.leave(entry)
        entry = await task
    assert tasks[place].cancelled()
    assert (limiter.active, limiter.waiting) == (1, 0)


async def test_one_that_is_cancelled_in_the_moment_of_its_turn_passes_it_on() -> None:
    limiter = RateLimiter(RateLimit(concurrency=1), clock=FakeClock())
    busy = await limiter.enter()
    first, second = started(limiter.enter()), started(limiter.enter())
    await settled()
    limiter.leave(busy)  # the bell of the first rings …
    first.cancel()  # … and before it hears that it is gone
    await second
    assert first.cancelled()
    assert limiter.active == 1


def test_who_waits_in_a_thread_of_its_own_is_woken_by_one_of_another() -> None:
    limiter = RateLimiter(RateLimit(concurrency=1))
    most: list[int] = []

    async def work() -> None:
        for _ in range(50):
            entry = await limiter.enter()
            most.append(limiter.active)
            await asyncio.sleep(0)
            limiter.leave(entry)

    async def several() -> None:
        async with asyncio.timeout(30):
            await asyncio.gather(work(), work())

    threads = [threading.Thread(target=asyncio.run, args=(several(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 400
    assert set(most) == {1}
    assert (limiter.active, limiter.waiting) == (0, 0)


def test_who_waits_in_an_event_loop_that_is_gone_is_in_nobodys_way() -> None:
    limiter = RateLimiter(RateLimit(concurrency=1))
    busy = asyncio.run(limiter.enter())
    loop = asyncio.new_event_loop()
    lost = loop.create_task(limiter.enter())
    loop.run_until_complete(asyncio.sleep(0))
    assert limiter.waiting == 1
    loop.close()

    async def next_one() -> None:
        waiting = started(limiter.enter())
        await settled()
        limiter.leave(busy)
        async with asyncio.timeout(10):
            await waiting

    asyncio.run(next_one())
    assert limiter.waiting == 0
    lost._log_destroy_pending = False  # type: ignore[attr-defined]  # it was left on purpose
    lost.get_coro().close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"concurrency": -1}, "concurrency is -1; possible: a whole number, 0"),
        ({"requests_per_minute": 0.5}, "requests_per_minute is 0.5; possible: a whole number"),
        ({"queue": True}, "queue is True; possible: a whole number"),
        ({"max_wait": float("nan")}, "max_wait is nan; possible: seconds"),
    ],
)
def test_a_limit_that_is_none_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("0.5", r"0\.5")):
        RateLimit(**wrong)
