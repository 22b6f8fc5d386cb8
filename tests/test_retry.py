"""`RetryPolicy`, `classify`, and the clock that makes both testable."""

from __future__ import annotations

import asyncio
import errno
import http
import random
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ERROR_KINDS, ConfigError, LLMError
from orchestrator.llm.port import Clock
from orchestrator.llm.retry import UNLIMITED, FailureKind, RetryAttempt, RetryPolicy, RetryTable, classify
from orchestrator.testing.clock import FakeClock

STEADY = RetryPolicy(jitter=0)
RETRYABLE = {"rate_limited", "timeout", "server_error", "connection", "malformed"}
RATE_LIMITED = LLMError("slow down", kind="rate_limited", status=429)


class Script:
    """Answers with each of `steps` in turn: raises exceptions, returns the rest. Takes `seconds` for each."""

    def __init__(self, *steps: object, clock: Clock | None = None, seconds: float = 0.0) -> None:
        self.steps = list(steps)
        self.asked: list[tuple[object, ...]] = []
        self.clock = clock
        self.seconds = seconds

    async def __call__(self, *args: object) -> object:
        self.asked.append(args)
        if self.clock is not None:
            await self.clock.sleep(self.seconds)
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


class StatusError(Exception):
    """What a vendor's client raises."""

    def __init__(self, status_code: object = None, **fields: object) -> None:
        super().__init__("please try again, temporarily unavailable, timeout")
        self.status_code = status_code
        for name, value in fields.items():
            setattr(self, name, value)


def failing(*delays: float | None) -> list[LLMError]:
    """Rate limits that ask for these Retry-After seconds."""
    return [LLMError("slow down", kind="rate_limited", retry_after=delay) for delay in delays]


# ---- trying again ----


async def test_an_answer_at_once_is_one_try() -> None:
    tried: list[RetryAttempt] = []
    script = Script("answer")
    assert await STEADY.call(script, "a", 1, on_attempt=tried.append, clock=FakeClock()) == "answer"
    assert script.asked == [("a", 1)]
    assert tried == [RetryAttempt(1, "ok")]
    assert await STEADY.call(Script("answer")) == "answer"


async def test_a_transient_failure_is_tried_again_and_each_try_is_told() -> None:
    clock = FakeClock(auto=True)
    tried: list[RetryAttempt] = []
    first, second = failing(None, None)
    script = Script(first, second, "answer", clock=clock, seconds=2)
    policy = RetryPolicy(base=0.125, jitter=0)
    assert await policy.call(script, 7, on_attempt=tried.append, clock=clock) == "answer"
    assert script.asked == [(7,)] * 3
    assert tried == [
        RetryAttempt(1, "retry", "rate_limited", 0.125, 2, first),
        RetryAttempt(2, "retry", "rate_limited", 0.25, 2, second),
        RetryAttempt(3, "ok", seconds=2),
    ]


@pytest.mark.parametrize("attempts", [1, 2, 4])
async def test_attempts_of_n_are_exactly_n_tries_and_the_last_error_itself_is_raised(attempts: int) -> None:
    tried: list[RetryAttempt] = []
    errors = failing(*[None] * 9)
    script = Script(*errors)
    with pytest.raises(LLMError) as raised:
        await RetryPolicy(attempts).call(script, on_attempt=tried.append, clock=FakeClock(auto=True))
    assert raised.value is errors[attempts - 1]
    assert len(script.asked) == attempts
    assert [t.outcome for t in tried] == ["retry"] * (attempts - 1) + ["exhausted"]
    times = "once" if attempts == 1 else f"{attempts} times"
    assert raised.value.__notes__[0].startswith(f"tried {times} in ")
    assert raised.value.__notes__[0].endswith("the last failure was rate_limited")


