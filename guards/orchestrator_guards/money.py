"""Amounts of money as integers: micro-units, millionths of the currency of the price table.

Sums of binary fractions drift: three answers of 0.1 are more than 0.3. So costs are added and compared as integers,
and only people and hosts see the currency. A cost is rounded up and a limit down, so that rounding never allows a run
to spend more than its limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

MICRO_UNITS = 1_000_000
"""Micro-units in one unit of the currency."""

_DIGITS = 3
"""Decimals of a micro-unit that count; further ones are errors of binary fractions."""


def cost_micros(amount: float) -> int:
    """Return a cost in micro-units, rounded up. `amount` is in the currency, finite and 0 or more.

    Example:
        >>> cost_micros(0.1), cost_micros(0.29), cost_micros(0.000_000_2), cost_micros(0)
        (100000, 290000, 1, 0)
    """
    return math.ceil(round(amount * MICRO_UNITS, _DIGITS))


def limit_micros(amount: float) -> int:
    """Return a limit on cost in micro-units, rounded down, but never to 0, which would be no limit.

    Example:
        >>> limit_micros(0.1), limit_micros(0.000_001_9), limit_micros(0.000_000_1), limit_micros(0)
        (100000, 1, 1, 0)
    """
    return max(1, math.floor(round(amount * MICRO_UNITS, _DIGITS))) if amount else 0


def in_currency(micros: int) -> float:
    """Return micro-units in the currency, for people and hosts.

    Example:
        >>> in_currency(290_000)
        0.29
    """
    return micros / MICRO_UNITS


def amount(micros: int, currency: str = "") -> str:
    """Return micro-units as text for people, with every digit that they have, and the name of the currency.

    Example:
        >>> amount(290_000, "USD"), amount(12, "EUR"), amount(1_234_500_000)
        ('0.29 USD', '0.000012 EUR', '1,234.5')
    """
    text = f"{micros / MICRO_UNITS:,.6f}".rstrip("0").rstrip(".")
    return f"{text} {currency}" if currency else text


def amounts(costs: Mapping[str, int]) -> str:
    """Return what was spent in each currency ("" is an unknown one): amounts in two currencies are never summed.

    Example:
        >>> amounts({"USD": 290_000, "EUR": 1_000_000}), amounts({"USD": 1, "": 2}), amounts({})
        ('1 EUR + 0.29 USD', '0.000001 USD + 0.000002 of an unknown currency', '0')
    """
    known = [amount(micros, name) for name, micros in sorted(costs.items()) if name]
    if "" in costs:
        known.append(amount(costs[""], "of an unknown currency" if known else ""))
    return " + ".join(known) or "0"
