"""The report of a backtest as tables and as rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from orchestrator.cli.output import say, shown
from orchestrator.cli.runs.phrase import many, span, table
from orchestrator.drawing.plot import PlotAxis, PlotSeries, plot_svg
from orchestrator.runtime.backtest.comparison import RunComparison, Saving
from orchestrator.runtime.backtest.report import Report, StopCount
from orchestrator_guards.money import in_currency

CSV_COLUMNS: Final = (
    *("run_id", "agent", "outcome", "reason", "change", "effect", "guard", "observed", "limit", "turn"),
    *("requests", "tokens", "cost", "seconds", "assumed_effect", "assumed_guard", "assumed_turn", "left_out"),
)
_SAVED: Final = ("requests", "tokens", "cost", "time")
_RIGHT: Final = ("runs", *_SAVED)


def csv_row(run: RunComparison) -> tuple[object, ...]:
    """Return the cells of CSV_COLUMNS."""
    found, later, saved = run.difference, run.assumed, run.saved
    return (
        *(run.run_id, run.agent, run.outcome, run.reason, run.change, run.effect or ""),
        *((found.guard, found.observed, found.limit, found.turn) if found else ("", "", "", "")),
        *(saved.requests, saved.tokens, in_currency(saved.cost_micros), round(saved.seconds, 3)),
        *(run.assumed_effect or "", later.guard if later else "", later.turn if later else ""),
        run.left_out,
    )


def print_report(report: Report, first: Sequence[RunComparison]) -> None:
    """Print the report of one policy, and the first runs with a difference."""
    say(f"{many(report.runs, 'run')} evaluated" if report.runs else "no run was evaluated")
    if report.runs:
        rows = [(what, f"{stops.runs:,}", *_cells(stops.saved)) for what, stops in _stops(report)]
        rows += [(what, f"{count:,}", "", "", "", "") for what, count in _others(report)]
        for line in table(("first difference", "runs", *_SAVED), rows, right=_RIGHT):
            say(line)
    _print_guards(report)
    _print_runs(report, first)
    _print_left_out(report)


def _stops(report: Report) -> list[tuple[str, StopCount]]:
    stops, assumed = report.stops, report.assumed
    found = [
        ("stops earlier; failed, stalled or ran out: benefit", stops["benefit"]),
        ("stops earlier; completed: harm", stops["harm"]),
        ("stops earlier; cancelled, rejected or open", stops["undecided"]),
    ]
    then = {
        "benefit": "then stops (benefit)",
        "harm": "then stops (harm)",
        "undecided": "then stops (undecided)",
    }
    found += [
        (f"other message, {then[effect]}, if the model answers as recorded", count)
        for effect, count in assumed.items()
        if count.runs
    ]
    return [one for one in found if one[1].runs or one[0] in {found[0][0], found[1][0]}]


def _others(report: Report) -> list[tuple[str, int]]:
    return [
        ("another message to the model, the rest is unknown", report.other_message),
        ("continues beyond the record", report.open_end),
        ("ends at the same place for another reason", report.other_reason),
        ("unchanged", report.unchanged),
    ]


def _cells(saved: Saving) -> tuple[str, str, str, str]:
    return (
        f"{saved.requests:,}",
        f"{saved.tokens:,}",
        f"{in_currency(saved.cost_micros):g}",
        span(saved.seconds),
    )


def _print_guards(report: Report) -> None:
    if not report.guards:
        return
    rows = [(guard, _WORDS[change], f"{runs:,}") for (guard, change), runs in report.by_guard]
    say("")
    for line in table(("guard", "change", "runs"), rows, right=("runs",)):
        say(line)


_WORDS: Final = {
    "stop": "stops earlier",
    "other_message": "other message",
    "open_end": "open end",
    "other_reason": "other reason",
    "none": "none",
}


def _print_runs(report: Report, first: Sequence[RunComparison]) -> None:
    if not first:
        return
    rows = [
        (
            run.run_id,
            run.outcome or "(open)",
            _WORDS[run.change],
            run.effect or "",
            run.difference.guard if run.difference else "",
            str(run.difference.turn) if run.difference else "",
        )
        for run in first
    ]
    say("")
    for line in table(("run", "outcome", "change", "effect", "guard", "turn"), rows, right=("turn",)):
        say(line)
    if (more := report.runs - report.unchanged - len(first)) > 0:
        say(f"  … and {many(more, 'run')} more: --csv prints all")


def _print_left_out(report: Report) -> None:
    for reason, one in report.left_out.items():
        say(f"left out: {many(one.runs, 'run')} ({shown(one.first, 80)}): {shown(reason, 300)}")
    if report.damage:
        say(f"left out: {shown(report.damage, 300)}")


# ---- a sweep ----

_COLUMNS: Final[tuple[tuple[str, Callable[[Report], object]], ...]] = (
    ("runs", lambda report: report.runs),
    ("benefit", lambda report: report.benefit),
    ("harm", lambda report: report.harm),
    ("undecided", lambda report: report.stops["undecided"].runs),
    ("other_message", lambda report: report.other_message),
    ("assumed_benefit", lambda report: report.assumed["benefit"].runs),
    ("assumed_harm", lambda report: report.assumed["harm"].runs),
    ("open_end", lambda report: report.open_end),
    ("tokens", lambda report: report.stops["benefit"].saved.tokens),
    ("cost", lambda report: in_currency(report.stops["benefit"].saved.cost_micros)),
)
"""Column of a sweep -> its value. Tokens and cost are those that the runs of `benefit` save."""
SWEEP_COLUMNS: Final = ("value", *(name for name, _ in _COLUMNS))


def sweep_row(report: Report) -> tuple[object, ...]:
    """Return the cells of SWEEP_COLUMNS."""
    return report.label, *(value(report) for _, value in _COLUMNS)


def plot_of(reports: Sequence[Report], sweep: str | None) -> str:
    """Return benefit against harm as SVG: one point for each report."""
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
    title = f"Backtest of {many(reports[0].runs, 'run')}" + (f": {sweep}" if sweep else "")
    harm = PlotAxis(name="harm: runs that had completed")
    return plot_svg(title, series, x=harm, y=PlotAxis(name="benefit: runs that had not"))


def print_sweep(name: str, reports: Sequence[Report]) -> None:
    """Print one row for each value."""
    heads = (name, *SWEEP_COLUMNS[1:])
    rows = [tuple(str(cell) for cell in sweep_row(report)) for report in reports]
    for line in table(heads, rows, right=heads):
        say(line)
    _print_left_out(reports[0])
