"""The one table of statuses: word, shape and colours of each. Pages, drawings and the terminal use it.

A status has a shape and a word, so that it never depends on colour alone. Colours have a contrast of at least 4.5:1 to
the surface.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


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
