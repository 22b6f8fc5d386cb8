"""Write dashboards as the JSON that Grafana imports: plain data without an SDK, limited to the features that we use."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.ops.panel import Dashboard, Panel, PanelKind, PanelRow, Query

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


def grafana_json(dashboard: Dashboard) -> str:
    """Return the file that Grafana imports."""
    return json.dumps(dashboard_data(dashboard), indent=1, ensure_ascii=False) + "\n"


def dashboard_data(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard in the form of Grafana's model."""
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
            found.append(panel_data(panel, len(found) + 1, position))
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


def panel_data(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
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
    return found | {
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "targets": [_target(query, chr(ord("A") + at), panel) for at, query in enumerate(panel.queries)],
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
