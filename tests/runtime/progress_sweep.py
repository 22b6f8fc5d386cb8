"""Precision and recall of the progress guard over its limit, on the labelled corpus: table and plot of the guide."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.drawing.plot import PlotAxis, PlotSeries, plot_svg
from orchestrator_guards import TurnFingerprint, fingerprint, progress, window_size
from tests.guards.corpus import Trace, derived, recorded
from tests.guards.corpus_innocent import innocent
from tests.guards.corpus_stalls import stalls

LIMITS = range(1, 9)
GUIDE = "orchestrator/runtime/backtest/README.md"
PICTURE = "orchestrator/runtime/backtest/progress_guard.svg"


class SweepFigure(NamedTuple):
    """What the guard does with the corpus at one limit."""

    limit: int
    right: int
    """Stalls that it stops."""
    wrong: int
    """Traces without a stall that it stops."""
    missed: int

    @property
    def precision(self) -> float:
        """NaN if it stops nothing."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else math.nan

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed)


def stops(trace: Trace, limit: int) -> bool:
    """Replay a trace turn by turn as a run would."""
    window: deque[TurnFingerprint] = deque(maxlen=window_size(limit))
    for step in trace.steps:
        window.append(fingerprint((), step) if isinstance(step, str) else fingerprint(step))
        if not progress(window, limit):
            return True
    return False


def figures() -> Iterator[SweepFigure]:
    """Yield the figures of each limit."""
    traces = [*recorded(), *derived(), *stalls(), *innocent()]
    for limit in LIMITS:
        found = [(trace.label is not None, stops(trace, limit)) for trace in traces]
        yield SweepFigure(
            limit, found.count((True, True)), found.count((False, True)), found.count((True, False))
        )


def table() -> str:
    """Return the rows of the guide."""
    rows = ["| `max_no_progress` | precision | recall | stopped without a stall |", "|---|---|---|---|"]
    for one in figures():
        precision = "–" if math.isnan(one.precision) else f"{one.precision:.2f}"
        rows.append(f"| {one.limit} | {precision} | {one.recall:.2f} | {one.wrong} |")
    return "\n".join([*rows, ""])


def picture() -> str:
    """Return the plot of the guide."""
    found = list(figures())
    series = [
        PlotSeries(name="precision", line=True, points=[(one.limit, 100 * one.precision) for one in found]),
        PlotSeries(name="recall", line=True, points=[(one.limit, 100 * one.recall) for one in found]),
    ]
    title = "The progress guard on the labelled corpus"
    return plot_svg(
        title, series, x=PlotAxis(name="max_no_progress"), y=PlotAxis(name="share", unit="%", high=100)
    )
