"""Dashboards as values, for Grafana's JSON, the rendered page and the lint, and the forms of expressions in panels.

In an expression `%m` means the matchers of job, instance, machine and agent, `%a` of job, instance and agent, `%i` of
job and instance, `%r` of job, machine and agent, for recorded expressions, which have no instance. `$__rate_interval`
is Grafana's; render.py replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.ops.rule import age_of

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
    return f"max by ({by}) ({age_of(_metric(name, where))})"


def quantile(q: float, name: str, by: str, where: str = "%m") -> str:
    """Return the value that this share of a histogram's observations does not exceed."""
    return f"histogram_quantile({q}, {rate(f'{name}_bucket', f'{by}, le', where)})"


def ratio(part: str, whole: str) -> str:
    """Return one expression divided by another with the same labels."""
    return f"{part} / {whole}"


def some(expression: str) -> str:
    """Return an expression without the values that are 0."""
    return f"{expression} > 0"


# ---- the JSON that Grafana imports: plain data without an SDK, limited to the features that we use ----

SCHEMA_VERSION = 41
"""Schema version of Grafana 11.6; newer versions migrate it themselves."""

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHT = 8
_WIDTH = 24
_CHANGED = (
    'changes(orchestrator_machine_info{job=~"$job"}[5m]) > 0 or '
    '(orchestrator_machine_info{job=~"$job"} unless orchestrator_machine_info{job=~"$job"} offset 5m)'
)
_RESTARTED = 'changes(process_start_time_seconds{job=~"$job"}[5m]) > 0'
_FIRING = 'ALERTS{component="orchestrator", alertstate="firing", severity=~"critical|warning"}'
_ANNOTATIONS = (
    ("Definition changed", _CHANGED, "{{machine}} {{definition}}", "purple"),
    ("Restart", _RESTARTED, "{{instance}}", "orange"),
    ("Alert", _FIRING, "{{alertname}}", "red"),
)


def grafana_json(dashboard: Dashboard, console: str = "") -> str:
    """Return the file that Grafana imports."""
    return json.dumps(dashboard_data(dashboard, console), indent=1, ensure_ascii=False) + "\n"


def dashboard_data(dashboard: Dashboard, console: str = "") -> dict[str, Any]:
    """Return a dashboard in the form of Grafana's model. `console` is an address for links; empty: no links."""
    source = {
        "name": "datasource",
        "type": "datasource",
        "label": "Prometheus",
        "query": "prometheus",
        "current": {},
    }
    chain = (
        ("job", "label_values(orchestrator_build_info, job)"),
        ("instance", 'label_values(orchestrator_build_info{job=~"$job"}, instance)'),
        ("machine", 'label_values(orchestrator_runs_started_total{job=~"$job"}, machine)'),
        ("agent", 'label_values(orchestrator_runs_started_total{job=~"$job", machine=~"$machine"}, agent)'),
    )
    found: list[dict[str, Any]] = []
    top = 0
    for row in dashboard.rows:
        found.append(_row(row, len(found) + 1, top))
        top += 1
        left = 0
        for panel in row.panels:
            if left + panel.width > _WIDTH:
                left, top = 0, top + _HEIGHT
            position = {"x": left, "y": top, "w": panel.width, "h": _HEIGHT}
            found.append(panel_data(panel, len(found) + 1, position, console))
            left += panel.width
        top += _HEIGHT
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": list(dashboard.tags),
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_annotation(*each) for each in _ANNOTATIONS]},
        "templating": {"list": [source, *(_variable(name, query) for name, query in chain)]},
        "links": [
            {
                "type": "link",
                "title": title,
                "url": f"/d/{uid}",
                "keepTime": True,
                "includeVars": True,
                "tags": [],
            }
            for title, uid in dashboard.links.items()
        ],
        "panels": found,
    }


