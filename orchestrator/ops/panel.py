"""Dashboards as values, for Grafana's JSON, the rendered page and the lint.

In an expression `%m` means the matchers of job, instance, machine and agent, `%a` of job, instance and agent, `%i` of
job and instance, `%r` of job, machine and agent, for recorded expressions, which have no instance. `$__rate_interval`
is Grafana's; render.py replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MATCHERS: Mapping[str, str] = {
    "%m": 'job=~"$job", instance=~"$instance", machine=~"$machine", agent=~"$agent"',
    "%a": 'job=~"$job", instance=~"$instance", agent=~"$agent"',
    "%i": 'job=~"$job", instance=~"$instance"',
    "%r": 'job=~"$job", machine=~"$machine", agent=~"$agent"',
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
    """Unit of a value; the names are Grafana's."""

    NUMBER = "short"
    SECONDS = "s"
    SHARE = "percentunit"
    RATE = "ops"
    PER_MINUTE = "opm"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and the names of its series, with `{{label}}` for a label."""

    expr: str
    legend: str = ""

    @property
    def whole(self) -> str:
        """The expression with its matchers, with unresolved variables."""
        found = self.expr
        for short, matchers in MATCHERS.items():
            found = found.replace(short, matchers)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `steps` are (from this value, colour), `line` is a value to draw."""

    title: str
    description: str
    queries: tuple[Query, ...] = ()
    unit: PanelUnit = PanelUnit.NUMBER
    kind: PanelKind = PanelKind.LINES
    steps: tuple[tuple[float, str], ...] = ()
    colours: Mapping[str, str] = field(default_factory=dict)
    """Name of a series -> its colour above 0, in place of the steps."""
    line: float | None = None
    stacked: bool = False
    width: int = 8
    """Of 24 columns."""
    text: str = ""
    empty_ok: str = ""
    """Reason why this panel may be empty in normal operation; empty text: it never is."""


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
    """Return a panel with text."""
    return Panel(title=title, description="", kind=PanelKind.TEXT, text=markdown, width=width)
