"""Prices of tokens: the host's own table, or that of the package genai-prices. Each is a `llm.port.Price`.

A model without a price costs None and never 0: its tokens are counted, its cost is unknown. The log of the run
reports that once for each model (`cost.unknown`), with the `max_cost` that cannot be enforced for it. A cost that the
provider reports in `Usage.cost` overrides every table.

genai-prices can fetch new prices from the network. This library never starts that: the prices are those of the
installed package, and a newer package has newer ones. If a host runs its `UpdatePrices`, those prices apply.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.llm.port import UNKNOWN_CURRENCY, Price, currency_of

_MILLION = 1_000_000
_DATED = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
_PROVIDER = re.compile(r"[:/]")
_LEAST_PRICES, _MOST_PRICES = 2, 4


def price_table(per_million: Mapping[str, Sequence[float]], *, currency: str = "USD") -> Price:
    """Return the price function of the host's own table, in the currency of the table.

    A name also matches its versions with a date of the provider (`gpt-main` for `gpt-main-2026-05-01`), and no other
    name with the same prefix.

    Args:
        per_million: Model -> price of a million tokens of input, of output and, if they differ, of cached input and of
            input that is written into the cache.
        currency: Name of the currency. Metrics and the record of each run have it: costs in two currencies are never
            summed.

    Raises:
        ConfigError: A price or the currency is invalid.

    Example:
        >>> price = price_table({"gpt-main": (2.0, 8.0, 0.5)})
        >>> price("gpt-main", {"input_tokens": 1_000_000, "output_tokens": 1_000, "cached_input_tokens": 500_000})
        1.258
        >>> price("gpt-main-mini", {"input_tokens": 1_000, "output_tokens": 1}) is None
        True
    """
    table = {name: _row(name, prices) for name, prices in per_million.items()}

    def price(model: str | None, tokens: Mapping[str, int]) -> float | None:
        name = model or ""
        row = table.get(name) or table.get(_DATED.sub("", name))
        if row is None:
            return None
        counts = _counts(tokens)
        return sum(count * cost for count, cost in zip(counts, row, strict=True)) / _MILLION

    return _named(price, currency)


def genai_prices(provider: str | None = None) -> Price:
    """Return the prices, in US dollars, of the models that the package genai-prices knows; it is loaded now.

    Args:
        provider: Its id in the package (`openai`, `azure`, …), for a model that several providers sell. Without it
            the name alone decides, or its prefix before a colon or a slash.

    Raises:
        MissingExtra: The extra `prices` is not installed.

    Example:
        agent = Agent(llm, price=genai_prices(), limits=Limits(max_cost=0.50))
    """
    try:
        import genai_prices as package
    except ImportError:
        raise MissingExtra("genai-prices", "prices", "providers") from None
    _calculated(package, "", None, {})  # its data take a while to load, so not in a run

    def price(model: str | None, tokens: Mapping[str, int]) -> float | None:
        model = model or ""
        found = [(model, provider)]
        if provider is None and (mark := _PROVIDER.search(model)):
            found.append((model[mark.end() :], model[: mark.start()]))
        for name, seller in found:
            cost = _calculated(package, name, seller, tokens)
            if cost is not None:
                return cost
        return None

    return _named(price, "USD")


def _named(price: Price, currency: str) -> Price:
    vars(price)["currency"] = currency
    if currency_of(price) == UNKNOWN_CURRENCY:
        raise ConfigError(f"currency is {currency!r}; give a name of 1 to 12 letters, such as USD")
    return price


def _row(name: object, prices: object) -> tuple[float, float, float, float]:
    """Return the prices of uncached input, output, cached input, and input that is written into the cache."""
    shown = (
        f"price of {name!r} is {prices!r}; give (input, output), (input, output, cached input) or (input, output, "
        "cached input, cache writes) of a million"
    )
    if not isinstance(name, str) or isinstance(prices, str) or not isinstance(prices, Sequence):
        raise ConfigError(shown)
    numbers = [float(one) for one in prices if isinstance(one, int | float) and not isinstance(one, bool)]
    good = all(math.isfinite(one) and one >= 0 for one in numbers)
    if not (good and len(numbers) == len(prices) and _LEAST_PRICES <= len(numbers) <= _MOST_PRICES):
        raise ConfigError(shown)
    given = dict(enumerate(numbers))
    return given[0], given[1], given.get(2, given[0]), given.get(3, given[0])


def _counts(tokens: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Return uncached input, output, cached input and cache writes. The cached parts are limited to the input."""
    read, said = tokens.get("input_tokens", 0), tokens.get("output_tokens", 0)
    cached = min(tokens.get("cached_input_tokens", 0), read)
    written = min(tokens.get("cache_write_tokens", 0), read - cached)
    return read - cached - written, said, cached, written


def _calculated(package: Any, model: str, provider: str | None, tokens: Mapping[str, int]) -> float | None:
    fresh, said, cached, written = _counts(tokens)
    usage = package.Usage(
        input_tokens=fresh + cached + written,
        output_tokens=said,
        cache_read_tokens=cached,
        cache_write_tokens=written,
    )
    try:
        found = package.calc_price(usage, model, provider_id=provider)
    except (LookupError, ValueError):
        return None
    known = found.model_price
    if known.input_mtok is None and known.output_mtok is None:  # it is listed without a price
        return None
    return float(found.total_price)
