"""Dashboards as values, for Grafana's JSON, the rendered page and the lint, and the forms of expressions in panels.

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


_RATE = "$__rate_interval"


def _metric(name: str, where: str) -> str:
    return f"orchestrator_{name}{{{where}}}"


def rate(name: str, by: str, where: str = "%m") -> str:
    """Return the increments of a counter per second, summed."""
    return f"sum by ({by}) (rate({_metric(name, where)}[{_RATE}]))"


def increase(name: str, by: str, where: str = "%m", window: str = "1h") -> str:
    """Return the increase of a counter within the window, summed."""
    return f"sum by ({by}) (increase({_metric(name, where)}[{window}]))"


def lately(name: str, by: str, where: str = "%m") -> str:
    """Return the increase of a counter between two points of the graph, summed."""
    return increase(name, by, where, _RATE)


def total(name: str, by: str, where: str = "%m") -> str:
    """Return a gauge, summed."""
    return f"sum by ({by}) ({_metric(name, where)})"


def in_journals(by: str, where: str = "%m") -> str:
    """Return the runs of journals: each process reports those of its journals, and each journal counts once."""
    every = "journal, machine, agent, status, reason"
    return f"sum by ({by}) (max by ({every}) ({_metric('journal_runs', where)}))"


def age(name: str, by: str, where: str = "%m") -> str:
    """Return the age in seconds of the oldest of some timestamps."""
    return f"max by ({by}) (time() - {_metric(name, where)})"


def quantile(q: float, name: str, by: str, where: str = "%m") -> str:
    """Return the value that this share of a histogram's observations does not exceed."""
    return f"histogram_quantile({q}, {rate(f'{name}_bucket', f'{by}, le', where)})"


def ratio(part: str, whole: str) -> str:
    """Return one expression divided by another with the same labels."""
    return f"{part} / {whole}"


def some(expression: str) -> str:
    """Return an expression without the values that are 0."""
    return f"{expression} > 0"
