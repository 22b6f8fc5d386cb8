"""Render the dashboards without Grafana: every panel from a live Prometheus, on one self-contained page."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.ops.panel import Dashboard, Panel, PanelKind, PanelUnit


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """One series: labels, and (Unix time, value) without the gaps in Prometheus' data."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """A period of time in seconds, and its resolution."""

    end: float
    seconds: float
    step: float
    variables: Mapping[str, str]
    """job, instance, machine, agent: regular expressions."""
    rate: str = "5m"
    """The value of $__rate_interval."""

    def expression(self, text: str) -> str:
        """Return an expression with the values of its variables."""
        found = text.replace("$__rate_interval", self.rate)
        for name in ("job", "instance", "machine", "agent"):
            found = found.replace(f"${name}", self.variables.get(name, ".*"))
        return found


class Prometheus:
    """The server at `address`, such as http://127.0.0.1:9090. Raises ConfigError if it cannot be queried."""

    def __init__(self, address: str, timeout: float = 10) -> None:
        if not address.startswith(("http://", "https://")):
            raise ConfigError(f"{address!r} is no address of a Prometheus: http://HOST:PORT")
        self._address = address.rstrip("/")
        self._timeout = timeout

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer."""
        url = f"{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=self._timeout) as answer:  # noqa: S310 - the scheme is checked
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                said = json.loads(error.read() or b"{}").get("error", error.reason)
            raise ConfigError(f"Prometheus refuses {parameters.get('query', path)!r}: {said}") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"Prometheus at {self._address} does not answer: {error}") from error

    def instant(self, expression: str, at: float) -> list[TimeSeries]:
        """Return the values at one moment."""
        data = self.get("query", query=expression, time=f"{at:.3f}")
        return [_series(each["metric"], [each["value"]]) for each in data["result"]]

    def range(self, expression: str, window: TimeWindow) -> list[TimeSeries]:
        """Return series over a window."""
        start, end = f"{window.end - window.seconds:.3f}", f"{window.end:.3f}"
        data = self.get("query_range", query=expression, start=start, end=end, step=f"{window.step:g}")
        return [_series(each["metric"], each["values"]) for each in data["result"]]

    def lines(self, panel: Panel, window: TimeWindow) -> list[tuple[str, TimeSeries]]:
        """Return the content of a panel: legend and series, without series that have no number."""
        found: list[tuple[str, TimeSeries]] = []
        for query in panel.queries:
            expression = window.expression(query.whole)
            if panel.kind in (PanelKind.LINES, PanelKind.HEATMAP):
                answer = self.range(expression, window)
            else:
                answer = self.instant(expression, window.end)
            found += [(legend(query.legend, line.labels), line) for line in answer if line.points]
        return found


def legend(template: str, labels: Mapping[str, str]) -> str:
    """Return a legend with the values of its labels."""
    found = template
    for name, value in labels.items():
        found = found.replace("{{" + name + "}}", value)
    return found


def _series(labels: Mapping[str, str], values: list[tuple[float, str]]) -> TimeSeries:
    numbers = ((float(at), float(value)) for at, value in values)
    return TimeSeries(labels, tuple((at, value) for at, value in numbers if math.isfinite(value)))


Lines = Sequence[tuple[str, TimeSeries]]

COLOURS = (
    "#2f6fb5",
    "#c8562b",
    "#3c8c4a",
    "#8a5fb0",
    "#b08a1e",
    "#c04a82",
    "#3a9aa6",
    "#7a6a58",
    "#666",
    "#a33",
)
_WIDTH, _HEIGHT = 420, 150
_LEFT, _BOTTOM, _TOP = 46, 18, 6
_MANY = 10
_LENGTHS = ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"))
MOST_LINES = 12
"""Maximum drawn lines of a panel; the rest is counted."""


def shown(value: float, unit: PanelUnit) -> str:
    """Return a figure in a readable form."""
    match unit:
        case PanelUnit.SHARE:
            return f"{100 * value:,.0f} %" if abs(value) >= _MANY else f"{100 * value:.3g} %"
        case PanelUnit.SECONDS:
            for seconds, name in _LENGTHS:
                if abs(value) >= seconds:
                    return f"{value / seconds:.3g} {name}"
            return f"{value * 1e6:.3g} µs" if value else "0 s"
        case PanelUnit.BYTES:
            return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
        case PanelUnit.RATE:
            return f"{value:.3g}/s"
        case _:
            return _scaled(value, 1000, ("", "k", "M", "G", "T")).rstrip()


def _scaled(value: float, base: int, names: tuple[str, ...]) -> str:
    size = value
    for name in names:
        if abs(size) < base:
            return f"{size:.3g} {name}"
        size /= base
    return f"{value:.3g}"


def chart(panel: Panel, lines: Lines, start: float, end: float) -> str:
    """Return lines with two axes, stacked if the panel asks for that."""
    drawn = _stacked(lines) if panel.stacked else [(name, line.points) for name, line in lines]
    top = max((value for _, points in drawn for _, value in points), default=0)
    if panel.line is not None and top >= panel.line / 2:
        top = max(top, panel.line * 1.1)
    top = top or 1
    span = max(end - start, 1)

    def coordinates(at: float, value: float) -> str:
        x = _LEFT + (at - start) / span * (_WIDTH - _LEFT - 4)
        y = _HEIGHT - _BOTTOM - max(value, 0) / top * (_HEIGHT - _BOTTOM - _TOP)
        return f"{x:.1f},{y:.1f}"

    parts = _axes(panel, start, end, top)
    for number, (_, points) in reversed(list(enumerate(drawn[:MOST_LINES]))):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(coordinates(at, value) for at, value in points)
        if panel.stacked:
            floor = f"{coordinates(points[-1][0], 0)} {coordinates(points[0][0], 0)}"
            parts.append(f'<polygon points="{path} {floor}" fill="{colour}" fill-opacity=".75"/>')
        else:
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
    if panel.line is not None and panel.line <= top:
        ends = f"{coordinates(start, panel.line)} {coordinates(end, panel.line)}"
        parts.append(f'<polyline points="{ends}" stroke="#c22" stroke-dasharray="4 3"/>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(parts)}</svg>{legend_list(panel, lines)}'


def _stacked(lines: Lines) -> list[tuple[str, tuple[tuple[float, float], ...]]]:
    """Return each line on top of those before it."""
    floor: dict[float, float] = {}
    found = []
    for name, line in lines:
        for at, value in line.points:
            floor[at] = floor.get(at, 0) + value
        found.append((name, tuple((at, floor[at]) for at, _ in line.points)))
    return found


def _axes(panel: Panel, start: float, end: float, top: float) -> list[str]:
    base = _HEIGHT - _BOTTOM
    found = []
    for share in (0, 0.5, 1):
        y = base - share * (base - _TOP)
        found.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 4}" y1="{y:.0f}" y2="{y:.0f}" class="grid"/>')
        label = escape(shown(share * top, panel.unit))
        found.append(f'<text x="{_LEFT - 4}" y="{y + 3:.0f}" text-anchor="end">{label}</text>')
    for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
        x = _LEFT + share * (_WIDTH - _LEFT - 4)
        clock = time.strftime("%H:%M:%S", time.localtime(start + share * (end - start)))
        found.append(f'<text x="{x:.0f}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{clock}</text>')
    return found


def legend_list(panel: Panel, lines: Lines) -> str:
    """Return names with their last values."""
    rows = []
    for number, (name, line) in enumerate(lines[:MOST_LINES]):
        mark = f'<i style="background:{COLOURS[number % len(COLOURS)]}"></i>'
        rows.append(f"<li>{mark}{escape(name)} <b>{escape(shown(line.points[-1][1], panel.unit))}</b></li>")
    if len(lines) > MOST_LINES:
        rows.append(f"<li>and {len(lines) - MOST_LINES} more</li>")
    return f"<ul>{''.join(rows)}</ul>"


def figures(panel: Panel, lines: Lines) -> str:
    """Return one large figure for each line, in the colour of its step."""
    found = []
    for name, line in lines[:MOST_LINES]:
        value = line.points[-1][1]
        colour = _colour(panel, value, name)
        words = f"<b>{escape(shown(value, panel.unit))}</b><small>{escape(name)}</small>"
        found.append(f'<p class="figure" style="color:{colour}">{words}</p>')
    return "".join(found)


def bars(panel: Panel, lines: Lines) -> str:
    """Return one bar for each line; the whole width is the largest value, or the highest step."""
    most = max([line.points[-1][1] for _, line in lines] + [step for step, _ in panel.steps] + [1e-9])
    found = []
    for name, line in lines[:MOST_LINES]:
        value = line.points[-1][1]
        width = max(0.5, 100 * value / most)
        found.append(
            f'<div class="bar"><span style="width:{width:.1f}%;background:{_colour(panel, value)}"></span>'
            f"<em>{escape(name)}</em><b>{escape(shown(value, panel.unit))}</b></div>"
        )
    return "".join(found)


def table(panel: Panel, lines: Lines) -> str:
    """Return names and values."""
    ordered = sorted(lines, key=lambda item: -item[1].points[-1][1])
    rows = (
        f"<tr><td>{escape(name)}</td><td>{escape(shown(line.points[-1][1], panel.unit))}</td></tr>"
        for name, line in ordered
    )
    return f"<table>{''.join(rows)}</table>"


def heatmap(lines: Lines) -> str:
    """Return the buckets of a histogram over time: rows are upper bounds, darker is more."""
    ordered = sorted(lines, key=lambda item: float(item[0]))
    # Return (time, row) -> number of values in that bucket and not in a lower one.
    below: dict[float, float] = {}
    cells: dict[tuple[float, int], float] = {}
    for row, (_, line) in enumerate(ordered):
        for at, value in line.points:
            cells[at, row] = value - below.get(at, 0)
            below[at] = value
    most = max(cells.values(), default=0) or 1
    rows = [name for name, _ in ordered]
    height = (_HEIGHT - _BOTTOM - _TOP) / max(len(rows), 1)
    times = sorted({at for at, _ in cells})
    width = (_WIDTH - _LEFT - 4) / max(len(times), 1)
    parts = []
    for (at, row), value in cells.items():
        if value <= 0:
            continue
        x = _LEFT + times.index(at) * width
        y = _HEIGHT - _BOTTOM - (row + 1) * height
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width + 0.3:.1f}" height="{height:.1f}" fill="#2f6fb5"'
            f' fill-opacity="{0.15 + 0.85 * value / most:.2f}"/>'
        )
    for row in range(0, len(rows), max(1, len(rows) // 6)):
        y = _HEIGHT - _BOTTOM - (row + 0.5) * height + 3
        parts.append(f'<text x="{_LEFT - 4}" y="{y:.0f}" text-anchor="end">{escape(rows[row])}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(parts)}</svg>'


def _colour(panel: Panel, value: float, name: str = "") -> str:
    named = {"red": "#c22", "orange": "#c77a00", "green": "#2d8a3e", "blue": "#2f6db5"}
    if value > 0 and name in panel.colours:
        return named[panel.colours[name]]
    found = "#333"
    for step, colour in panel.steps:
        if value >= step or found == "#333":
            found = named[colour]
    return found


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
    alerts = f'<h1>Firing alerts: {len(lines)}</h1><div class="alerts">{told}</div>'
    parts = [alerts]
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


def _panel(panel: Panel, source: Prometheus, window: TimeWindow) -> str:
    head = f'<article style="grid-column:span {panel.width}"><h3 title="{escape(panel.description)}">'
    return f"{head}{_title(panel.title)}</h3>{_body(panel, source, window)}</article>"


def _title(text: str) -> str:
    """Return the title of a panel, whose window, such as "(3 d)", stays on one line."""
    return re.sub(r" (?=[^()]*\))", "&nbsp;", escape(text))


def _body(panel: Panel, source: Prometheus, window: TimeWindow) -> str:
    if panel.kind is PanelKind.TEXT:
        # One of our texts as HTML: paragraphs, bold words, and tables.
        markdown = panel.text
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
    try:
        lines = source.lines(panel, window)
    except ConfigError as error:
        return f'<p class="none">{escape(str(error))}</p>'
    if not lines:
        return f'<p class="none">{escape(panel.empty_ok or "no data")}</p>'
    busy = [(name, line) for name, line in lines if any(value for _, value in line.points)]
    return _DRAWN[panel.kind](panel, busy or lines, window)


def _chart(panel: Panel, lines: Lines, window: TimeWindow) -> str:
    return chart(panel, lines, window.end - window.seconds, window.end)


_DRAWN: dict[PanelKind, Callable[[Panel, Lines, TimeWindow], str]] = {
    PanelKind.LINES: _chart,
    PanelKind.STAT: lambda panel, lines, _: figures(panel, lines),
    PanelKind.BARS: lambda panel, lines, _: bars(panel, lines),
    PanelKind.TABLE: lambda panel, lines, _: table(panel, lines),
    PanelKind.HEATMAP: lambda _, lines, __: heatmap(lines),
}