async def test_a_failure_that_another_try_cannot_mend_is_raised_at_once() -> None:
    tried: list[RetryAttempt] = []
    denied = LLMError("no key", kind="auth")
    script = Script(RATE_LIMITED, denied, "never")
    with pytest.raises(LLMError) as raised:
        await STEADY.call(script, on_attempt=tried.append, clock=FakeClock(auto=True))
    assert raised.value is denied
    assert [(t.number, t.outcome, t.kind) for t in tried] == [
        (1, "retry", "rate_limited"),
        (2, "fatal", "auth"),
    ]


async def test_an_error_of_the_listener_is_no_failed_try() -> None:
    def listen(tried: RetryAttempt) -> None:
        if tried.outcome == "ok":
            raise ConnectionError("metrics are down")

    script = Script(RATE_LIMITED, "answer", "never")
    with pytest.raises(ConnectionError):
        await STEADY.call(script, on_attempt=listen, clock=FakeClock(auto=True))
    assert len(script.asked) == 2


async def test_concurrent_calls_of_one_policy_do_not_share_their_count() -> None:
    clock = FakeClock(auto=True)
    scripts = [Script(*failing(*[None] * n), n) for n in (0, 1, 2, 3)]
    answers = await asyncio.gather(*(STEADY.call(script, clock=clock) for script in scripts))
    assert answers == [0, 1, 2, 3]


# ---- delays ----


async def delays_of(policy: RetryPolicy, *errors: Exception, rng: random.Random | None = None) -> list[float]:
    clock = FakeClock(auto=True)
    await policy.call(Script(*errors, "answer"), clock=clock, rng=rng)
    return clock.slept


async def test_d7_max_delay_caps_each_delay_and_not_the_whole() -> None:
    policy = RetryPolicy(attempts=6, base=1, max_delay=3, deadline=0, jitter=0)
    assert await delays_of(policy, *failing(*[None] * 5)) == [1, 2, 3, 3, 3]
    uncapped = RetryPolicy(attempts=6, base=1, max_delay=0, deadline=0, jitter=0)
    assert await delays_of(uncapped, *failing(*[None] * 5)) == [1, 2, 4, 8, 16]


async def test_jitter_varies_the_delays_reproducibly_and_within_its_bounds() -> None:
    policy = RetryPolicy(base=0.1, jitter=0.05)
    errors = failing(None, None, None)
    first, again, other = [await delays_of(policy, *errors, rng=random.Random(n)) for n in (1, 1, 2)]
    assert first == again != other
    assert all(abs(delay - middle) <= 0.05 for delay, middle in zip(first, (0.1, 0.2, 0.4), strict=True))


@given(
    st.integers(1, 8),
    st.floats(0, 5),
    st.floats(0, 5),
    st.floats(0, 5),
    st.floats(0, 30),
    st.lists(st.none() | st.floats(0, 60), min_size=8, max_size=8),
    st.integers(0, 99),
)
async def test_no_limit_of_any_policy_is_exceeded(
    attempts: int,
    base: float,
    cap: float,
    jitter: float,
    deadline: float,
    asked: list[float | None],
    seed: int,
) -> None:
    policy = RetryPolicy(attempts, base, cap, deadline, jitter)
    clock = FakeClock(auto=True)
    script = Script(*failing(*asked))
    with pytest.raises(LLMError):
        await policy.call(script, clock=clock, rng=random.Random(seed))
    assert len(script.asked) <= attempts
    assert not deadline or sum(clock.slept) <= deadline + 1e-9, "no clock sees less than a nanosecond"
    for delay, wanted in zip(clock.slept, asked, strict=False):
        assert delay == wanted if wanted is not None else 0 <= delay <= (cap or base * 2**8 + jitter)


async def test_retry_after_wins_over_the_computed_delay_and_over_its_cap() -> None:
    policy = RetryPolicy(base=1, max_delay=2, jitter=0.5)
    assert await delays_of(policy, *failing(0, 7.5, 60)) == [0, 7.5, 60]


