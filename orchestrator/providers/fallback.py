"""Use the first working model of a list.

    llm = Fallback([RateLimitedModel(gpt, RateLimit(…)), claude], on=("rate_limited", "server_error"), cooldown=30)

- *One try, one model.* If a model fails in a way that `on` lists, it is skipped for a while. Its error is raised as
  one that can be retried at once: the RetryPolicy asks again, and then the next model answers. So the policy bounds
  the tries, each is a fact with the name of its model, and `max_retries` counts them. A policy with one try never
  falls back. Any other error, and an error after which no model is left, is raised unchanged.
- *A working model stays in use* for `cooldown` seconds, or as long as the failing model's provider asked for, so that
  not every request pays for the failure again. Then the first model is asked again. If all of them are cooling down,
  the one that is ready first is asked.
- `context_length` in `on` differs, because the fault is the request's and not the model's. The model, and those whose
  `context_window` is not larger, are skipped for requests of that size and above; nothing cools down.
- *Names.* `model` and `provider` are those of the first model: the name of the agent's model in journal and prices.
  Metrics and log lines have the configured name of the requested model (`models`, all declared in advance, so the
  label stays a closed set); the provider's name for it is `Response.model`. Two entries with one name share their
  series.
- Several agents may share one Fallback: then they share its knowledge of failures.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.errors import ERROR_KINDS, ConfigError, LLMError
from orchestrator.llm.message import KINDS, Request, Response, input_bound
from orchestrator.llm.port import LLM, Clock, SystemClock, check_params, common_currency
from orchestrator.llm.retry import FailureKind, classify, was_sent

FALLBACK_KINDS = ("rate_limited", "server_error", "timeout", "connection")
"""Kinds of failures after which the next model is asked, by default."""
_POSSIBLE = ERROR_KINDS - {"other"}
"""An error of an unknown kind is a fault of the program, which another model would only hide."""


@dataclass(slots=True, eq=False)
class _Choice:
    """One of the models."""

    llm: LLM
    name: str
    provider: str
    window: int
    """Tokens; 0 if it is unknown."""
    ready_at: float = -math.inf
    """Monotonic seconds: the end of its cooldown."""
    too_long: int | None = None
    """Estimated tokens of the smallest request that did not fit into it."""

    def takes(self, size: int) -> bool:
        return self.too_long is None or size < self.too_long


class Fallback:
    """A model that asks the first working one of several models.

    Args:
        models: The models, in order of preference.
        on: Kinds of LLMError after which the next model is asked.
        cooldown: Seconds for which a failed model is skipped.
        clock: Clock of the cooldown, for tests.

    Raises:
        ConfigError: The list is empty, a kind is unknown, or the cooldown is negative.

    Example:
        llm = Fallback([gpt, claude], on=("rate_limited", "server_error"), cooldown=30)
    """

    def __init__(
        self,
        models: Iterable[LLM],
        *,
        on: Sequence[str] = FALLBACK_KINDS,
        cooldown: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        choices = [_choice(llm) for llm in models]
        if not choices:
            raise ConfigError("a Fallback needs models to choose from: give a list")
        on = (on,) if isinstance(on, str) else tuple(on)
        if strange := [kind for kind in on if kind not in _POSSIBLE]:
            raise ConfigError(f"on has {strange[0]!r}; possible: {', '.join(sorted(_POSSIBLE))}")
        if not cooldown >= 0:
            raise ConfigError(f"cooldown is {cooldown!r}; possible: seconds, 0 or more")
        self.model = choices[0].name
        self.provider = choices[0].provider
        self.models = {choice.name: choice.provider for choice in reversed(choices)}
        """Configured name -> provider, for every model of the list."""
        # The tokens that can be read at once, 0 if that is unknown. It is the smallest window, because any model may
        # be asked; with `context_length` it is the largest.
        windows = [choice.window for choice in choices]
        known = [window for window in windows if window]
        if "context_length" in on:
            self.context_window = max(windows) if len(known) == len(windows) else 0
        else:
            self.context_window = min(known, default=0)
        # The maximum tokens of an answer of any of them, 0 if that is unknown.
        llms = [choice.llm for choice in choices]
        each = [int(getattr(llm, "max_output_tokens", 0) or 0) for llm in llms]
        self.max_output_tokens = max(each) if all(each) else 0
        self.reports_cost = all(getattr(choice.llm, "reports_cost", False) for choice in choices)
        self.currency = common_currency((), llms) or ""
        self.reads = tuple(
            kind for kind in KINDS if all(kind in getattr(choice.llm, "reads", KINDS) for choice in choices)
        )
        self.double = all(getattr(choice.llm, "double", False) is True for choice in choices)
        """Whether all of them are doubles, not real models."""
        self._choices = choices
        self._on = frozenset(on)
        self._cooldown = cooldown
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()

    def check_params(self, params: Mapping[str, Any]) -> None:
        """Raise ConfigError for a parameter that one of the models does not have."""
        for choice in self._choices:
            check_params(choice.llm, params)

    async def complete(self, request: Request) -> Response:
        """Ask one model. Raises LLMError, `retryable` if another model takes the next try, or the model's own error."""
        # The first ready model that accepts a request of this size, else the one that is ready first.
        with self._lock:
            size = self._size(request)
            possible = [choice for choice in self._choices if choice.takes(size)] or self._choices
            now = self._clock.monotonic()
            ready = next((choice for choice in possible if choice.ready_at <= now), None)
            choice = ready or min(possible, key=lambda choice: choice.ready_at)
        if request.route is not None:
            request.route.model = choice.name
            request.route.server = request.route.response_id = None
        try:
            response = await choice.llm.complete(request)
        except Exception as error:
            failure = classify(error)
            other = self._other(choice, failure, request)
            if other is None:
                raise
            raise _worth_another_try(error, failure, choice, other) from error
        unnamed = isinstance(response, Response) and response.model is None  # type: ignore[redundant-expr]
        return replace(response, model=choice.name) if unnamed else response

    async def aclose(self) -> None:
        """Close every model that can be closed."""
        for choice in self._choices:
            if (close := getattr(choice.llm, "aclose", None)) is not None:
                await close()

    def _size(self, request: Request) -> int:
        """Return the estimated tokens of a request.

        It is 0 until a request was too long, because the estimate reads the whole request.
        """
        if all(choice.too_long is None for choice in self._choices):
            return 0
        return input_bound(request.messages, request.tools)

    def _other(self, failed: _Choice, failure: FailureKind, request: Request) -> _Choice | None:
        """Record the failure of a model; return the next model to ask, or None if there is none."""
        if failure.kind not in self._on:
            return None
        with self._lock:
            now = self._clock.monotonic()
            if failure.kind == "context_length":
                size = input_bound(request.messages, request.tools)
                for choice in self._choices:
                    is_larger = not choice.window or not failed.window or choice.window > failed.window
                    if choice is failed or not is_larger:
                        choice.too_long = min(size, choice.too_long or size)
            else:
                failed.ready_at = now + (failure.retry_after or self._cooldown)
            size = self._size(request)
            able = (one for one in self._choices if one is not failed and one.ready_at <= now)
            return next((one for one in able if one.takes(size)), None)


def _choice(llm: Any) -> _Choice:
    if not callable(getattr(llm, "complete", None)):
        raise ConfigError(f"each model must have `async complete(request)`; {type(llm).__name__} has not")
    name, provider = getattr(llm, "model", None), getattr(llm, "provider", None)
    window = int(getattr(llm, "context_window", 0) or 0)
    return _Choice(llm, str(name or "unknown"), str(provider or "_unknown"), window)


def _worth_another_try(error: Exception, failure: FailureKind, failed: _Choice, other: _Choice) -> LLMError:
    return LLMError(
        f"{failed.name} failed ({error}); {other.name} is asked next",
        kind=failure.kind,
        status=getattr(error, "status", None),
        retry_after=0.0,
        partial=getattr(error, "partial", ""),
        retryable=True,
        sent=was_sent(error),
        request_id=getattr(error, "request_id", ""),
        usage=getattr(error, "usage", None),
    )
