"""Markers of tasks in progress.md, and the one function that checks their moves."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from orchestrator.machines.ralph.fault import IllegalMove


class Marker(StrEnum):
    """The character between the brackets."""

    OPEN = " "
    ACTIVE = "/"
    REVIEW = "P"
    DONE = "x"
    FAILED = "F"
    CANCELLED = "C"


SETTLED = frozenset((Marker.DONE, Marker.CANCELLED))
"""Markers of tasks that need no more work."""

MOVES: Mapping[Marker, frozenset[Marker]] = {
    Marker.OPEN: frozenset((Marker.ACTIVE, Marker.CANCELLED)),
    Marker.ACTIVE: frozenset((Marker.REVIEW, Marker.OPEN, Marker.FAILED)),
    Marker.REVIEW: frozenset((Marker.DONE, Marker.OPEN, Marker.FAILED)),
    Marker.DONE: frozenset(),
    Marker.FAILED: frozenset((Marker.OPEN,)),
    Marker.CANCELLED: frozenset(),
}
"""Marker -> allowed next markers. `[P]` and `[/]` → `[ ]` are for rework."""


def check_move(task: str, before: Marker, after: Marker) -> bool:
    """Return whether the marker has to be written: False if it is set already. Raises IllegalMove."""
    if before is after:
        return False
    if after not in MOVES[before]:
        raise IllegalMove(task, before, after, tuple(sorted(MOVES[before])))
    return True
