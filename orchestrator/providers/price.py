"""What tokens cost: the host's own table, or the one of the package genai-prices. Each is a `ports.Price`.

    agent = Orchestrator(llm, price=price_table({"gpt-main": (2.50, 10.00, 1.25)}), limits=Limits(max_cost=0.50))
    agent = Orchestrator(llm, price=genai_prices())                    # pip install 'fsm-orchestrator[prices]'

A model without a price costs None and never 0: its tokens are counted, its cost is unknown. The run says so in its log
once for each model (`cost.unknown`), with the `max_cost` that cannot hold for it. A cost that the provider reports
itself, in `Usage.cost`, stands above every table.

genai-prices can fetch new prices from the network. That is never begun here: the prices are those of the installed
package, and a newer package has newer ones. A host that runs its `UpdatePrices` itself gets the prices of that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.llm.port import Price

_MILLION = 1_000_000
_DATED = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
_PROVIDER = re.compile(r"[:/]")
_LEAST_PRICES, _MOST_PRICES = 2, 3


def price_table(per_million: Mapping[str, Sequence[float]]) -> Price:
    """Return the price of each model by the host's own table, in whatever currency it has.

    Model -> price of a million tokens of input, of output and, where it differs, of cached input. A name counts for
    the versions of it that its provider tells by a date (`gpt-main` for `gpt-main-2026-05-01`), and for nothing else
    that begins alike. Raises ConfigError for what is no price.

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
        fresh, said, cached = _counts(tokens)
        return (fresh * row[0] + said * row[1] + cached * row[2]) / _MILLION

    return price


def genai_prices(provider: str | None = None) -> Price:
    """Return prices in US dollars of the models that the package genai-prices knows; it is loaded now.

    `provider` is its id there (`openai`, `azure`, …), for a model that several sell; without it the name alone tells,
    or what stands before a colon or a slash in it. Raises MissingExtra.
    """
    try:
        import genai_prices as package
    except ImportError:
        raise MissingExtra("genai-prices", "prices") from None
    _calculated(package, "", None, {})  # its data take a while to load: not in a run

    def price(model: str | None, tokens: Mapping[str, int]) -> float | None:
        for name, seller in _readings(model or "", provider):
            cost = _calculated(package, name, seller, tokens)
            if cost is not None:
                return cost
        return None

    return price


def _row(name: object, prices: object) -> tuple[float, float, float]:
    shown = (
        f"price of {name!r} is {prices!r}; give (input, output) or (input, output, cached input) of a million"
    )
    if not isinstance(name, str) or isinstance(prices, str) or not isinstance(prices, Sequence):
        raise ConfigError(shown)
    numbers = [float(one) for one in prices if isinstance(one, int | float) and not isinstance(one, bool)]
    good = all(math.isfinite(one) and one >= 0 for one in numbers)
    if not (good and len(numbers) == len(prices) and _LEAST_PRICES <= len(numbers) <= _MOST_PRICES):
        raise ConfigError(shown)
    return numbers[0], numbers[1], numbers[-1] if len(numbers) == _MOST_PRICES else numbers[0]


def _counts(tokens: Mapping[str, int]) -> tuple[int, int, int]:
    """Return input that was not cached, output, and cached input, which is a part of the input and no more than it."""
    read, said = tokens.get("input_tokens", 0), tokens.get("output_tokens", 0)
    cached = min(tokens.get("cached_input_tokens", 0), read)
    return read - cached, said, cached


def _readings(model: str, provider: str | None) -> list[tuple[str, str | None]]:
    """Return what a name may mean, the likeliest first: (model, who sells it)."""
    found = [(model, provider)]
    if provider is None and (mark := _PROVIDER.search(model)):
        found.append((model[mark.end() :], model[: mark.start()]))
    return found


def _calculated(package: Any, model: str, provider: str | None, tokens: Mapping[str, int]) -> float | None:
    fresh, said, cached = _counts(tokens)
    usage = package.Usage(input_tokens=fresh + cached, output_tokens=said, cache_read_tokens=cached)
    try:
        found = package.calc_price(usage, model, provider_id=provider)
    except (LookupError, ValueError):
        return None
    known = found.model_price
    if known.input_mtok is None and known.output_mtok is None:  # it is listed, but nobody says what it costs
        return None
    return float(found.total_price)
