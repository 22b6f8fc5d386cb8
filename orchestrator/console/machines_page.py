"""The page of machines: where runs of a machine spend their time, how they end, and which guards refuse."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from orchestrator.console.access import Actor
from orchestrator.console.feed import MOST, MachineWindow
from orchestrator.console.pages import OUTCOMES, Console, PageFault, printable, tag_condition
from orchestrator.console.run_page import GraphView
from orchestrator.drawing.stylesheet import STATUSES, StatusStyle
from orchestrator.runtime.runs.listing import MachineHistory, RunFilter
from orchestrator.runtime.runs.story import path_marks

WINDOWS: Final[Mapping[str, tuple[str, float]]] = {
    "1h": ("Last hour", 3_600.0),
    "24h": ("24 hours", 86_400.0),
    "7d": ("7 days", 604_800.0),
    "all": ("All", 0.0),
}
"""Name of a window -> its words and its seconds; 0 is the whole journal."""
_USUAL: Final = "7d"
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
    span = request.query_params.get("window", _USUAL)
    span = span if span in WINDOWS else _USUAL
    tag = tag_of(request)
    values: dict[str, Any] = {"found": None}
    if chosen:
        seconds = WINDOWS[span][1]
        reader = console.reader("machine", chosen, tag)
        now = time.time()
        window = await reader.window(now - seconds if seconds else None)
        found, rows = window.history, _rows(window.history)
        marks = path_marks(found.history)
        centre = rows[0].name if rows else ""
        every: RunFilter = {**tag_condition(tag), "machine": chosen}
        values = {
            "found": found,
            "window": window,
            "counts": await console.runs.count(**every),
            "view": GraphView.of(console.graphs.get(chosen), marks, centre),
            "rows": rows,
            "ends": _ends(window.outcomes),
            "guards": sorted(found.evaluated, key=lambda name: (-found.refused[name], name)),
            "rate": _rate(window, seconds, now),
        }
    words = ("10 µs", "1 ms", "100 ms")
    decades = [(100 * 2 * place / _DECADES, word) for place, word in enumerate(words)]
    return await console.page(
        request,
        actor,
        "machines",
        known=known,
        chosen=chosen,
        span=span,
        tag=tag,
        spans=WINDOWS,
        usual=_USUAL,
        most=MOST,
        decades=decades,
        **values,
    )


def tag_of(request: Request) -> str:
    """Return the tag of the address, `name=value`, or "". Raises PageFault for another text."""
    text = printable(request.query_params.get("tag", ""))
    if text and not tag_condition(text):
        raise PageFault(400, "A tag is given as name=value.")
    return text


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


def _ends(outcomes: Mapping[str, int]) -> list[EndRow]:
    ended = sum(outcomes.values()) or 1
    rows, start = [], 0.0
    for outcome in OUTCOMES:
        if runs := outcomes.get(outcome, 0):
            rows.append(EndRow(STATUSES[outcome], runs, 100 * start, 100 * runs / ended))
            start += runs / ended
    return rows


def _rate(window: MachineWindow, seconds: float, now: float) -> float | None:
    """Return the runs that started per hour: over the window, or since the oldest of its runs; None without a run."""
    if not window.heads:
        return None
    oldest = window.heads[-1].created_at
    lasted = seconds if seconds and not window.more else now - oldest
    return len(window.heads) / max(lasted, 1.0) * 3_600
