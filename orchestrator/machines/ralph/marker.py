"""Markers of tasks in progress.md, and the one function through which each of them is moved (R9)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from orchestrator.machines.ralph.fault import IllegalMove


class Marker(StrEnum):
    """What stands between the brackets. The first four are version 1's, the others version 2's."""

    OPEN = " "
    ACTIVE = "/"
    REVIEW = "P"
    DONE = "x"
    FAILED = "F"
    CANCELLED = "C"


SETTLED = frozenset((Marker.DONE, Marker.CANCELLED))
"""Nothing more is to be done."""

MOVES: Mapping[Marker, frozenset[Marker]] = {
    Marker.OPEN: frozenset((Marker.ACTIVE, Marker.CANCELLED)),
    Marker.ACTIVE: frozenset((Marker.REVIEW, Marker.OPEN, Marker.FAILED)),
    Marker.REVIEW: frozenset((Marker.DONE, Marker.OPEN, Marker.FAILED)),
    Marker.DONE: frozenset(),
    Marker.FAILED: frozenset((Marker.OPEN,)),
    Marker.CANCELLED: frozenset(),
}
"""Marker -> those that may follow: version 2's moves, and `[P]` and `[/]` → `[ ]` for rework, as seed 002 has it."""


def check_move(task: str, before: Marker, after: Marker) -> bool:
    """Tell whether anything is to be written: False where the marker stands there already. Raises IllegalMove."""
    if before is after:
        return False
    if after not in MOVES[before]:
        raise IllegalMove(task, before, after, tuple(sorted(MOVES[before])))
    return True
