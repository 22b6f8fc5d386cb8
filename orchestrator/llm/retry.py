"""Retry calls: one policy object, and a fresh tenacity controller for each call that fails.

This is the only module that imports tenacity. Every retry of the package uses it: calls of models and agents, and
workers, dispatchers, journals and web hooks that wait for a server. The type, `kind` and integer status of an error
decide whether it is retried, never its text; a caller with another rule passes `may_retry`. The deadline limits the
start of a try. A try in flight is limited by the dwell limit of its state: a timer for each call costs more (3 µs)
than the rest of this module. A polling loop is not a retry: it repeats after a success too.
"""

from __future__ import annotations

import errno
import math
import random
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar, TypeVarTuple

from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception, wait_exponential

from orchestrator.errors import ERROR_KINDS, ConfigError
from orchestrator.llm.port import Clock, SystemClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SYSTEM_CLOCK = SystemClock()

UNLIMITED: Final = sys.maxsize
"""`attempts` of a policy whose caller ends the tries in `may_retry`."""
_LAST_DOUBLING = 64
"""The delay doubles up to this failure: a float cannot hold a later power of two."""

TriedOutcome: TypeAlias = Literal["ok", "retry", "exhausted", "fatal"]
MayRetry: TypeAlias = Callable[[Exception], bool]


class FailureKind(NamedTuple):
    """The meaning of an error for a retry. `retry_after` is seconds that the server asked to wait, or None."""

    kind: str
    """One of errors.ERROR_KINDS."""
    retryable: bool
    retry_after: float | None = None