async def test_a_retry_after_past_the_deadline_gives_up_instead_of_waiting_or_trying_early() -> None:
    clock = FakeClock(auto=True)
    tried: list[RetryAttempt] = []
    script = Script(*failing(100, 200), "never")
    with pytest.raises(LLMError):
        await STEADY.call(script, on_attempt=tried.append, clock=clock)
    assert clock.slept == [100]
    assert [t.outcome for t in tried] == ["retry", "exhausted"]


@pytest.mark.parametrize("nonsense", [-1, float("nan"), float("inf"), "soon", None])
async def test_a_retry_after_that_is_no_time_is_ignored(nonsense: object) -> None:
    error = StatusError(429)
    error.retry_after = nonsense  # type: ignore[attr-defined]
    assert await delays_of(STEADY, error) == [0.1]


@pytest.mark.parametrize(("seconds", "tries"), [(9.9, 2), (10.0, 1), (10.1, 1)])
async def test_no_try_starts_once_the_deadline_is_reached(seconds: float, tries: int) -> None:
    clock = FakeClock(auto=True)
    policy = RetryPolicy(base=0, jitter=0, deadline=10)
    script = Script(*[RATE_LIMITED] * 9, clock=clock, seconds=seconds)
    with pytest.raises(LLMError):
        await policy.call(script, clock=clock)
    assert len(script.asked) == tries


async def test_a_deadline_of_zero_is_none() -> None:
    policy = RetryPolicy(deadline=0)
    assert await delays_of(policy, *failing(1e6, 1e6)) == [1e6, 1e6]


# ---- a rule of the caller's own ----


async def test_a_rule_of_the_caller_decides_in_place_of_the_classification() -> None:
    asked: list[Exception] = []

    def may_retry(error: Exception) -> bool:
        asked.append(error)
        return isinstance(error, ValueError)

    tried: list[RetryAttempt] = []
    steps = [ValueError("1"), ValueError("2"), RATE_LIMITED]
    with pytest.raises(LLMError) as raised:
        await STEADY.call(
            Script(*steps, "never"),
            may_retry=may_retry,
            on_attempt=tried.append,
            clock=FakeClock(auto=True),
        )
    assert raised.value is RATE_LIMITED
    assert asked == steps  # each failure is judged once
    assert [(t.number, t.outcome) for t in tried] == [(1, "retry"), (2, "retry"), (3, "fatal")]


@pytest.mark.parametrize(("base", "longest", "delay"), [(0.0, 0.0, 0.0), (0.2, 5.0, 5.0), (1.0, 1.0, 1.0)])
async def test_the_delays_of_tries_without_a_limit_stay_within_their_bounds(
    base: float, longest: float, delay: float
) -> None:
    failures = 1_200  # 2.0**1024 is a number that no float holds
    policy = RetryPolicy(UNLIMITED, base=base, max_delay=longest, deadline=0, jitter=0)
    delays = await delays_of(policy, *failing(*[None] * failures))
    assert len(delays) == failures
    assert (delays[0], delays[-1]) == (base, delay)


async def test_a_first_failure_that_is_not_tried_again_gets_no_note_of_the_tries() -> None:
    async def inner() -> object:
        return await STEADY.call(Script(*failing(*[None] * 4)), clock=FakeClock(auto=True))

    with pytest.raises(LLMError) as raised:
        await STEADY.call(inner, may_retry=lambda _: False, clock=FakeClock(auto=True))
    (note,) = raised.value.__notes__
    assert note.startswith("tried 4 times in ")


def waits_of(clock: FakeClock) -> Callable[[float], None]:
    """A sleep for a thread, by a clock that moves at once."""

    def sleep(seconds: float) -> None:
        clock.slept.append(seconds)
        clock._move_to(clock._elapsed + max(0.0, seconds))

    return sleep


