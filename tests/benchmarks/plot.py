"""Draw the figures: `python -m tests.benchmarks.plot RESULTS.json PLOT.svg`. One picture for light and dark pages."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tests.benchmarks.cases import PLOTTED

_FIGURE = "cpu_us_per_turn"
_ABOUT = "What a turn costs beside the model: µs of processor time, less is better"
_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 760, 190, 90, 62, 26
_STYLE = """
.surface { fill: #fff }
text { font: 12px system-ui, sans-serif; fill: #1f2328; paint-order: stroke; stroke: #fff; stroke-width: 3px }
.small { font-size: 11px; fill: #59636e } .title { font-weight: 600; font-size: 13px }
.grid { stroke: #d1d9e0 } .span { stroke: #818b98; stroke-width: 2 }
.short { fill: #818b98 } .long { fill: #fff; stroke: #818b98; stroke-width: 2 }
.own { font-weight: 600 } .own.span, .own.long { stroke: #0969da } .own.short { fill: #0969da }
@media (prefers-color-scheme: dark) {
.surface { fill: #0d1117 } text { fill: #f0f6fc; stroke: #0d1117 } .small { fill: #9198a1 } .grid { stroke: #3d444d }
.long { fill: #0d1117 } .own.span, .own.long { stroke: #4493f8 } .own.short { fill: #4493f8 }
}"""

Point = tuple[str, bool, list[float | None]]
"""A title, whether it is ours, and a value for each plotted case; None where it was not measured."""


def draw(results: Path, picture: Path) -> None:
    """Read a JSON file of figures and write the picture."""
    picture.write_text(svg(json.loads(results.read_text(encoding="utf-8"))), encoding="utf-8")


def plotted(told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the workloads that are shown, as far as they were measured."""
    return [one for name in PLOTTED for one in told["workloads"] if one["name"].startswith(name)]


def points(told: Mapping[str, Any]) -> list[Point]:
    """Return who has figures, the quickest first."""
    found = []
    for one in told["contestants"]:
        figures = [case["contestants"].get(one["name"], {}) for case in plotted(told)]
        values = [figure[_FIGURE][0] if _FIGURE in figure else None for figure in figures]
        if any(values):
            found.append((one["title"], one["name"].startswith("ours"), values))
    return sorted(found, key=lambda point: next(filter(None, point[2])))


def svg(told: Mapping[str, Any]) -> str:
    """Return the picture: a line a contestant, a dot a case, on a logarithmic scale."""
    rows = points(told)
    machine = told["machine"]
    shown = [one["name"] for one in plotted(told)]
    note = f"{machine['python']}, {machine['cores']} cores, {machine['system']}, {machine['taken']}"
    height = _TOP + _ROW * len(rows) + 44
    values = [value for _, _, row in rows for value in row if value] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" role="img"',
        f' viewBox="0 0 {_WIDTH} {height}" aria-label="{_ABOUT}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="surface" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="12" y="20">{_ABOUT}</text>',
        *(
            f'<circle class="{kind}" cx="{x}" cy="38" r="5"/><text class="small" x="{x + 10}" y="42">{name}</text>'
            for kind, x, name in zip(("short", "long"), (18, 178), shown, strict=False)
        ),
        *_grid(low, max(high, low + 1), height),
        *(line for number, row in enumerate(rows) for line in _row(row, number, low, max(high, low + 1))),
        f'<text class="small" x="12" y="{height - 8}">{escape(note)}; logarithmic; ours with log and metrics on</text>',
        "</svg>",
    ]
    return "\n".join(drawn) + "\n"


def _x(value: float, low: int, high: int) -> float:
    share = (math.log10(value) - low) / (high - low)
    return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def _grid(low: int, high: int, height: int) -> Iterator[str]:
    for power in range(low, high + 1):
        x = _x(10**power, low, high)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP - 8}" y2="{height - 38}"/>'
        yield f'<text class="small" x="{x}" y="{height - 24}" text-anchor="middle">{10**power:,} µs</text>'


def _row(point: Point, number: int, low: int, high: int) -> Iterator[str]:
    title, ours, values = point
    y = _TOP + number * _ROW + 8
    own = " own" if ours else ""
    kinds = zip(("short", "long"), values, strict=False)
    places = {kind: _x(value, low, high) for kind, value in kinds if value}
    left, right = min(places.values()), max(places.values())
    yield f'<text class="{own.strip()}" x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(title)}</text>'
    yield f'<line class="span{own}" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
    for kind, place in reversed(places.items()):
        yield f'<circle class="{kind}{own}" cx="{place}" cy="{y}" r="5"/>'
    yield f'<text class="small" x="{right + 10}" y="{y + 4}">{label(values)}</text>'


def label(values: Sequence[float | None]) -> str:
    """Return the values beside a line."""
    return " / ".join(f"{value:,.0f}" if value else "not measured" for value in values)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
