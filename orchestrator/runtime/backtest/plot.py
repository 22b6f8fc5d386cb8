"""The plot of a backtest: benefit against harm, as bars for one policy, and as one point for each value of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.drawing.plot import PlotAxis, PlotSeries, bars_svg, plot_svg
from orchestrator.runtime.backtest.report import Report


def backtest_svg(reports: Sequence[Report], sweep: str = "", *, styled: bool = True) -> str:
    """Return benefit against harm as SVG: bars for one report, one point for each of several.

    Args:
        reports: The results of `sweep`, or the one of `backtest`.
        sweep: The range of the sweep, for the title; "" for none.
        styled: Whether the stylesheet is included. A page includes `stylesheet()` once instead.
    """
    if len(reports) == 1:
        return _bars(reports[0], styled=styled)
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


def _bars(report: Report, *, styled: bool) -> str:
    names = {"benefit": "benefit: had not completed", "harm": "harm: had completed", "undecided": "undecided"}
    rows = [(names[effect], float(stops.runs), f"{stops.runs:,}") for effect, stops in report.stops.items()]
    return bars_svg(f"{_title(report)}: stops earlier", rows, styled=styled)
