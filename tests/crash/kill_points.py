"""Which of many kill points a campaign visits: by a seed, so that further runs visit others; all in `make soak`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence


def some_of_each(kinds: Sequence[str], most: int, seed: int) -> list[int]:
    """Return the numbers, from 1, of at most so many points of each kind, sorted."""
    chance, numbers = random.Random(seed), defaultdict[str, list[int]](list)
    for number, kind in enumerate(kinds, 1):
        numbers[kind].append(number)
    return sorted(
        number for those in numbers.values() for number in chance.sample(those, min(most, len(those)))
    )


def every(stride: int, last: int, seed: int, first: int = 1) -> range:
    """Return each `stride`-th number from `first` to `last`; which one is the first depends on the seed."""
    return range(first + seed % stride, last + 1, stride)
