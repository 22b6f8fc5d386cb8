"""The path of a run through its states, with repetition folded: 500 turns are a few steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

LONGEST_CYCLE = 12
"""Most states in a row that are matched as one repetition."""


class StateVisit(NamedTuple):
    """One visit of a state; `seconds` is None while its length is unknown."""

    state: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class PathStep:
    """Consecutive states, repeated `times` times; the seconds of each are the sum of all repetitions."""

    states: tuple[str, ...]
    times: int
    seconds: tuple[float | None, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the step as plain data."""
        passed = zip(self.states, self.seconds, strict=True)
        return {
            "times": self.times,
            "states": [{"state": state, "seconds": seconds} for state, seconds in passed],
        }


def folded(visits: Sequence[StateVisit]) -> list[PathStep]:
    """Fold consecutive repetition, at each place the one that covers most; other visits stay in between."""
    names = [stay.state for stay in visits]
    steps: list[PathStep] = []
    alone: list[StateVisit] = []
    at = 0
    while at < len(visits):
        length, times = _cycle(names, at)
        if times == 1:
            alone.append(visits[at])
            at += 1
            continue
        steps += _once(alone)
        alone = []
        steps.append(_repeated(visits[at : at + length * times], length))
        at += length * times
    return steps + _once(alone)


def _cycle(names: Sequence[str], at: int) -> tuple[int, int]:
    """Return the length and count of the repetition that covers most at a place; (1, 1) if there is none."""
    best = (1, 1)
    for length in range(1, LONGEST_CYCLE + 1):
        cycle, end = names[at : at + length], at + length
        while names[end : end + length] == cycle and end < len(names):
            end += length
        times = (end - at) // length
        if times > 1 and times * length > best[0] * best[1]:
            best = length, times
    return best


def _once(visits: Sequence[StateVisit]) -> list[PathStep]:
    if not visits:
        return []
    return [PathStep(tuple(stay.state for stay in visits), 1, tuple(stay.seconds for stay in visits))]


def _repeated(visits: Sequence[StateVisit], length: int) -> PathStep:
    known = [[stay.seconds for stay in visits[place::length]] for place in range(length)]
    sums = tuple(sum(one for one in each if one is not None) for each in known)
    return PathStep(tuple(stay.state for stay in visits[:length]), len(visits) // length, sums)
