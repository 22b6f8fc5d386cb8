"""Rate limits of a model: concurrent requests, requests and tokens in a minute, and the length of the queue.

    gpt = RateLimitedModel(gpt, RateLimit(concurrency=8, requests_per_minute=500, tokens_per_minute=200_000))
    one, two = Agent(gpt, …), Agent(gpt, …)          # share it

The limiter wraps any model and applies to each try: a retry waits for its turn again. Models that share a limiter
share the limits: pass the same `RateLimitedModel` to several agents, or one `RateLimiter` to several models of an
account. It limits one process; processes do not share limits.

- *A minute* is any 60 seconds, neither a minute of a clock nor a refilling bucket: whatever a provider counts, it
  never sees more than the limit. The price: after a burst that uses up a minute, the next request waits for a whole
  minute.
- *First come, first served.* Small requests do not overtake a request that needs many tokens.
- *Tokens* are reserved by an upper estimate (two bytes per token, and the longest possible answer) and corrected by
  the usage in the answer. A request above the limit is sent alone, so that an estimate refuses nothing.
- A `retry_after` of the provider delays all requests, not only the one that received it.
- *Waiting* needs no task: each waiting request has a future and a timer of its own event loop, so agents in other
  threads may share the limiter, and a cancelled request frees its place. The wait counts for the dwell limit of the
  state and the deadlines of run and retry policy. `LLMCall.queued` has its duration.
- A full queue, or a wait beyond `max_wait`, is an LLMError `rate_limited`, with the delay if it is known: retry and
  fallback policies handle it like the same error of a provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import deque
from dataclasses import dataclass, fields
from typing import Any

from orchestrator.errors import ConfigError, LLMError
from orchestrator.llm.message import NO_USAGE, Request, Response, Usage, input_bound, output_bound
from orchestrator.llm.port import LLM, Clock, SystemClock
from orchestrator.llm.retry import classify

MINUTE = 60.0
_ROUNDING = 1e-6
"""Seconds: a timer that is set for a difference of two times may fire this much early."""
_TURNED_AWAY = frozenset(("rate_limited", "auth", "client_error", "context_length"))
"""Kinds of errors of requests that the provider did not process: their tokens are free again."""
_HOLDING = frozenset(("rate_limited", "server_error"))
"""Kinds of errors whose `retry_after` applies to all requests."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Limits of one account or model; 0 disables each. Raises ConfigError.

    Example:
        >>> RateLimit(concurrency=8, requests_per_minute=500).queue
        1000
    """

    concurrency: int = 0
    """Maximum concurrent requests."""
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    """Input and output together."""
    queue: int = 1000
    """Maximum waiting requests."""
    max_wait: float = 300.0
    """Maximum seconds that a request waits."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            whole = item.name != "max_wait"
            good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not (good and math.isfinite(value) and value >= 0):
                kind = "a whole number" if whole else "seconds"
                raise ConfigError(f"{item.name} is {value!r}; possible: {kind}, 0 (no limit) or more")