@given(
    st.builds(
        RetryPolicy,
        st.integers(1, 5),
        base=st.floats(0, 5),
        max_delay=st.floats(0, 5),
        deadline=st.floats(0, 30),
        jitter=st.floats(0, 1),
    ),
    st.lists(
        st.sampled_from([RATE_LIMITED, LLMError("no key", kind="auth"), KeyboardInterrupt(), "answer"]),
        min_size=5,
        max_size=5,
    ),
    st.integers(0, 9),
)
async def test_a_thread_tries_exactly_as_a_coroutine_does(
    policy: RetryPolicy, steps: list[object], seed: int
) -> None:
    def ending(answer: object, tried: list[RetryAttempt], clock: FakeClock) -> tuple[object, ...]:
        return answer, [(t.number, t.outcome, t.kind, t.delay) for t in tried], clock.slept

    tried: list[RetryAttempt] = []
    clock, script = FakeClock(auto=True), Script(*steps)
    answer: object
    try:
        answer = await policy.call(script, on_attempt=tried.append, clock=clock, rng=random.Random(seed))
    except BaseException as error:  # noqa: BLE001
        answer = error
    expected = ending(answer, tried, clock)

    tried, clock, left = [], FakeClock(auto=True), list(steps)

    def step() -> object:
        if isinstance(left[0], BaseException):
            raise left.pop(0)  # type: ignore[misc]
        return left.pop(0)

    try:
        answer = policy.call_sync(
            step, on_attempt=tried.append, clock=clock, sleep=waits_of(clock), rng=random.Random(seed)
        )
    except BaseException as error:  # noqa: BLE001
        answer = error
    assert ending(answer, tried, clock) == expected
    assert left == script.steps


def test_a_wait_that_is_interrupted_ends_the_tries_of_a_thread() -> None:
    def stopped(seconds: float) -> None:
        raise RuntimeError(f"stopped in a wait of {seconds} s")

    asked: list[int] = []

    def fail() -> None:
        asked.append(1)
        raise ConnectionResetError

    with pytest.raises(RuntimeError, match=r"stopped in a wait of 0.1 s"):
        STEADY.call_sync(fail, sleep=stopped)
    assert asked == [1]


# ---- cancellation ----


@pytest.mark.parametrize("step", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()])
@pytest.mark.parametrize("before", [0, 1])
async def test_d12_a_cancellation_is_never_retried_and_never_told_as_a_failure(
    step: BaseException, before: int
) -> None:
    tried: list[RetryAttempt] = []
    script = Script(*failing(*[None] * before), step, "never")
    with pytest.raises(type(step)) as raised:
        await STEADY.call(script, on_attempt=tried.append, clock=FakeClock(auto=True))
    assert raised.value is step
    assert [t.outcome for t in tried] == ["retry"] * before
    assert len(script.asked) == before + 1


@pytest.mark.parametrize("steps", [0, 1])
async def test_d12_a_cancelled_try_or_wait_ends_the_call_at_once(steps: int) -> None:
    clock = FakeClock()
    script = Script(RATE_LIMITED, "never", clock=clock, seconds=1)
    running = asyncio.create_task(STEADY.call(script, clock=clock))
    await clock.advance(steps)  # 0: in the first try, 1: waiting for the second
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert running.cancelled()
    assert len(script.asked) == 1


def test_d12_a_cancellation_is_no_timeout_and_explains_none() -> None:
    assert classify(asyncio.CancelledError()) == FailureKind("other", retryable=False)
    wrapped = RuntimeError("stopped")
    wrapped.__cause__ = asyncio.CancelledError()
    wrapped.__cause__.__cause__ = TimeoutError()
    assert classify(wrapped) == FailureKind("other", retryable=False)