class RetryAttempt(NamedTuple):
    """One try. `seconds` is its duration, `delay` the seconds until the next one (with outcome `retry`).

    It is a tuple because one is made for each model call; a frozen dataclass costs four times as much.
    """

    number: int
    outcome: TriedOutcome
    kind: str | None = None
    delay: float = 0.0
    seconds: float = 0.0
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long a call is tried. All times are seconds; 0 disables a limit. Raises ConfigError.

    The n-th delay is `base * 2**(n-1) ± jitter`, at most `max_delay`. A Retry-After replaces it and is not capped, but
    ends the tries if it exceeds the deadline.

    Example:
        >>> RetryPolicy(attempts=6, deadline=60).attempts
        6
    """

    attempts: int = 4
    """Maximum number of tries."""
    base: float = 0.1
    max_delay: float = 10.0
    """Maximum of each single delay."""
    deadline: float = 300.0
    """No try starts later than this after the start of the first one."""
    jitter: float = 0.05

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"attempts is {self.attempts}; possible: 1 (a single try) or more")
        for name in ("base", "max_delay", "deadline", "jitter"):
            seconds: float = getattr(self, name)
            if not (math.isfinite(seconds) and seconds >= 0):
                raise ConfigError(f"{name} is {seconds}; possible: seconds, 0 or more")

    def call(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        may_retry: MayRetry | None = None,
        on_attempt: Callable[[RetryAttempt], None] | None = None,
        clock: Clock = _SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> Coroutine[Any, Any, T]:
        """Return the first answer of `fn(*args)`. If all tries fail, raise the last error with a note about the tries.

        `may_retry` is called once after each failed try, before `on_attempt`; by default `classify` decides.
        `on_attempt` is called after each try except a cancelled one: a cancellation is never retried.
        """
        return _called(self, partial(fn, *args), on_attempt, clock, rng, may_retry)

    def call_sync(
        self,
        fn: Callable[[*Ts], T],
        *args: *Ts,
        may_retry: MayRetry | None = None,
        on_attempt: Callable[[RetryAttempt], None] | None = None,
        clock: Clock = _SYSTEM_CLOCK,
        sleep: Callable[[float], object] = time.sleep,
        rng: random.Random | None = None,
    ) -> T:
        """Return the first answer of `fn(*args)`, as `call` does, for code that runs in a thread.

        `sleep` waits seconds between two tries; an error that it raises ends them. `clock` measures the deadline.
        """
        started = clock.monotonic()
        try:
            answer = fn(*args)
        except Exception as error:  # noqa: BLE001  judged by _Tries
            failed = error
        else:
            if on_attempt is not None:
                on_attempt(RetryAttempt(1, "ok", seconds=clock.monotonic() - started))
            return answer
        tries = _Tries[T](self, on_attempt, clock, rng, started, failed, may_retry)
        del failed  # else frame and traceback would form a reference cycle
        return tries.run_sync(lambda: fn(*args), sleep)


@dataclass(frozen=True, slots=True)
class RetryTable:
    """Policies by the `code` of an error: each code has its own tries and delays; other errors are not retried.

    An error with a code of the table is retried as often as its policy allows, independent of other failures between.
    `retryable=False` on the error itself overrides the table.
    """

    policies: Mapping[str, RetryPolicy]

    def call(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        on_attempt: Callable[[RetryAttempt], None] | None = None,
        clock: Clock = _SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> Coroutine[Any, Any, T]:
        """Return the first answer of `fn(*args)`, as `RetryPolicy.call` does."""
        once = RetryPolicy(attempts=1)
        return _called(once, partial(fn, *args), on_attempt, clock, rng, None, self.policies)


async def _called(  # noqa: PLR0917 - the arguments of both kinds of policy
    policy: RetryPolicy,
    fn: Callable[[], Awaitable[T]],
    on_attempt: Callable[[RetryAttempt], None] | None,
    clock: Clock,
    rng: random.Random | None,
    may_retry: MayRetry | None,
    table: Mapping[str, RetryPolicy] | None = None,
) -> T:
    started = clock.monotonic()
    try:
        answer = await fn()
    except Exception as error:  # noqa: BLE001  judged by _Tries
        failed = error
    else:
        if on_attempt is not None:
            on_attempt(RetryAttempt(1, "ok", seconds=clock.monotonic() - started))
        return answer
    tries = _Tries[T](policy, on_attempt, clock, rng, started, failed, may_retry, table)
    del failed  # else frame and traceback would form a reference cycle
    return await tries.run(fn)


@dataclass(slots=True, eq=False, repr=False)
class _Tries(Generic[T]):
    """The tries of one call after its first failure.

    tenacity calls `_judge`, `_delay`, `_is_over`, `_before_sleep` in this order after each failed try. The method
    that ends or continues the tries also reports the failed one.
    """

    policy: RetryPolicy
    on_attempt: Callable[[RetryAttempt], None] | None
    clock: Clock
    rng: random.Random | None
    started: float
    """Monotonic seconds at the start of the first try."""
    first: Exception | None
    """The error of the first try, until tenacity has received it."""
    may_retry: MayRetry | None = None
    """The caller's own rule, which replaces `classify`."""
    table: Mapping[str, RetryPolicy] | None = None
    """Policies by the code of the error, or None; with a table, `policy` is that of the last error."""
    failed: Counter[str] = field(default_factory=Counter, init=False)
    """Code -> tries that failed with it; a single entry without a table."""
    code: str = field(default="", init=False)
    number: int = field(default=1, init=False)
    """Number of the running try, or of the last one."""
    took: float = field(init=False)
    """Seconds of that try."""
    failure: FailureKind = field(default=FailureKind("other", retryable=False), init=False)
    """The classified error of that try."""

    def __post_init__(self) -> None:
        self.took = self.clock.monotonic() - self.started

    async def run(self, fn: Callable[[], Awaitable[T]]) -> T:
        """Continue with tenacity after the failed first try."""

        async def attempt() -> T:
            began = self._begin()
            try:
                return await fn()
            finally:
                self.took = self.clock.monotonic() - began

        answer: T = await AsyncRetrying(sleep=self.clock.sleep, **self._rules())(attempt)
        # Outside the loop: inside, tenacity would take an error of the listener for a failed try.
        self._report("ok")
        return answer

    def run_sync(self, fn: Callable[[], T], sleep: Callable[[float], object]) -> T:
        """Do the same as `run` without an event loop."""

        def attempt() -> T:
            began = self._begin()
            try:
                return fn()
            finally:
                self.took = self.clock.monotonic() - began

        answer: T = Retrying(sleep=sleep, **self._rules())(attempt)  # type: ignore[arg-type]
        self._report("ok")
        return answer

    def _rules(self) -> dict[str, Any]:
        return {
            "retry": retry_if_exception(self._judge),
            "wait": self._delay,
            "stop": self._is_over,
            "before_sleep": self._before_sleep,
            "reraise": True,
        }

    def _begin(self) -> float:
        """Return the start time of a try. Raises the error of the first try, which tenacity has not seen."""
        if self.first is not None:
            first, self.first = self.first, None
            raise first
        self.number += 1
        return self.clock.monotonic()

    def _judge(self, error: BaseException) -> bool:
        if not isinstance(error, Exception):
            return False  # a cancellation is not a failed try
        self.failure = classify(error)
        if self.table is not None:
            self.code = str(getattr(error, "code", ""))
            self.policy = self.table.get(self.code, self.policy)
        self.failed[self.code] += 1
        retryable = self.failure.retryable if self.may_retry is None else self.may_retry(error)
        retryable = retryable and (self.table is None or self.code in self.table)
        if not retryable:
            self._end("fatal", error)
        return retryable

    def _delay(self, state: RetryCallState) -> float:
        if self.failure.retry_after is not None:
            return self.failure.retry_after
        policy = self.policy
        most = policy.max_delay or math.inf
        uniform = random.uniform if self.rng is None else self.rng.uniform
        state = copy(state)
        state.attempt_number = min(self.failed[self.code], _LAST_DOUBLING)
        delay = wait_exponential(policy.base, most)(state) + uniform(-policy.jitter, policy.jitter)
        return min(max(0.0, delay), most)

    def _is_over(self, state: RetryCallState) -> bool:
        # The same rule as tenacity's stop_before_delay, with this clock.
        late = self.clock.monotonic() - self.started + state.upcoming_sleep >= (
            self.policy.deadline or math.inf
        )
        over = late or self.failed[self.code] >= self.policy.attempts
        if over:
            self._end("exhausted", _error(state))
        return over

    def _before_sleep(self, state: RetryCallState) -> None:
        self._report("retry", _error(state), state.upcoming_sleep)

    def _end(self, outcome: TriedOutcome, error: Exception | None) -> None:
        if error is not None and (self.number > 1 or outcome == "exhausted"):
            times = "once" if self.number == 1 else f"{self.number} times"
            elapsed = self.clock.monotonic() - self.started
            error.add_note(f"tried {times} in {elapsed:.1f} s; the last failure was {self.failure.kind}")
        self._report(outcome, error)

    def _report(self, outcome: TriedOutcome, error: Exception | None = None, delay: float = 0.0) -> None:
        if self.on_attempt is not None:
            kind = None if error is None else self.failure.kind
            self.on_attempt(RetryAttempt(self.number, outcome, kind, delay, self.took, error))