@dataclass(slots=True, eq=False)
class AdmittedRequest:
    """An admitted request. `tokens` are reserved until `RateLimiter.leave` corrects them."""

    at: float
    tokens: int
    counted: bool = True
    """Whether it started within the last minute."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """A waiting request."""

    loop: asyncio.AbstractEventLoop
    tokens: int
    since: float
    bell: asyncio.Future[None] | None = None

    def ring(self) -> bool:
        """Wake it for another check; return False if its event loop is gone."""
        try:
            if self.loop is _running():
                _set(self.bell)
            else:
                self.loop.call_soon_threadsafe(_set, self.bell)
        except RuntimeError:
            return False
        return True


class RateLimiter:
    """Enforces one RateLimit for all models that use it. Thread-safe; `clock` is for tests.

    Example:
        limiter = RateLimiter(RateLimit(tokens_per_minute=200_000))
        small, large = RateLimitedModel(mini, limiter), RateLimitedModel(main, limiter)
    """

    def __init__(self, limit: RateLimit, *, clock: Clock | None = None) -> None:
        self.limit = limit
        self.clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self._active = 0
        self._minute: deque[AdmittedRequest] = deque()
        """Requests that started within the last minute, oldest first."""
        self._tokens = 0
        """Tokens of those requests."""
        self._paused_until = -math.inf

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @property
    def active(self) -> int:
        """Number of active requests."""
        return self._active

    async def enter(self, tokens: int = 0) -> AdmittedRequest:
        """Wait until a request of at most `tokens` tokens may be sent; `leave` must follow.

        Raises LLMError of kind `rate_limited` if the queue is full or the wait would be too long.
        """
        with self._lock:
            now = self.clock.monotonic()
            wait = self._wait(now, tokens)
            if not self._waiting and not wait:
                return self._admit(now, tokens)
            limit = self.limit
            if limit.queue and len(self._waiting) >= limit.queue:
                raise LLMError(
                    f"the rate limiter refused a request: {limit.queue} wait already (queue={limit.queue}); send fewer "
                    "requests at once, or raise the limits",
                    kind="rate_limited",
                    retry_after=self._known(wait),
                )
            waiter = _Waiter(asyncio.get_running_loop(), tokens, now)
            self._waiting.append(waiter)
        try:
            while True:
                with self._lock:
                    now = self.clock.monotonic()
                    first = self._waiting[0] is waiter
                    wait = self._wait(now, waiter.tokens) if first else math.inf
                    if not wait:
                        self._waiting.popleft()
                        self._ring_first()
                        return self._admit(now, waiter.tokens)
                    left = self._patience(waiter, now)
                    if left <= 0 or (first and left < wait < math.inf):
                        self._give_up(wait)
                    waiter.bell = waiter.loop.create_future()
                seconds = min(wait, left)
                timer = (
                    None if seconds == math.inf else self.clock.call_later(seconds, lambda: _set(waiter.bell))
                )
                try:
                    await waiter.bell
                finally:
                    if timer is not None:
                        timer.cancel()
        except BaseException:
            with self._lock:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                self._ring_first()
            raise

    def leave(self, entry: AdmittedRequest, tokens: int | None = None, *, pause: float = 0.0) -> None:
        """End a request.

        `tokens` is its real usage, None if unknown; `pause` delays all requests for that many seconds.
        """
        with self._lock:
            self._active -= 1
            if tokens is not None and entry.counted:
                self._tokens += tokens - entry.tokens
                entry.tokens = tokens
            if pause:
                self._paused_until = max(self._paused_until, self.clock.monotonic() + pause)
            self._ring_first()

    # ---- internals, with the lock held ----

    def _patience(self, waiter: _Waiter, now: float) -> float:
        if not self.limit.max_wait:
            return math.inf
        left = waiter.since + self.limit.max_wait - now
        return left if left > _ROUNDING else 0.0

    def _admit(self, now: float, tokens: int) -> AdmittedRequest:
        entry = AdmittedRequest(now, tokens)
        self._active += 1
        self._tokens += tokens
        self._minute.append(entry)
        return entry

    def _wait(self, now: float, tokens: int) -> float:
        """Return the seconds until such a request fits: 0 for now, infinity if unknown."""
        # Drop requests that started more than a minute ago.
        while self._minute and self._minute[0].at + MINUTE - now <= _ROUNDING:
            entry = self._minute.popleft()
            entry.counted = False
            self._tokens -= entry.tokens
        limit, waits = self.limit, [self._paused_until - now]
        if limit.concurrency and self._active >= limit.concurrency:
            return math.inf
        if limit.requests_per_minute and len(self._minute) >= limit.requests_per_minute:
            oldest = self._minute[len(self._minute) - limit.requests_per_minute]
            waits.append(oldest.at + MINUTE - now)
        if limit.tokens_per_minute:
            used, room = self._tokens, max(0, self.limit.tokens_per_minute - tokens)
            until = -math.inf
            for entry in self._minute:
                if used <= room:
                    break
                used -= entry.tokens
                until = entry.at + MINUTE
            waits.append(until - now)
        longest = max(waits)
        return longest if longest > _ROUNDING else 0.0

    def _give_up(self, wait: float) -> None:
        delay = self._known(wait)
        when = "" if delay is None else f", and it would wait {delay:.1f} s more"
        raise LLMError(
            f"a request waited for the rate limiter for the maximum time (max_wait={self.limit.max_wait:g} s){when}",
            kind="rate_limited",
            retry_after=delay,
        )

    @staticmethod
    def _known(wait: float) -> float | None:
        return wait if 0 < wait < math.inf else None

    def _ring_first(self) -> None:
        """Wake the first request in the queue; drop one whose event loop is gone."""
        while self._waiting and not self._waiting[0].ring():
            self._waiting.popleft()


class RateLimitedModel:
    """A model behind a rate limiter.

    All other attributes (`model`, `provider`, `context_window`, …) are the model's own.

    Args:
        llm: The model.
        limit: Its own RateLimit, or a RateLimiter that others share.
        clock: Clock of the waits, for tests.

    Raises:
        ConfigError: `limit` or `llm` has another type.

    Example:
        llm = RateLimitedModel(gpt, RateLimit(concurrency=8, requests_per_minute=500))
    """

    def __init__(self, llm: LLM, limit: RateLimit | RateLimiter, *, clock: Clock | None = None) -> None:
        if not isinstance(limit, RateLimit | RateLimiter):
            raise ConfigError(f"limit is {limit!r}; give RateLimit(…), or a RateLimiter to share")
        if not callable(getattr(llm, "complete", None)):
            raise ConfigError(f"llm must have `async complete(request)`; {type(llm).__name__} has not")
        self.llm = llm
        self.limiter = RateLimiter(limit, clock=clock) if isinstance(limit, RateLimit) else limit

    def __getattr__(self, name: str) -> Any:
        if name == "llm":  # of a copy that is not initialised yet
            raise AttributeError(name)
        return getattr(self.llm, name)

    async def complete(self, request: Request) -> Response:
        """Ask the model at this request's turn. Raises the model's errors, and those of `RateLimiter.enter`."""
        limiter = self.limiter
        route = request.route
        tokens = (
            (input_bound(request.messages, request.tools) + output_bound(request.params))
            if limiter.limit.tokens_per_minute
            else 0
        )
        began = limiter.clock.monotonic()
        if route is not None:
            route.waiting = True
        try:
            entering = limiter.enter(tokens)
            entry = await (
                entering if route is None or route.limit is None else route.limit.outside(entering)
            )
        finally:
            if route is not None:
                route.queued = (route.queued or 0.0) + limiter.clock.monotonic() - began
        if route is not None:
            route.waiting = False
        used: int | None = None
        pause = 0.0
        try:
            response = await self.llm.complete(request)
            used = _total(response)
        except Exception as error:
            failure = classify(error)
            used = 0 if failure.kind in _TURNED_AWAY else None
            pause = failure.retry_after or 0.0 if failure.kind in _HOLDING else 0.0
            raise
        finally:
            limiter.leave(entry, used, pause=pause)
        return response


def _total(response: object) -> int | None:
    """Return the tokens that an answer reports; None if it reports none."""
    usage = getattr(response, "usage", NO_USAGE)
    if not isinstance(usage, Usage) or not (usage.input_tokens or usage.output_tokens):
        return None
    return usage.input_tokens + usage.output_tokens


def _running() -> asyncio.AbstractEventLoop | None:
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


def _set(bell: asyncio.Future[None] | None) -> None:
    if bell is not None and not bell.done():
        bell.set_result(None)
