"""Render the dashboards without Grafana: every panel from a live Prometheus, on one self-contained page."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from html import escape

from orchestrator.errors import ConfigError
from orchestrator.ops import picture
from orchestrator.ops.live_source import Prometheus, TimeWindow
from orchestrator.ops.panel import Dashboard, Panel, PanelKind

_STYLE = """
body{font:13px/1.35 system-ui,sans-serif;margin:14px;background:#f4f5f6;color:#222}
h1{font-size:18px;margin:4px 0}h2{font-size:14px;margin:16px 0 6px;border-bottom:1px solid #bbb}
section{display:grid;grid-template-columns:repeat(24,1fr);gap:8px}
article{background:#fff;border:1px solid #ddd;border-radius:4px;padding:6px 8px;overflow:hidden}
h3{font-size:12px;margin:0 0 4px}svg{width:100%;height:auto;display:block}
svg text{font-size:9px;fill:#555}.grid{stroke:#e4e4e4}
ul{list-style:none;margin:4px 0 0;padding:0;font-size:10.5px;columns:2}li{break-inside:avoid}
i{display:inline-block;width:8px;height:8px;margin-right:4px;border-radius:2px}
.figure{font-size:24px;margin:2px 0;font-weight:600}.figure small{font-size:11px;color:#555;display:block}
.figure b,li b{white-space:nowrap}
.bar{position:relative;margin:3px 0;background:#eee;font-size:11px;height:17px;border-radius:2px}
.bar span{position:absolute;height:100%;opacity:.55}.bar em,.bar b{position:absolute;font-style:normal;padding:1px 5px}
.bar b{right:0}table{font-size:11px;border-collapse:collapse;width:100%}td,th{border-top:1px solid #eee;padding:1px 4px;
text-align:left}td:last-child{text-align:right}.none{color:#888;font-size:11px}
.alert{background:#fbe3e3;border-left:4px solid #c22;padding:3px 8px;margin:3px 0;font-size:12px}
.alerts{max-height:150px;overflow-y:auto}
.warning{background:#fdf0d8;border-color:#c77a00}.info{background:#e8eef7;border-color:#2f6fb5}
"""


def page(dashboards: Iterable[Dashboard], source: Prometheus, window: TimeWindow) -> str:
    """Return a whole HTML page. Raises ConfigError if Prometheus does not answer."""
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(window.end))
    parts = [_alerts(source)]
    for dashboard in dashboards:
        parts.append(f"<h1>{escape(dashboard.title)}</h1><p>{escape(dashboard.description)}</p>")
        for row in dashboard.rows:
            inside = "".join(_panel(panel, source, window) for panel in row.panels)
            parts.append(f"<h2>{escape(row.title)}</h2><section>{inside}</section>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Orchestrator</title>'
        f"<style>{_STYLE}</style><body><p>As of {now}, the last {window.seconds / 60:.0f} min.</p>"
        f"{''.join(parts)}</body></html>\n"
    )


def _alerts(source: Prometheus) -> str:
    lines = []
    for alert in source.get("alerts")["alerts"]:
        labels = alert["labels"]
        severity = labels.get("severity", "")
        if alert["state"] == "firing" and severity != "none":
            words = (
                f"<b>{escape(labels['alertname'])}</b> {escape(alert['annotations'].get('description', ''))}"
            )
            lines.append(f'<div class="alert {escape(severity)}">{words}</div>')
    told = "".join(sorted(lines)) or '<p class="none">none</p>'
    return f'<h1>Firing alerts: {len(lines)}</h1><div class="alerts">{told}</div>'


def _panel(panel: Panel, source: Prometheus, window: TimeWindow) -> str:
    head = f'<article style="grid-column:span {panel.width}"><h3 title="{escape(panel.description)}">'
    return f"{head}{_title(panel.title)}</h3>{_body(panel, source, window)}</article>"


def _title(text: str) -> str:
    """Return the title of a panel, whose window, such as "(3 d)", stays on one line."""
    return re.sub(r" (?=[^()]*\))", "&nbsp;", escape(text))


def _body(panel: Panel, source: Prometheus, window: TimeWindow) -> str:
    if panel.kind is PanelKind.TEXT:
        return _words(panel.text)
    try:
        lines = source.lines(panel, window)
    except ConfigError as error:
        return f'<p class="none">{escape(str(error))}</p>'
    if not lines:
        return f'<p class="none">{escape(panel.empty_ok or "no data")}</p>'
    busy = [(name, line) for name, line in lines if any(value for _, value in line.points)]
    return _DRAWN[panel.kind](panel, busy or lines, window)


def _chart(panel: Panel, lines: picture.Lines, window: TimeWindow) -> str:
    return picture.chart(panel, lines, window.end - window.seconds, window.end)


_DRAWN: dict[PanelKind, Callable[[Panel, picture.Lines, TimeWindow], str]] = {
    PanelKind.LINES: _chart,
    PanelKind.STAT: lambda panel, lines, _: picture.figures(panel, lines),
    PanelKind.BARS: lambda panel, lines, _: picture.bars(panel, lines),
    PanelKind.TABLE: lambda panel, lines, _: picture.table(panel, lines),
    PanelKind.HEATMAP: lambda _, lines, __: picture.heatmap(lines),
}


def _words(markdown: str) -> str:
    """Return one of our texts as HTML: paragraphs, bold words, and tables."""
    rows, said = [], []
    for line in markdown.splitlines():
        if line.startswith("|---"):
            continue
        if line.startswith("|"):
            cells = "".join(f"<td>{escape(cell.strip())}</td>" for cell in line.strip("|").split("|"))
            rows.append(f"<tr>{cells}</tr>")
        elif line:
            said.append("<p>" + re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(line)) + "</p>")
    return "".join(said) + f"<table>{''.join(rows)}</table>"