# ---- classification ----


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        *((LLMError("", kind=kind), kind, kind in RETRYABLE) for kind in sorted(ERROR_KINDS)),
        (LLMError("", kind="server_error", status=501), "server_error", False),
        (LLMError("", status=503), "server_error", True),
        (LLMError("", kind="rate_limited", status=429, retryable=False), "rate_limited", False),
        (LLMError("", kind="client_error", status=400, retryable=True), "client_error", True),
        (StatusError(503, retryable="never"), "server_error", True),
        (TimeoutError(), "timeout", True),
        (ConnectionResetError(), "connection", True),
        (BrokenPipeError(), "connection", True),
        (socket.gaierror(), "connection", True),
        (ssl.SSLError(), "connection", True),
        (ssl.SSLCertVerificationError(), "connection", False),
        (OSError(errno.EHOSTUNREACH, "no route"), "connection", True),
        (OSError("All connection attempts failed"), "connection", True),
        (FileNotFoundError(), "other", False),
        (OSError(errno.ENOSPC, "disk full"), "other", False),
        (ValueError("timeout, please try again temporarily"), "other", False),
        (StatusError(http.HTTPStatus.TOO_MANY_REQUESTS), "rate_limited", True),
        *((StatusError(status), "timeout", True) for status in (408, 409)),
        *((StatusError(status), "rate_limited", True) for status in (425, 429)),
        *((StatusError(status), "server_error", True) for status in (500, 502, 503, 504, 529)),
        *((StatusError(status), "server_error", False) for status in (501, 505)),
        *((StatusError(status), "auth", False) for status in (401, 403)),
        *((StatusError(status), "client_error", False) for status in (400, 404, 422)),
        *((StatusError(status), "other", False) for status in (200, 0, 999, "503", None, True)),
        (StatusError(status=503), "server_error", True),
        (StatusError(response=StatusError(503)), "server_error", True),
        (StatusError(kind="content_filter"), "content_filter", False),
        (StatusError(429, kind="no kind of ours"), "rate_limited", True),
    ],
)  # fmt: skip
def test_errors_are_told_apart_by_type_kind_and_status(error: Exception, kind: str, retryable: bool) -> None:
    assert classify(error)[:2] == (kind, retryable)


def caused_by(error: BaseException, *causes: BaseException) -> BaseException:
    for here, cause in zip((error, *causes), causes, strict=False):
        here.__cause__ = cause
    return error


def test_d8_a_wrapped_connection_error_is_retryable_whatever_its_wrapper_says() -> None:
    """The original asked for a method that its errors did not have, and fell back on their text."""
    for cause in (ConnectionResetError(), ConnectionRefusedError(), socket.gaierror(), OSError("pool")):
        error = caused_by(RuntimeError("request failed"), RuntimeError("transport"), cause)
        assert classify(error) == FailureKind("connection", retryable=True)
    assert classify(caused_by(LLMError("no answer"), TimeoutError())) == FailureKind(
        "timeout", retryable=True
    )


def test_d8_unauthorised_is_not_retried_whatever_its_text_and_cause() -> None:
    error = caused_by(StatusError(401), ConnectionResetError())
    assert classify(error) == FailureKind("auth", retryable=False)


def test_an_error_that_is_its_own_cause_is_classified_too() -> None:
    error = ValueError()
    error.__cause__ = error
    assert classify(error) == FailureKind("other", retryable=False)


def test_every_kind_that_classify_gives_is_in_the_closed_taxonomy() -> None:
    statuses = [classify(StatusError(status)).kind for status in range(400, 600)]
    assert set(statuses) <= ERROR_KINDS


