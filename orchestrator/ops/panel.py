"""Dashboards as values: Grafana's JSON, the rendered page and the lint all read these.

In an expression `%m` stands for the matchers of job, instance and machine, `%i` for job and instance, `%r` for job and
machine (recorded expressions have lost the instance). `$__rate_interval` is Grafana's, and what render.py puts there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MATCHERS: Mapping[str, str] = {
    "%m": 'job=~"$job", instance=~"$instance", machine=~"$machine"',
    "%i": 'job=~"$job", instance=~"$instance"',
    "%r": 'job=~"$job", machine=~"$machine"',
}


class PanelKind(StrEnum):
    """How a panel is drawn; the values are Grafana's."""

    LINES = "timeseries"
    STAT = "stat"
    BARS = "bargauge"
    HEATMAP = "heatmap"
    TABLE = "table"
    TEXT = "text"


class PanelUnit(StrEnum):
    """What a figure counts; the values are Grafana's."""

    NUMBER = "short"
    SECONDS = "s"
    SHARE = "percentunit"
    RATE = "ops"
    PER_MINUTE = "opm"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and how its lines are called, with `{{label}}` for a label."""

    expr: str
    legend: str = ""

    @property
    def whole(self) -> str:
        """The expression with its matchers, variables left in."""
        found = self.expr
        for short, matchers in MATCHERS.items():
            found = found.replace(short, matchers)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture. `steps` are (from this value on, colour), `line` is a value worth drawing."""

    title: str
    description: str
    queries: tuple[Query, ...] = ()
    unit: PanelUnit = PanelUnit.NUMBER
    kind: PanelKind = PanelKind.LINES
    steps: tuple[tuple[float, str], ...] = ()
    line: float | None = None
    stacked: bool = False
    width: int = 8
    """Of 24."""
    text: str = ""
    empty_ok: str = ""
    """Why this panel has nothing to show while all is well; empty: it always has."""


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels under one question."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page."""

    uid: str
    title: str
    description: str
    rows: tuple[PanelRow, ...]
    tags: tuple[str, ...] = ("orchestrator",)
    links: Mapping[str, str] = field(default_factory=dict)
    """Title -> uid of other dashboards."""

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Every panel, in order."""
        return tuple(panel for row in self.rows for panel in row.panels)


def text(title: str, markdown: str, width: int = 24) -> Panel:
    """Return a panel of words."""
    return Panel(title=title, description="", kind=PanelKind.TEXT, text=markdown, width=width)
