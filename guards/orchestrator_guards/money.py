"""Amounts of money as integers: micro-units, millionths of the currency of the price table.

Sums of binary fractions drift: three answers of 0.1 are more than 0.3. So costs are added and compared as integers,
and only people and hosts see the currency. A cost is rounded up and a limit down, so that rounding never allows a run
to spend more than its limit.
"""

from __future__ import annotations

import math

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