# ---- limits ----


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"attempts": 0}, "attempts is 0; possible: 1 (a single try) or more"),
        ({"base": -0.1}, "base is -0.1; possible: seconds, 0 or more"),
        ({"max_delay": float("inf")}, "max_delay is inf"),
        ({"deadline": -1}, "deadline is -1"),
        ({"jitter": float("nan")}, "jitter is nan"),
    ],
)
def test_an_impossible_limit_is_refused_with_a_sentence(limits: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RetryPolicy(**limits)
    assert sentence in str(refused.value)


# ---- the clock ----


async def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    fake = FakeClock(start=1_700)
    clock: Clock = fake
    assert (clock.time(), clock.monotonic()) == (1_700, 1_000)
    await fake.advance(2.5)
    assert (clock.time(), clock.monotonic()) == (1_702.5, 1_002.5)
    with pytest.raises(ValueError, match="time does not go back"):
        await fake.advance(-1)


async def test_advancing_stops_at_each_timer_until_what_it_woke_has_settled() -> None:
    clock = FakeClock(start=0)
    woken: list[tuple[str, float]] = []

    async def twice(name: str, seconds: float) -> None:
        for _ in range(2):
            await clock.sleep(seconds)
            woken.append((name, clock.time()))

    clock.call_later(1.5, lambda: woken.append(("timer", clock.time())))
    clock.call_later(1, lambda: woken.append(("cancelled", 0))).cancel()
    tasks = [asyncio.create_task(twice("one", 1)), asyncio.create_task(twice("three", 3))]
    await clock.advance(5)
    assert woken == [("one", 1), ("timer", 1.5), ("one", 2), ("three", 3)]
    await clock.advance(1)
    assert ("three", 6) in woken
    await asyncio.gather(*tasks)


async def test_an_automatic_clock_is_moved_by_sleeping_and_fires_what_falls_due() -> None:
    clock = FakeClock(start=0, auto=True)
    fired: list[float] = []
    clock.call_later(1, lambda: fired.append(clock.time()))
    await clock.sleep(3)
    await clock.sleep(0)
    assert (clock.time(), fired, clock.slept) == (3, [1], [3, 0])


async def test_a_cancelled_sleeper_leaves_no_timer_behind_for_ever() -> None:
    clock = FakeClock()
    for _ in range(100):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await clock.sleep(10)
    clock.call_later(1, lambda: None)
    assert len(clock._timers) == 1


# ---- policies by code ----


class Coded(Exception):
    """An error of our own, with a code and what that means for trying again."""

    def __init__(self, code: str, *, kind: str = "malformed", retryable: bool = True) -> None:
        super().__init__(code)
        self.code, self.kind, self.retryable = code, kind, retryable


TABLE = RetryTable(
    {
        "A": RetryPolicy(attempts=4, base=1, max_delay=30, jitter=0),
        "B": RetryPolicy(attempts=2, base=5, max_delay=5, jitter=0),
    }
)


async def tried(*steps: object) -> tuple[object, list[RetryAttempt]]:
    """What a table gives after these steps, and what it told."""
    told: list[RetryAttempt] = []
    try:
        answer = await TABLE.call(Script(*steps), on_attempt=told.append, clock=FakeClock(auto=True))
    except Coded as error:
        answer = error.code
    return answer, told


async def test_each_code_has_tries_and_delays_of_its_own() -> None:
    answer, told = await tried(*map(Coded, "AABA"), "answer")
    assert answer == "answer"
    assert [(one.outcome, one.delay) for one in told] == [
        ("retry", 1.0),
        ("retry", 2.0),
        ("retry", 5.0),
        ("retry", 4.0),
        ("ok", 0.0),
    ]


@pytest.mark.parametrize(
    ("codes", "outcomes"),
    [
        ("BB", ["retry", "exhausted"]),
        ("ABAB", ["retry", "retry", "retry", "exhausted"]),
        ("AAAA", ["retry", "retry", "retry", "exhausted"]),
        ("C", ["fatal"]),
        ("AC", ["retry", "fatal"]),
    ],
)
async def test_a_table_gives_up_by_the_code_that_is_used_up_or_unknown(
    codes: str, outcomes: list[str]
) -> None:
    answer, told = await tried(*map(Coded, codes), "never")
    assert answer == codes[-1]
    assert [one.outcome for one in told] == outcomes


async def test_an_error_that_says_it_is_final_is_not_tried_again_whatever_the_table_says() -> None:
    answer, told = await tried(Coded("A", retryable=False), "never")
    assert (answer, [one.outcome for one in told]) == ("A", ["fatal"])
