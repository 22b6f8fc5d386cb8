"""The report of a sample: each survivor, and the rate of each area."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutation import Mutant
from tests.mutants.trial import Verdict

LEAST_RATE = 0.96
"""The share of the non-equivalent mutants of an area that tests must detect."""


@dataclass(frozen=True)
class Equivalent:
    """A mutant that behaves like the original. It is recognised by function and text, so lines may move."""

    path: str
    function: str
    change: str
    reason: str

    def is_of(self, mutant: Mutant) -> bool:
        """Return whether a mutant is this one; the change `*` stands for every change in the function."""
        same = (self.path, self.function) == (mutant.path, mutant.function)
        return same and self.change in {"*", mutant.change}


def read_equivalents(path: Path) -> list[Equivalent]:
    """Read the list of equivalent mutants, a TOML file; a missing one is empty."""
    if not path.exists():
        return []
    return [Equivalent(**one) for one in tomllib.loads(path.read_text()).get("equivalent", [])]


@dataclass
class AreaFigures:
    """Counts of the mutants of an area."""

    mutants: int = 0
    detected: int = 0
    equivalent: int = 0

    @property
    def survivors(self) -> int:
        return self.mutants - self.detected - self.equivalent

    @property
    def rate(self) -> float:
        """Share of detected mutants among the non-equivalent ones."""
        counted = self.mutants - self.equivalent
        return self.detected / counted if counted else 1.0


def figures(verdicts: Sequence[Verdict], equivalents: Sequence[Equivalent]) -> AreaFigures:
    """Count the verdicts of one area."""
    same = sum(not one.detected and _is_equivalent(one.mutant, equivalents) for one in verdicts)
    return AreaFigures(len(verdicts), sum(one.detected for one in verdicts), same)


def report(areas: Mapping[str, Sequence[Verdict]], equivalents: Sequence[Equivalent]) -> Iterator[str]:
    """Yield the lines of the report: the survivors, then a table."""
    for verdicts in areas.values():
        for one in verdicts:
            if not one.detected and not _is_equivalent(one.mutant, equivalents):
                yield f"survivor: {one.mutant} ({one.tests} tests)"
    yield f"{'area':<10} {'mutants':>7} {'detected':>8} {'equivalent':>10} {'survivors':>9} {'rate':>7}"
    for name, verdicts in areas.items():
        area = figures(verdicts, equivalents)
        counts = f"{area.mutants:>7} {area.detected:>8} {area.equivalent:>10} {area.survivors:>9}"
        yield f"{name:<10} {counts} {100 * area.rate:>6.1f}%"


def is_enough(areas: Mapping[str, Sequence[Verdict]], equivalents: Sequence[Equivalent]) -> bool:
    """Return whether every area reaches `LEAST_RATE`."""
    return all(figures(verdicts, equivalents).rate >= LEAST_RATE for verdicts in areas.values())


def _is_equivalent(mutant: Mutant, equivalents: Sequence[Equivalent]) -> bool:
    return any(one.is_of(mutant) for one in equivalents)
