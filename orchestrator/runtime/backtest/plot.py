"""The plot of a backtest: benefit against harm, one point for each policy."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.drawing.plot import PlotAxis, PlotSeries, plot_svg
from orchestrator.runtime.backtest.report import Report


def backtest_svg(reports: Sequence[Report], sweep: str = "", *, styled: bool = True) -> str:
    """Return benefit against harm as SVG: one point for each report.

    Args:
        reports: The results of `sweep`, or the one of `backtest`.
        sweep: The range of the sweep, for the title; "" for none.
        styled: Whether the stylesheet is included. A page includes `stylesheet()` once instead.
    """
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
    runs = reports[0].runs
    title = f"Backtest of {runs:,} run{'' if runs == 1 else 's'}" + (f": {sweep}" if sweep else "")
    harm = PlotAxis(name="harm: runs that had completed", step=1)
    return plot_svg(
        title, series, x=harm, y=PlotAxis(name="benefit: runs that had not", step=1), styled=styled
    )
