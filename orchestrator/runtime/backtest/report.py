"""The report of a backtest: counts and sums, so that its size does not depend on the number of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.runtime.backtest.comparison import Effect, RunComparison, Saving
from orchestrator_guards.money import in_currency


@dataclass(slots=True)
class StopCount:
    """Runs that stop earlier, and what that saves."""

    runs: int = 0
    saved: Saving = field(default_factory=Saving)

    def add(self, saved: Saving) -> None:
        """Count one run."""
        self.runs += 1
        self.saved += saved

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as plain data; the cost is in the currency of the price table."""
        saved = self.saved
        return {
            "runs": self.runs,
            "requests": saved.requests,
            "tokens": saved.tokens,
            "cost": in_currency(saved.cost_micros),
            "seconds": round(saved.seconds, 3),
        }


@dataclass(slots=True)
class LeftOut:
    """Runs that are left out for one reason."""

    runs: int
    first: str
    """Id of the first of them."""


@dataclass(slots=True)
class Report:
    """The effect of a policy on recorded runs."""

    label: str = ""
    """The value of a sweep."""
    runs: int = 0
    """Runs that were evaluated; those that are left out do not count."""
    unchanged: int = 0
    stops: dict[Effect, StopCount] = field(
        default_factory=lambda: {"benefit": StopCount(), "harm": StopCount(), "undecided": StopCount()}
    )
    """Runs that would have stopped earlier."""
    other_message: int = 0
    """Runs whose model would have received another message first."""
    assumed: dict[Effect, StopCount] = field(
        default_factory=lambda: {"benefit": StopCount(), "harm": StopCount(), "undecided": StopCount()}
    )
    """Those of them that would stop earlier if the model answered as recorded. Not a claim."""
    open_end: int = 0
    """Runs that would have continued beyond their record."""
    other_reason: int = 0
    """Runs that would have ended at the same place, by another guard."""
    guards: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(Guard of the first difference, change) -> runs."""
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    """Reason -> runs that were not evaluated."""
    damage: str = ""
    """A sentence about runs that the journal cannot read, or ""."""
    incomplete: str = ""
    """A sentence about runs that were not read because of a bound of the backtest, or ""."""

    def add(self, run: RunComparison) -> None:
        """Count one run."""
        if run.left_out:
            self._leave_out(run)
            return
        self.runs += 1
        if run.change == "none":
            self.unchanged += 1
            return
        if run.difference is not None:
            self.guards[run.difference.guard, run.change] += 1
        if run.effect is not None:
            self.stops[run.effect].add(run.saved)
        elif run.change == "open_end":
            self.open_end += 1
        elif run.change == "other_reason":
            self.other_reason += 1
        else:
            self.other_message += 1
            if run.assumed_effect is not None:
                self.assumed[run.assumed_effect].add(run.assumed_saved)

    def _leave_out(self, run: RunComparison) -> None:
        reason = run.left_out if len(self.left_out) < _MOST else "another reason"
        known = self.left_out.get(run.left_out) or self.left_out.get(reason)
        if known is None:
            self.left_out[reason] = LeftOut(1, run.run_id)
        else:
            known.runs += 1

    @property
    def benefit(self) -> int:
        """Runs that failed, stalled or ran out, and would have stopped earlier."""
        return self.stops["benefit"].runs

    @property
    def harm(self) -> int:
        """Runs that completed, and would have been stopped before."""
        return self.stops["harm"].runs

    @property
    def by_guard(self) -> list[tuple[tuple[str, str], int]]:
        """The guards of the first differences, the most frequent first."""
        return sorted(self.guards.items(), key=lambda item: (-item[1], item[0]))

    @property
    def not_evaluated(self) -> int:
        """Number of the runs that are left out."""
        return sum(one.runs for one in self.left_out.values())

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            **({"value": self.label} if self.label else {}),
            "runs": self.runs,
            "unchanged": self.unchanged,
            "stops": _plain(self.stops),
            "other_message": self.other_message,
            "assumed_stops": _plain(self.assumed),
            "open_end": self.open_end,
            "other_reason": self.other_reason,
            "guards": [
                {"guard": guard, "change": change, "runs": runs} for (guard, change), runs in self.by_guard
            ],
            "left_out": [
                {"reason": reason, "runs": one.runs, "first": one.first}
                for reason, one in self.left_out.items()
            ],
            "damage": self.damage,
            "incomplete": self.incomplete,
        }


def _plain(stops: Mapping[Effect, StopCount]) -> dict[str, Any]:
    return {effect: count.as_json() for effect, count in stops.items()}


_MOST = 50
"""Most reasons that a report names: those with the number of a record differ for each run."""
