"""The style of drawings: colours as custom properties, light and dark.

A page that shows drawings may include it once and set other values for the properties. The colours are those of the
console: at least 4.5:1 for text on the surface, at least 3:1 for lines that matter.
"""

from __future__ import annotations

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
.fsm-graph{font-family:Inter,system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;color:var(--graph-ink)}
.fsm-graph text{fill:currentColor}
.fsm-graph .surface{fill:var(--graph-surface)}
.fsm-graph .box{fill:var(--graph-box);stroke:var(--graph-border);stroke-width:1.2}
.fsm-graph .tint,.fsm-graph .ring{fill:none;stroke:none}
.fsm-graph .name{font-size:12.5px;font-weight:600}
.fsm-graph .more{font-size:11px;color:var(--graph-ink-3)}
.fsm-graph .edge{fill:none;stroke:var(--graph-line);stroke-width:1.3}
.fsm-graph .head{fill:var(--graph-line)}
.fsm-graph .spine .edge,.fsm-graph .taken .edge{stroke:var(--graph-ink-2)}
.fsm-graph .spine .head,.fsm-graph .taken .head{fill:var(--graph-ink-2)}
.fsm-graph .spine .edge{stroke-width:1.8}
.fsm-graph .unused .edge,.fsm-graph .failure .edge{stroke:var(--graph-faint)}
.fsm-graph .unused .head,.fsm-graph .failure .head{fill:var(--graph-faint)}
.fsm-graph .failure .edge{stroke-width:1.2;stroke-dasharray:2 3}
.fsm-graph .failure.taken .edge{stroke:var(--graph-failed);stroke-width:1.6;stroke-dasharray:4 3}
.fsm-graph .failure.taken .head{fill:var(--graph-failed)}
.fsm-graph .label{font-size:11px;color:var(--graph-ink-2)}
.fsm-graph .label text{paint-order:stroke;stroke:var(--graph-surface);stroke-width:3px;stroke-linejoin:round}
.fsm-graph .label.unused,.fsm-graph .label.failure{color:var(--graph-ink-3)}
.fsm-graph .label.failure.taken{color:var(--graph-failed)}
.fsm-graph .times{font-weight:600;fill:var(--graph-ink)}
.fsm-graph .failure .times{fill:currentColor}
.fsm-graph .unvisited .name{color:var(--graph-ink-3);font-weight:540}
.fsm-graph .unvisited .box{stroke:var(--graph-faint)}
.fsm-graph .start{fill:var(--graph-ink-2)}
.fsm-graph .heat-1 .tint{fill:var(--graph-heat);fill-opacity:.08}
.fsm-graph .heat-2 .tint{fill:var(--graph-heat);fill-opacity:.2}
.fsm-graph .heat-3 .tint{fill:var(--graph-heat);fill-opacity:.38}
.fsm-graph .heat-2 .box,.fsm-graph .heat-3 .box{stroke:var(--graph-heat)}
.fsm-graph .current .box{stroke:var(--graph-lit);stroke-width:1.6}
.fsm-graph .current .tint{fill:var(--graph-lit);fill-opacity:.13}
.fsm-graph .current .ring{stroke:var(--graph-lit);stroke-width:3;stroke-opacity:.28}
.fsm-graph .current .more{color:var(--graph-lit)}
"""


def _properties(colours: dict[str, str]) -> str:
    return ";".join(f"--graph-{name}:{colour}" for name, colour in colours.items())


def _weights() -> str:
    """Return the width of edges that were taken 2, 4, 8, … times."""
    return "\n".join(
        f".fsm-graph .weight-{n} .edge{{stroke-width:{1.6 + 0.35 * n:.2f}}}" for n in range(1, 7)
    )


def _statuses() -> str:
    return "\n".join(
        f".fsm-graph .{status}{{--graph-lit:var(--graph-{status})}}" for status in sorted(STATUSES)
    )


STYLESHEET = (
    f".fsm-graph{{{_properties(_LIGHT)}}}\n"
    f"@media (prefers-color-scheme:dark){{.fsm-graph{{{_properties(_DARK)}}}}}\n"
    f'[data-theme="light"] .fsm-graph{{{_properties(_LIGHT)}}}\n'
    f'[data-theme="dark"] .fsm-graph{{{_properties(_DARK)}}}'
    f"{_RULES}{_weights()}\n{_statuses()}\n"
)
"""CSS of every drawing. An attribute `data-theme` of an element around it overrides the setting of the browser."""
