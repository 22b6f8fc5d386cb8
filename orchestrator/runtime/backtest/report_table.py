"""The rows and columns in which a report is shown: on the command line and in the console."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from orchestrator.runtime.backtest.comparison import Effect, Saving
from orchestrator.runtime.backtest.report import Report
from orchestrator_guards.money import in_currency

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
    "cost": lambda report: in_currency(report.stops["benefit"].saved.cost_micros),
}
"""Column of a sweep -> its value. Tokens and cost are those that the runs of `benefit` save."""
