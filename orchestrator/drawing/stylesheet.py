"""The style of all drawings: colours as custom properties, light and dark.

A page that shows drawings includes `stylesheet()` once and may set other values for the properties. The colours are
those of the console: at least 4.5:1 for text on the surface, at least 3:1 for lines that matter.
"""

from __future__ import annotations

from functools import cache

_LIGHT = {
    "surface": "#ffffff", "ink": "#15181e", "ink-2": "#454c59", "ink-3": "#646c7a", "line": "#868e9b",
    "faint": "#c9ced6", "box": "#ffffff", "border": "#b9bfc9", "heat": "#6366d8", "running": "#1d63d8",
    "completed": "#1a7a43", "waiting": "#965a00", "paused": "#5a6478", "partial": "#56700f",
    "budget_exceeded": "#b84a0a", "no_progress": "#9c2b9c", "failed": "#c4262e", "cancelled": "#626a78",
    "rejected": "#85543f",
}  # fmt: skip
_DARK = {
    "surface": "#14161c", "ink": "#e9ebef", "ink-2": "#b4bbc7", "ink-3": "#8d95a3", "line": "#757d8b",
    "faint": "#4a515d", "box": "#191c23", "border": "#444b57", "heat": "#7c7ff0", "running": "#74a8ff",
    "completed": "#55c285", "waiting": "#e8b04a", "paused": "#a3adbf", "partial": "#a9c456",
    "budget_exceeded": "#f0935a", "no_progress": "#df86df", "failed": "#f4797e", "cancelled": "#98a1af",
    "rejected": "#cf9c86",
}  # fmt: skip
STATUSES = frozenset(list(_LIGHT)[9:])
"""Statuses that have a colour."""

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
.fsm-graph .heat-2 .box,.fsm-graph .heat-3 .box{stroke:var(--fsm-heat)}
.fsm-graph .current .box{stroke:var(--fsm-lit);stroke-width:1.6}
.fsm-graph .current .tint{fill:var(--fsm-lit);fill-opacity:.13}
.fsm-graph .current .ring{stroke:var(--fsm-lit);stroke-width:3;stroke-opacity:.28}
.fsm-graph .current .more{color:var(--fsm-lit)}
"""


def _properties(colours: dict[str, str]) -> str:
    return ";".join(f"--fsm-{name}:{colour}" for name, colour in colours.items())


def _weights() -> str:
    """Return the width of edges that were taken 2, 4, 8, … times."""
    return "\n".join(
        f".fsm-graph .weight-{n} .edge{{stroke-width:{1.6 + 0.35 * n:.2f}}}" for n in range(1, 7)
    )


def _statuses() -> str:
    return "\n".join(f".fsm-graph .{status}{{--fsm-lit:var(--fsm-{status})}}" for status in sorted(STATUSES))


def _themes() -> str:
    light, dark = _properties(_LIGHT), _properties(_DARK)
    return (
        f".fsm-drawing{{{light}}}\n"
        f"@media (prefers-color-scheme:dark){{.fsm-drawing{{{dark}}}}}\n"
        f'[data-theme="light"] .fsm-drawing{{{light}}}\n'
        f'[data-theme="dark"] .fsm-drawing{{{dark}}}'
    )


@cache
def stylesheet() -> str:
    """Return the CSS of every drawing.

    The colours follow the setting of the browser. An attribute `data-theme` (`light`, `dark`) of an element around a
    drawing overrides it.
    """
    return f"{_themes()}{_RULES}{_weights()}\n{_statuses()}\n"
