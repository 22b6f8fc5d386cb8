"""The style of all drawings: the one table of statuses, and colours as custom properties, light and dark.

A status has a word, a shape and colours, so that it never depends on colour alone. Pages, drawings and the terminal use
the table. A page that shows drawings includes `stylesheet()` once and may set other values for the properties. The
colours are those of the console: at least 4.5:1 for text on the surface, at least 3:1 for lines that matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

# ---- statuses ----


class StatusStyle(NamedTuple):
    """The appearance of a status."""

    name: str
    """Also the name of its colour in style sheets."""
    word: str
    shape: str
    """Body of an SVG of 10 by 10."""
    light: str
    """Colour on a light surface."""
    dark: str
    """Colour on a dark surface."""
    terminal: str
    """Name of its colour in a terminal, as rich knows it."""


_FILLED: Final = 'fill="currentColor"'
_RING: Final = 'fill="none" stroke="currentColor"'
STATUSES: Final[Mapping[str, StatusStyle]] = {
    status.name: status
    for status in (
        StatusStyle(
            "running",
            "Running",
            f'<circle cx="5" cy="5" r="3.6" {_RING} stroke-width="1.8"/>'
            f'<path d="M5 1.4A3.6 3.6 0 0 1 8.6 5H5z" {_FILLED}/>',
            "#1d63d8",
            "#74a8ff",
            "bright_blue",
        ),
        StatusStyle(
            "waiting",
            "Waiting for a person",
            f'<path d="M5 .4 9.6 5 5 9.6.4 5z" {_FILLED}/>',
            "#965a00",
            "#e8b04a",
            "yellow",
        ),
        StatusStyle(
            "paused",
            "Parked",
            f'<rect x="1.8" y="1.5" width="2.4" height="7" rx=".8" {_FILLED}/>'
            f'<rect x="5.8" y="1.5" width="2.4" height="7" rx=".8" {_FILLED}/>',
            "#5a6478",
            "#a3adbf",
            "cyan",
        ),
        StatusStyle(
            "orphaned",
            "No owner",
            f'<circle cx="5" cy="5" r="3.8" {_RING} stroke-width="1.6" stroke-dasharray="2.2 1.7"/>',
            "#c4262e",
            "#f4797e",
            "red",
        ),
        StatusStyle(
            "completed",
            "Completed",
            f'<circle cx="5" cy="5" r="4.2" {_FILLED}/>',
            "#1a7a43",
            "#55c285",
            "green",
        ),
        StatusStyle(
            "partial",
            "Partial",
            f'<circle cx="5" cy="5" r="3.6" {_RING} stroke-width="1.4"/>'
            f'<path d="M5 1.4a3.6 3.6 0 0 1 0 7.2z" {_FILLED}/>',
            "#56700f",
            "#a9c456",
            "bright_green",
        ),
        StatusStyle(
            "budget_exceeded",
            "Over budget",
            f'<path d="M5 .8 9.6 9H.4z" {_FILLED}/>',
            "#b84a0a",
            "#f0935a",
            "dark_orange",
        ),
        StatusStyle(
            "no_progress",
            "No progress",
            f'<path d="M1.4 1h7.2L5 5l3.6 4H1.4L5 5z" {_FILLED}/>',
            "#9c2b9c",
            "#df86df",
            "magenta",
        ),
        StatusStyle(
            "failed",
            "Failed",
            '<path d="m2 2 6 6M8 2 2 8" fill="none" stroke="currentColor" stroke-width="2.1" '
            'stroke-linecap="round"/>',
            "#c4262e",
            "#f4797e",
            "red",
        ),
        StatusStyle(
            "cancelled",
            "Cancelled",
            f'<rect x="1.3" y="1.3" width="7.4" height="7.4" rx="1.6" {_FILLED}/>',
            "#626a78",
            "#98a1af",
            "bright_black",
        ),
        StatusStyle(
            "rejected",
            "Rejected",
            f'<circle cx="5" cy="5" r="3.8" {_RING} stroke-width="1.5"/>'
            '<path d="M2.4 7.6 7.6 2.4" fill="none" stroke="currentColor" stroke-width="1.5"/>',
            "#85543f",
            "#cf9c86",
            "orange4",
        ),
    )
}
"""Name -> status: running, waiting, paused, orphaned, and the outcomes."""


# ---- style sheets ----


_LIGHT = {
    "surface": "#ffffff", "ink": "#15181e", "ink-2": "#454c59", "ink-3": "#646c7a", "line": "#868e9b",
    "faint": "#c9ced6", "box": "#ffffff", "border": "#b9bfc9", "heat": "#6366d8",
}  # fmt: skip
_LIGHT_TIME = {
    "model": "#6463d8", "model-2": "#dcdcf8", "tool": "#13908a", "tool-2": "#cdebe8", "people": "#bf7e0a",
    "people-2": "#f8e6bd", "work": "#858ea0", "work-2": "#e6e9ee", "down": "#d4474d", "down-2": "#fae3e4",
    "rule": "#e3e6eb",
}  # fmt: skip
"""Kinds of time, a second set beside the statuses, and lines between lanes."""
_DARK_TIME = {
    "model": "#8583f2", "model-2": "#2a2a58", "tool": "#2fb3a9", "tool-2": "#123f3c", "people": "#e3a93c",
    "people-2": "#463414", "work": "#6b7484", "work-2": "#2a2f39", "down": "#e0666b", "down-2": "#48252a",
    "rule": "#262a33",
}  # fmt: skip
_DARK = {
    "surface": "#14161c", "ink": "#e9ebef", "ink-2": "#b4bbc7", "ink-3": "#8d95a3", "line": "#757d8b",
    "faint": "#4a515d", "box": "#191c23", "border": "#444b57", "heat": "#7c7ff0",
}  # fmt: skip
_LIGHT_STATUS = {status.name: status.light for status in STATUSES.values()}
_DARK_STATUS = {status.name: status.dark for status in STATUSES.values()}

_RULES = """
.fsm-drawing{font-family:Inter,system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;color:var(--fsm-ink)}
.fsm-drawing text{fill:currentColor}
.fsm-drawing .surface{fill:var(--fsm-surface)}
.fsm-graph .box{fill:var(--fsm-box);stroke:var(--fsm-border);stroke-width:1.2}
.fsm-graph .tint,.fsm-graph .ring{fill:none;stroke:none}
.fsm-graph .name{font-size:12.5px;font-weight:600}
.fsm-graph .more{font-size:11px;color:var(--fsm-ink-3)}
.fsm-graph .edge{fill:none;stroke:var(--fsm-line);stroke-width:1.3}
.fsm-graph .head{fill:var(--fsm-line)}
.fsm-graph .spine .edge,.fsm-graph .taken .edge{stroke:var(--fsm-ink-2)}
.fsm-graph .spine .head,.fsm-graph .taken .head{fill:var(--fsm-ink-2)}
.fsm-graph .spine .edge{stroke-width:1.8}
.fsm-graph .unused .edge,.fsm-graph .failure .edge{stroke:var(--fsm-faint)}
.fsm-graph .unused .head,.fsm-graph .failure .head{fill:var(--fsm-faint)}
.fsm-graph .failure .edge{stroke-width:1.2;stroke-dasharray:2 3}
.fsm-graph .failure.taken .edge{stroke:var(--fsm-failed);stroke-width:1.6;stroke-dasharray:4 3}
.fsm-graph .failure.taken .head{fill:var(--fsm-failed)}
.fsm-graph .label{font-size:11px;color:var(--fsm-ink-2)}
.fsm-graph .label text{paint-order:stroke;stroke:var(--fsm-surface);stroke-width:3px;stroke-linejoin:round}
.fsm-graph .label.unused,.fsm-graph .label.failure{color:var(--fsm-ink-3)}
.fsm-graph .label.failure.taken{color:var(--fsm-failed)}
.fsm-graph .times{font-weight:600;fill:var(--fsm-ink)}
.fsm-graph .failure .times{fill:currentColor}
.fsm-graph .unvisited .name{color:var(--fsm-ink-3);font-weight:540}
.fsm-graph .unvisited .box{stroke:var(--fsm-faint)}
.fsm-graph .start{fill:var(--fsm-ink-2)}
.fsm-graph .heat-1 .tint{fill:var(--fsm-heat);fill-opacity:.08}
.fsm-graph .heat-2 .tint{fill:var(--fsm-heat);fill-opacity:.2}
.fsm-graph .heat-3 .tint{fill:var(--fsm-heat);fill-opacity:.38}
.fsm-graph .heat-1 .more,.fsm-graph .heat-2 .more,.fsm-graph .heat-3 .more{color:var(--fsm-ink)}
.fsm-graph .heat-2 .box,.fsm-graph .heat-3 .box{stroke:var(--fsm-heat)}
.fsm-graph .current .box{stroke-width:1.6}
.fsm-graph .current .tint{fill-opacity:.1}
.fsm-graph .current .ring{stroke-width:3;stroke-opacity:.28}
"""

_TIME_RULES = """
.fsm-timeline .text,.fsm-plot .text{font-size:10.5px;color:var(--fsm-ink-2);font-variant-numeric:tabular-nums}
.fsm-timeline .lane{font-size:11.5px;color:var(--fsm-ink-2)}
.fsm-timeline .hidden{fill:var(--fsm-ink-3)}
.fsm-drawing .head{font-size:12.5px;font-weight:600}
.fsm-timeline .axis,.fsm-timeline .facts,.fsm-timeline .turn{color:var(--fsm-ink-3)}
.fsm-timeline .cut{color:var(--fsm-ink-2);font-weight:600}
.fsm-timeline .rule,.fsm-timeline .grid{fill:none;stroke:var(--fsm-rule);stroke-width:1}
.fsm-timeline path.turn{fill:none;stroke:var(--fsm-faint);stroke-width:1}
.fsm-timeline .gap{fill:var(--fsm-work-2);fill-opacity:.45}
.fsm-timeline .break{fill:none;stroke:var(--fsm-surface);stroke-width:5}
.fsm-timeline .stroke{fill:none;stroke:var(--fsm-faint);stroke-width:1.2}
.fsm-timeline .thread{fill:none;stroke:var(--fsm-model);stroke-width:1.4;stroke-dasharray:2 3}
.fsm-timeline .process .thread{stroke:var(--fsm-work);stroke-dasharray:none}
.fsm-timeline .model>rect{fill:var(--fsm-model)}
.fsm-timeline .tool>rect,.fsm-timeline .child>rect{fill:var(--fsm-tool)}
.fsm-timeline .people>rect{fill:var(--fsm-people)}
.fsm-timeline .work>rect{fill:var(--fsm-work)}
.fsm-timeline .idle>rect{fill:var(--fsm-work-2)}
.fsm-timeline .child.child>rect{fill:var(--fsm-surface);stroke:var(--fsm-model);stroke-width:1.4}
.fsm-timeline .span.people.people>rect{fill:var(--fsm-people-2);stroke:var(--fsm-people);stroke-width:1}
.fsm-timeline .span.key.people>rect{fill:var(--fsm-people);stroke:none}
.fsm-timeline .state.model>rect{fill:var(--fsm-model-2)}
.fsm-timeline .state.tool>rect{fill:var(--fsm-tool-2)}
.fsm-timeline .state.people>rect{fill:var(--fsm-people-2);stroke:none}
.fsm-timeline .state.work>rect.bar{fill:var(--fsm-work-2)}
.fsm-timeline .failed>rect{fill:var(--fsm-down-2);stroke:var(--fsm-down);stroke-width:1.2}
.fsm-timeline .failed>.tick{fill:var(--fsm-down);stroke:none}
.fsm-timeline .lost>rect,.fsm-timeline .unknown>rect{fill:var(--fsm-model-2)}
.fsm-timeline .lost>.hatch,.fsm-timeline .unknown>.hatch{fill:none;stroke:var(--fsm-model);stroke-width:1.6}
.fsm-timeline .tools.lost>rect{fill:var(--fsm-tool-2)}
.fsm-timeline .tools.lost>.hatch{stroke:var(--fsm-tool)}
.fsm-timeline .down>rect{fill:var(--fsm-down-2);stroke:var(--fsm-down);stroke-width:1;stroke-dasharray:3 3}
.fsm-timeline .key.down>rect{fill:var(--fsm-down);stroke:none}
.fsm-timeline .repeated>rect{fill:var(--fsm-down)}
.fsm-timeline .note{paint-order:stroke;stroke:var(--fsm-surface);stroke-width:3px;stroke-linejoin:round}
.fsm-timeline .text.on{color:var(--fsm-ink)}
.fsm-timeline .note.failed,.fsm-timeline .note.down{color:var(--fsm-failed)}
.fsm-timeline .on.failed,.fsm-timeline .on.down{color:var(--fsm-failed)}
.fsm-timeline .note.warning,.fsm-timeline .note.decision,.fsm-timeline .on.people{color:var(--fsm-waiting)}
.fsm-timeline .sign-form{fill:var(--fsm-people);stroke:var(--fsm-surface);stroke-width:1}
.fsm-timeline .crash .sign-form{fill:none;stroke:var(--fsm-failed);stroke-width:2.2}
.fsm-timeline .resumed .sign-form{fill:var(--fsm-ink-2)}
.fsm-timeline .failed .sign-form{fill:var(--fsm-down)}
.fsm-timeline .warning>rect{fill:var(--fsm-people)}
.fsm-timeline .budget>rect{fill:var(--fsm-work-2)}
.fsm-timeline .level-1>rect{fill:var(--fsm-work-2)}
.fsm-timeline .level-2>rect{fill:var(--fsm-model-2)}
.fsm-timeline .level-3>rect{fill:var(--fsm-model);fill-opacity:.45}
.fsm-timeline .level-4>rect{fill:var(--fsm-model);fill-opacity:.75}
.fsm-timeline .level-5>rect{fill:var(--fsm-people)}
"""

_PLOT_RULES = """
.fsm-plot .axis,.fsm-plot .axis-name{color:var(--fsm-ink-3)}
.fsm-plot .axis-name{font-size:11px;color:var(--fsm-ink-2)}
.fsm-plot .name{font-size:11.5px;color:var(--fsm-ink-2)}
.fsm-plot .grid,.fsm-plot .rule{fill:none;stroke:var(--fsm-rule);stroke-width:1}
.fsm-plot .base{fill:none;stroke:var(--fsm-line);stroke-width:1}
.fsm-plot .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-opacity:.7}
.fsm-plot .mark{stroke:var(--fsm-surface);stroke-width:1}
.fsm-plot .mark.open{fill:none;stroke-width:2}
.fsm-plot .note{paint-order:stroke;stroke:var(--fsm-surface);stroke-width:3px;stroke-linejoin:round}
"""


def _plot_colours() -> str:
    names = ("model", "tool", "people", "failed", "completed", "work")
    return "\n".join(
        f".fsm-plot .{name} .mark{{fill:var(--fsm-{name})}}.fsm-plot .{name} .line,.fsm-plot .{name} .open"
        f"{{fill:none;stroke:var(--fsm-{name})}}"
        for name in names
    )


def _properties(colours: dict[str, str]) -> str:
    return ";".join(f"--fsm-{name}:{colour}" for name, colour in colours.items())


def _weights() -> str:
    """Return the width of edges that were taken 2, 4, 8, … times."""
    return "\n".join(
        f".fsm-graph .weight-{n} .edge{{stroke-width:{1.6 + 0.35 * n:.2f}}}" for n in range(1, 7)
    )


def _statuses() -> str:
    """Return the colours of the present state."""
    return "\n".join(
        f".fsm-graph .{name} .box,.fsm-graph .{name} .ring{{stroke:var(--fsm-{name})}}"
        f".fsm-graph .{name} .tint{{fill:var(--fsm-{name})}}.fsm-graph .{name} .more{{color:var(--fsm-{name})}}"
        for name in sorted(STATUSES)
    )


def _rules() -> str:
    return f"{_RULES}{_weights()}\n{_statuses()}{_TIME_RULES}{_PLOT_RULES}{_plot_colours()}\n"


@cache
def stylesheet() -> str:
    """Return the CSS of every drawing.

    The colours follow the setting of the browser. An attribute `data-theme` (`light`, `dark`) of an element around a
    drawing overrides it.
    """
    light = _properties(_LIGHT | _LIGHT_TIME | _LIGHT_STATUS)
    dark = _properties(_DARK | _DARK_TIME | _DARK_STATUS)
    themes = (
        f".fsm-drawing{{{light}}}\n"
        f"@media (prefers-color-scheme:dark){{.fsm-drawing{{{dark}}}}}\n"
        f'[data-theme="light"] .fsm-drawing{{{light}}}\n'
        f'[data-theme="dark"] .fsm-drawing{{{dark}}}'
    )
    return themes + _rules()


@cache
def light_stylesheet() -> str:
    """Return the CSS with light colours in place of custom properties, for programs that know none."""
    colours = _LIGHT | _LIGHT_TIME | _LIGHT_STATUS
    return re.sub(r"var\(--fsm-([\w-]+)\)", lambda found: colours[found[1]], _rules())


@cache
def status_stylesheet() -> str:
    """Return the CSS of statuses outside of drawings: a property each, and a class for text (`s-`) and areas (`o-`)."""
    light, dark = (
        ";".join(f"--{name}:{colour}" for name, colour in colours.items())
        for colours in (_LIGHT_STATUS, _DARK_STATUS)
    )
    classes = "\n".join(
        f".s-{name}{{color:var(--{name})}}.o-{name}{{fill:var(--{name})}}" for name in sorted(STATUSES)
    )
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{classes}\n"
