"""The report of a backtest: counts and sums, so that its size does not depend on the number of runs.

Also the rows, columns and plots in which it is shown, on the command line and in the console.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from orchestrator.drawing.plot import PlotAxis, PlotSeries, bars_svg, plot_svg
from orchestrator.runtime.backtest.comparison import Effect, RunComparison, Saving
from orchestrator_guards.money import amounts, in_currency


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
        """Return the numbers as plain data; costs are in each currency, which is `unknown` if no record names it."""
        saved = self.saved
        return {
            "runs": self.runs,
            "requests": saved.requests,
            "tokens": saved.tokens,
            "costs": {name or "unknown": in_currency(micros) for name, micros in sorted(saved.costs.items())},
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
            reason = run.left_out if len(self.left_out) < _MOST else "another reason"
            known = self.left_out.get(run.left_out) or self.left_out.get(reason)
            if known is None:
                self.left_out[reason] = LeftOut(1, run.run_id)
            else:
                known.runs += 1
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


CHANGE_WORDS: Final[Mapping[str, str]] = {
    "stop": "stops earlier",
    "other_message": "other message",
    "open_end": "open end",
    "other_reason": "other reason",
    "none": "none",
}
"""Change of a run -> its words."""


class ReportRow(NamedTuple):
    """Runs with one kind of first difference."""

    name: str
    runs: int
    saved: Saving | None = None
    """Resources that these runs used after the difference; None for a difference that saves nothing."""


def report_rows(report: Report) -> Iterator[ReportRow]:
    """Yield the rows of a report: benefit and harm first, also without runs."""
    stops = report.stops
    yield ReportRow("stops earlier; failed, stalled or ran out: benefit", *_counted(report, "benefit"))
    yield ReportRow("stops earlier; completed: harm", *_counted(report, "harm"))
    if stops["undecided"].runs:
        yield ReportRow("stops earlier; cancelled, rejected or open", *_counted(report, "undecided"))
    for effect, count in report.assumed.items():
        if count.runs:
            name = f"other message, then stops ({effect}), if the model answers as recorded"
            yield ReportRow(name, count.runs, count.saved)
    yield ReportRow("another message to the model, the rest is unknown", report.other_message)
    yield ReportRow("continues beyond the record", report.open_end)
    yield ReportRow("ends at the same place for another reason", report.other_reason)
    yield ReportRow("unchanged", report.unchanged)


def _counted(report: Report, effect: Effect) -> tuple[int, Saving]:
    count = report.stops[effect]
    return count.runs, count.saved


SWEEP_COLUMNS: Final[Mapping[str, Callable[[Report], object]]] = {
    "runs": lambda report: report.runs,
    "benefit": lambda report: report.benefit,
    "harm": lambda report: report.harm,
    "undecided": lambda report: report.stops["undecided"].runs,
    "other_message": lambda report: report.other_message,
    "assumed_benefit": lambda report: report.assumed["benefit"].runs,
    "assumed_harm": lambda report: report.assumed["harm"].runs,
    "open_end": lambda report: report.open_end,
    "tokens": lambda report: report.stops["benefit"].saved.tokens,
    "cost": lambda report: amounts(report.stops["benefit"].saved.costs),
}
"""Column of a sweep -> its value. Tokens and cost are those that the runs of `benefit` save."""


def backtest_svg(reports: Sequence[Report], sweep: str = "", *, styled: bool = True) -> str:
    """Return benefit against harm as SVG: bars for one report, one point for each of several.

    Args:
        reports: The results of `sweep`, or the one of `backtest`.
        sweep: The range of the sweep, for the title; "" for none.
        styled: Whether the stylesheet is included. A page includes `stylesheet()` once instead.
    """
    if len(reports) == 1:
        report = reports[0]
        names = {
            "benefit": "benefit: had not completed",
            "harm": "harm: had completed",
            "undecided": "undecided",
        }
        rows = [
            (names[effect], float(stops.runs), f"{stops.runs:,}") for effect, stops in report.stops.items()
        ]
        return bars_svg(f"{_title(report)}: stops earlier", rows, styled=styled)
    labels = [report.label for report in reports]
    claimed = [(float(report.harm), float(report.benefit)) for report in reports]
    assumed = [
        (
            float(report.harm + report.assumed["harm"].runs),
            float(report.benefit + report.assumed["benefit"].runs),
        )
        for report in reports
    ]
    series = [PlotSeries(name="stops earlier", points=claimed, labels=labels, line=True)]
    if assumed != claimed:
        name = "also behind another message, if the model answers as recorded"
        series.append(PlotSeries(name=name, points=assumed, labels=labels, line=True))
    title = f"{_title(reports[0])}: {sweep}" if sweep else _title(reports[0])
    harm = PlotAxis(name="harm: runs that had completed", step=1)
    benefit = PlotAxis(name="benefit: runs that had not", step=1)
    return plot_svg(title, series, x=harm, y=benefit, styled=styled)


def _title(report: Report) -> str:
    return f"Backtest of {report.runs:,} run{'' if report.runs == 1 else 's'}"
