"""The page of machines: where runs of a machine spend their time, how they end, and which guards refuse."""

from __future__ import annotations

import math
import time
from typing import Any, Final, NamedTuple

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from orchestrator.console.access import Actor
from orchestrator.console.pages import Console, PageFault
from orchestrator.console.status import OUTCOMES
from orchestrator.drawing.status import STATUSES, StatusStyle
from orchestrator.drawing.svg import svg
from orchestrator.kernel.journal import RunCounts
from orchestrator.runtime.runs.graph_marks import path_marks
from orchestrator.runtime.runs.machine_history import LAST_RUNS, MachineHistory

_KEPT: Final = 10.0
"""Seconds for which the records of a machine are not read again."""
_SHORTEST, _DECADES = 1e-5, 8
"""Left end of the axis of times, in seconds, and its decades."""


class StateRow(NamedTuple):
    """A state in the table of times. Positions on the logarithmic axis are percents."""

    name: str
    visits: int
    share: float
    p50: float
    p95: float
    longest: float
    failed: float
    """Share of the visits that an error ended."""

    def at(self, seconds: float) -> float:
        """Return the position of a time on the axis."""
        return 100 * min(1.0, max(0.0, math.log10(max(seconds, _SHORTEST) / _SHORTEST) / _DECADES))


class EndRow(NamedTuple):
    """An outcome in the bar of endings."""

    status: StatusStyle
    runs: int
    start: float
    share: float


async def machines(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the page of one machine. Raises PageFault."""
    names = await console.names()
    known = sorted({machine for machine, _ in names})
    chosen = request.query_params.get("machine", "")
    if chosen and chosen not in known:
        raise PageFault(404, "No run of this machine is in the journal.")
    chosen = chosen or (known[0] if known else "")
    values: dict[str, Any] = {"found": None}
    if chosen:
        found = await _read(console, chosen)
        counts = await console.runs.count(machine=chosen)
        values = {
            "found": found,
            "counts": counts,
            "graph": Markup(_drawing(console, found)),  # noqa: S704 - its texts are escaped by the drawing
            "rows": _rows(found),
            "ends": _ends(counts),
            "guards": sorted(found.evaluated, key=lambda name: (-found.refused[name], name)),
            "rate": _rate(found),
        }
    return await console.page(
        request, actor, "machines", known=known, chosen=chosen, limit=LAST_RUNS, decades=_decades(), **values
    )


async def _read(console: Console, machine: str) -> MachineHistory:
    """Return the last runs of a machine, read at most every _KEPT seconds."""
    kept = console.machines.get(machine)
    if kept is None or time.monotonic() - kept[0] > _KEPT:
        kept = (time.monotonic(), await console.runs.machine(machine))
        console.machines[machine] = kept
    return kept[1]


def _drawing(console: Console, found: MachineHistory) -> str:
    graph = console.graphs.get(found.machine)
    return "" if graph is None else svg(graph, path_marks(found.history), styled=False)


def _rows(found: MachineHistory) -> list[StateRow]:
    whole = sum(times.total for times in found.times.values()) or 1.0
    rows = [
        StateRow(
            name,
            len(times.seconds),
            times.total / whole,
            times.percentile(0.5),
            times.percentile(0.95),
            max(times.seconds, default=0.0),
            times.failed / max(len(times.seconds), 1),
        )
        for name, times in found.times.items()
    ]
    return sorted(rows, key=lambda row: -row.share)


def _ends(counts: RunCounts) -> list[EndRow]:
    ended = sum(counts.outcomes.values()) or 1
    rows, start = [], 0.0
    for outcome in OUTCOMES:
        if runs := counts.outcomes.get(outcome, 0):
            rows.append(EndRow(STATUSES[outcome], runs, 100 * start, 100 * runs / ended))
            start += runs / ended
    return rows


def _rate(found: MachineHistory) -> float | None:
    """Return the runs per hour over the time of the runs that were read; None for one run."""
    if found.since is None or found.until is None or found.runs < 2 or found.until <= found.since:  # noqa: PLR2004
        return None
    return found.runs / (found.until - found.since) * 3_600


def _decades() -> list[tuple[float, str]]:
    words = ("10 µs", "1 ms", "100 ms")
    return [(100 * 2 * place / _DECADES, word) for place, word in enumerate(words)]