def _error(state: RetryCallState) -> Exception | None:
    error = None if state.outcome is None else state.outcome.exception()
    return error if isinstance(error, Exception) else None


# ---- classification of errors ----

_RETRYABLE = frozenset(("rate_limited", "timeout", "server_error", "connection", "malformed"))
"""Kinds that are retried if the error itself does not decide."""
_KIND_OF_STATUS = {
    401: "auth",
    403: "auth",
    408: "timeout",
    409: "timeout",  # vendors return this if a lock was not free in time
    425: "rate_limited",
    429: "rate_limited",
}
_FIRST_ERROR, _FIRST_SERVER_ERROR, _LAST_ERROR = 400, 500, 599
_DEEPEST_CAUSE = 10
_NEVER_AGAIN = frozenset((501, 505))
"""Server errors that every repetition of the request would get again."""
_BEFORE_REQUEST = frozenset(
    (
        *("ConnectTimeout", "PoolTimeout", "ConnectError"),  # httpx
        *("ConnectTimeoutError", "EndpointConnectionError", "NewConnectionError"),  # urllib3 and botocore
        *("ConnectionRefusedError", "gaierror", "SSLCertVerificationError"),
    )
)
"""Names of the exceptions of HTTP libraries, and of Python, that come before a request is sent."""
_NETWORK = frozenset((None, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EPIPE))
"""Numbers of a plain OSError that mean the network; connection pools raise None."""


def classify(error: BaseException) -> FailureKind:
    """Classify an error by its types, `kind` and status; if it has none, by those of its causes."""
    for known in _causes(error):
        if (failure := _by_kind(known) or _by_type(known)) is not None:
            return failure
    return FailureKind("other", retryable=False)


def was_sent(error: BaseException | None) -> bool:
    """Return False if a failed request never reached the server: by `sent`, its types, and those of its causes."""
    return all(
        getattr(one, "sent", True) and type(one).__name__ not in _BEFORE_REQUEST for one in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[Exception]:
    """Yield the error and its explicit causes; stop at a cancellation, which explains nothing."""
    for _ in range(_DEEPEST_CAUSE):
        if not isinstance(error, Exception):
            return
        yield error
        error = error.__cause__


def _by_kind(error: Exception) -> FailureKind | None:
    kind, status = getattr(error, "kind", None), _status(error)
    if not isinstance(kind, str) or kind not in ERROR_KINDS or kind == "other":
        if status is None:
            return None
        kind = _KIND_OF_STATUS.get(
            status, "server_error" if status >= _FIRST_SERVER_ERROR else "client_error"
        )
    told = getattr(error, "retryable", None)  # set by the provider, which overrides kind and status
    retryable = told if isinstance(told, bool) else kind in _RETRYABLE and status not in _NEVER_AGAIN
    return FailureKind(kind, retryable, _retry_after(error))


def _by_type(error: Exception) -> FailureKind | None:
    match error:
        case TimeoutError():
            return FailureKind("timeout", retryable=True)
        case ssl.SSLCertVerificationError():
            return FailureKind("connection", retryable=False)  # the next handshake shows the same certificate
        case ConnectionError() | socket.gaierror() | ssl.SSLError():
            return FailureKind("connection", retryable=True)
        case OSError() if type(error) is OSError and error.errno in _NETWORK:
            return FailureKind("connection", retryable=True)
        case _:
            return None


def _status(error: Exception) -> int | None:
    """Return the HTTP status of an error, or of the response that it carries, if it is an integer."""
    for source in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            status = getattr(source, name, None)
            if isinstance(status, int) and _FIRST_ERROR <= status <= _LAST_ERROR:
                return status
    return None


def _retry_after(error: Exception) -> float | None:
    seconds = getattr(error, "retry_after", None)
    usable = isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0
    return float(seconds) if usable and seconds is not None else None