def _annotation(name: str, expr: str, title: str, colour: str) -> dict[str, Any]:
    return {
        "name": name,
        "datasource": _SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": expr,
        "titleFormat": title,
        "step": "60s",
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _row(row: PanelRow, number: int, top: int) -> dict[str, Any]:
    position = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
    return {
        "id": number,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": position,
        "panels": [],
    }


def panel_data(panel: Panel, number: int, position: dict[str, int], console: str = "") -> dict[str, Any]:
    """Return one panel in the form of Grafana's model."""
    found: dict[str, Any] = {
        "id": number,
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.description,
        "gridPos": position,
        "options": _options(panel),
    }
    if panel.kind is PanelKind.TEXT:
        return found
    links = {"links": [_console_link(panel, console)]} if console and _has_agent(panel) else {}
    return found | {
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": _defaults(panel) | links, "overrides": _overrides(panel)},
        "targets": [_target(query, chr(ord("A") + at), panel) for at, query in enumerate(panel.queries)],
    }


def _has_agent(panel: Panel) -> bool:
    """Return whether each series of a panel is of one agent."""
    return all("{{agent}}" in query.legend for query in panel.queries)


def _console_link(panel: Panel, console: str) -> dict[str, Any]:
    """Return the link of a series, or of a row of a table, to the runs of its agent."""
    agent = "${__data.fields.agent}" if panel.kind is PanelKind.TABLE else "${__field.labels.agent}"
    return {
        "title": f"Runs of {agent} in the console",
        "url": f"{console}/?agent={agent}",
        "targetBlank": True,
    }


def _target(query: Query, letter: str, panel: Panel) -> dict[str, Any]:
    now = panel.kind in (PanelKind.STAT, PanelKind.BARS, PanelKind.TABLE)
    return {
        "refId": letter,
        "datasource": _SOURCE,
        "expr": query.whole,
        "legendFormat": query.legend,
        "instant": now,
        "range": not now,
        "exemplar": panel.kind in (PanelKind.LINES, PanelKind.HEATMAP),
        "format": {PanelKind.HEATMAP: "heatmap", PanelKind.TABLE: "table"}.get(panel.kind, "time_series"),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    lowest = panel.steps[0][1] if panel.steps else "green"
    steps: list[dict[str, Any]] = [{"color": lowest, "value": None}]
    steps += [{"color": colour, "value": value} for value, colour in panel.steps[1:]]
    found: dict[str, Any] = {"unit": panel.unit.value, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind is PanelKind.LINES:
        custom: dict[str, Any] = {"fillOpacity": 30 if panel.stacked else 5, "showPoints": "never"}
        if panel.stacked:
            custom["stacking"] = {"mode": "normal", "group": "A"}
        if panel.line is not None:
            custom["thresholdsStyle"] = {"mode": "line"}
            steps.append({"color": "red", "value": panel.line})
        found |= {"custom": custom, "min": 0}
    return found


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """Return the colours of single series: green at 0."""
    found = []
    for name, colour in panel.colours.items():
        steps = [{"color": "green", "value": None}, {"color": colour, "value": 1}]
        thresholds = {"id": "thresholds", "value": {"mode": "absolute", "steps": steps}}
        found.append({"matcher": {"id": "byName", "options": name}, "properties": [thresholds]})
    return found


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case PanelKind.TEXT:
            return {"mode": "markdown", "content": panel.text}
        case PanelKind.LINES:
            legend = {
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
                "calcs": ["lastNotNull", "max"],
            }
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        case PanelKind.STAT | PanelKind.BARS:
            reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return (
                {"reduceOptions": reduce, "colorMode": "value"}
                if panel.kind is PanelKind.STAT
                else {"reduceOptions": reduce, "displayMode": "gradient", "orientation": "horizontal"}
            )
        case PanelKind.HEATMAP:
            return {"calculate": False, "yAxis": {"unit": panel.unit.value}, "cellGap": 1}
        case PanelKind.TABLE:
            return {"showHeader": True}
