"""Durations that are noted and counted later, many at once, land in the same buckets as one at a time."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.telemetry.metrics import _spread

BOUNDS = (0.1, 0.5, 1.0, 2.5, math.inf)
amounts = st.lists(st.floats(0, 5) | st.sampled_from(BOUNDS[:-1]) | st.just(math.inf), max_size=30)


def one_by_one(some: list[float]) -> dict[int, int]:
    return dict(Counter(next(at for at, bound in enumerate(BOUNDS) if one <= bound) for one in some))


@given(some=amounts)
def test_many_amounts_are_counted_in_the_buckets_of_each(some: list[float]) -> None:
    for is_ordered in (True, False):
        assert dict(_spread(some, BOUNDS, is_ordered=is_ordered)) == one_by_one(some)


def test_an_amount_on_a_bound_belongs_below_it() -> None:
    some = [0.1, 0.1, 0.5, 0.6, 1.0, 2.5, 9.0]
    assert list(_spread(some, BOUNDS, is_ordered=True)) == [(0, 2), (1, 1), (2, 2), (3, 1), (4, 1)]
