"""Protocols that a host may implement. They describe only the parts that the library calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.errors import ConfigError
from orchestrator.kernel.clock import Cancellable, Clock, SystemClock

if TYPE_CHECKING:
    from orchestrator.llm.message import Message, Request, Response


__all__ = [
    "LLM",
    "Cancellable",
    "Clock",
    "FailureEpisode",
    "Memory",
    "Price",
    "SystemClock",
    "check_params",
    "common_currency",
    "currency_of",
]


class LLM(Protocol):
    """A model. Raises `errors.LLMError`, or a type that `RetryPolicy` classifies, if it has no answer.

    Optional attributes:

    - `model` and `provider`: names.
    - `context_window`: tokens that the model reads at once.
    - `max_output_tokens`: the maximum of an answer if the request does not limit it.
    - `check_params(params)`: raises ConfigError for a parameter of requests that the model does not have.
    - `reads`: kinds of content parts that the model reads; without it, all.
    - `reports_cost`: True if the usage of every answer has its cost, so that no price is needed.
    - `currency`: the currency of the costs that it reports; without it, that of the price table.
    """

    async def complete(self, request: Request) -> Response:
        """Answer one request."""
        ...


@dataclass(frozen=True, slots=True)
class FailureEpisode:
    """The failure of a run in short form: text is cut at 2,048 characters, calls at four."""

    run_id: str
    reason: str
    error: str
    iteration: int
    calls: tuple[tuple[str, str], ...] = ()
    """The last calls, as (tool, arguments)."""


class Memory(Protocol):
    """Memory that outlives a run.

    Each method may raise. Only an error of `prepare` fails the run; the others degrade its outcome.
    """

    async def prepare(self, key: str, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages to put before the conversation, in order."""
        ...

    async def store(self, key: str, messages: Sequence[Message]) -> None:
        """Store the last exchange (user and assistant)."""
        ...

    async def store_failure(self, key: str, episode: FailureEpisode) -> None:
        """Store the failure of a run."""
        ...

    async def compact(self, key: str, summary: Message) -> None:
        """Store the summary that replaced older messages."""
        ...


Price = Callable[[str | None, Mapping[str, int]], float | None]
"""(model, tokens) -> cost, or None if the price is unknown.

`tokens` has `input_tokens`, `output_tokens`, and of the input `cached_input_tokens` and `cache_write_tokens`.
It is called with the model name of the answer and, if that name is unknown, with the configured one. It must not
raise. An attribute `currency` names its currency in metrics and records (`currency_of`).
"""

UNKNOWN_CURRENCY = "_unknown"
_CURRENCY = re.compile(r"[A-Za-z]{1,12}")


def currency_of(price: Price) -> str:
    """Return the name of the currency of a price function; `_unknown` for one without a valid `currency`.

    Example:
        >>> from orchestrator.providers.price import price_table
        >>> currency_of(price_table({"gpt-main": (2.0, 8.0)}, currency="EUR"))
        'EUR'
    """
    name = getattr(price, "currency", None)
    return name if isinstance(name, str) and _CURRENCY.fullmatch(name) else UNKNOWN_CURRENCY


def common_currency(prices: Iterable[Price | None], reporting: Iterable[object] = ()) -> str | None:
    """Return the currency of price functions, and of models and programs that report their cost (`currency`).

    It is None without any, and `_unknown` for price functions without a currency. Raises ConfigError for two
    currencies: costs in two currencies are never summed.

    Example:
        >>> from orchestrator.providers.price import price_table
        >>> common_currency([None, price_table({"gpt-main": (2.0, 8.0)}, currency="EUR")])
        'EUR'
    """
    found = {currency_of(price) for price in prices if price is not None}
    found |= {one.currency for one in reporting if getattr(one, "currency", None)}  # type: ignore[attr-defined]
    if len(found) > 1:
        named = ", ".join(
            sorted("one without a name" if name == UNKNOWN_CURRENCY else name for name in found)
        )
        raise ConfigError(
            f"the costs would be in several currencies ({named}), which are never summed: give every agent prices in "
            "one currency, price_table(..., currency=...), and a price function of your own the attribute `currency`"
        )
    return next(iter(found), None)


def check_params(llm: object, params: Mapping[str, Any]) -> None:
    """Raise ConfigError for a parameter of requests that a model does not have, if the model can check it."""
    check = getattr(llm, "check_params", None)
    if params and callable(check):
        check(params)


def model_name(llm: LLM) -> str:
    """Return the configured name of a model."""
    return str(getattr(llm, "model", None) or "unknown")
