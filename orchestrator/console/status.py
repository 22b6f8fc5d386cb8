"""The one table of statuses: word, shape, colour class of each, and the status of a run.

A status has a shape and a word, so that it never depends on colour alone. Grafana's colours and those of the command
line follow the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from orchestrator.kernel.journal import RunCounts, RunHead
from orchestrator.kernel.outcome import Outcome


class StatusStyle(NamedTuple):
    """A status: the class of its colour, its word and the body of its shape (SVG, 10 by 10)."""

    name: str
    word: str
    shape: str


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
        ),
        StatusStyle("waiting", "Waiting for a person", f'<path d="M5 .4 9.6 5 5 9.6.4 5z" {_FILLED}/>'),
        StatusStyle(
            "paused",
            "Parked",
            f'<rect x="1.8" y="1.5" width="2.4" height="7" rx=".8" {_FILLED}/>'
            f'<rect x="5.8" y="1.5" width="2.4" height="7" rx=".8" {_FILLED}/>',
        ),
        StatusStyle(
            "orphaned",
            "No owner",
            f'<circle cx="5" cy="5" r="3.8" {_RING} stroke-width="1.6" stroke-dasharray="2.2 1.7"/>',
        ),
        StatusStyle("completed", "Completed", f'<circle cx="5" cy="5" r="4.2" {_FILLED}/>'),
        StatusStyle(
            "partial",
            "Partial",
            f'<circle cx="5" cy="5" r="3.6" {_RING} stroke-width="1.4"/>'
            f'<path d="M5 1.4a3.6 3.6 0 0 1 0 7.2z" {_FILLED}/>',
        ),
        StatusStyle("budget_exceeded", "Over budget", f'<path d="M5 .8 9.6 9H.4z" {_FILLED}/>'),
        StatusStyle("no_progress", "No progress", f'<path d="M1.4 1h7.2L5 5l3.6 4H1.4L5 5z" {_FILLED}/>'),
        StatusStyle(
            "failed",
            "Failed",
            '<path d="m2 2 6 6M8 2 2 8" fill="none" stroke="currentColor" stroke-width="2.1" '
            'stroke-linecap="round"/>',
        ),
        StatusStyle(
            "cancelled", "Cancelled", f'<rect x="1.3" y="1.3" width="7.4" height="7.4" rx="1.6" {_FILLED}/>'
        ),
        StatusStyle(
            "rejected",
            "Rejected",
            f'<circle cx="5" cy="5" r="3.8" {_RING} stroke-width="1.5"/>'
            '<path d="M2.4 7.6 7.6 2.4" fill="none" stroke="currentColor" stroke-width="1.5"/>',
        ),
    )
}
"""Name -> status: running, waiting, paused, orphaned, and the outcomes."""

OUTCOMES: Final = tuple(outcome.value for outcome in Outcome)


def status_of(head: RunHead) -> StatusStyle:
    """Return the status of a run."""
    if head.status == "ended":
        return STATUSES.get(head.outcome, STATUSES["failed"])
    if head.status == "parked":
        return STATUSES["waiting" if head.waiting else "paused"]
    return STATUSES["orphaned" if head.owner is None else "running"]


def detail_of(head: RunHead) -> str:
    """Return the detail of a status: its reason, or the tools that the run waits for."""
    if head.waiting:
        return head.waiting
    return "" if head.reason in {"", "none"} else head.reason.replace("_", " ")


FILTERS: Final[Mapping[str, Mapping[str, object]]] = {
    "open": {"status": "open"},
    "waiting": {"status": "parked", "waiting": True},
    "parked": {"status": "parked", "waiting": False},
    **{outcome: {"status": "ended", "outcome": outcome} for outcome in OUTCOMES},
}
"""Tile of the page of runs -> its conditions."""


class Tile(NamedTuple):
    """A count on the page of runs, which selects those runs."""

    name: str
    amount: int
    status: StatusStyle | None


def tiles(counts: RunCounts) -> list[Tile]:
    """Return the tiles of a count. Outcomes that no run has are left out, except the common ones."""
    always = {"completed", "failed"}
    found = [
        Tile("", counts.total, None),
        Tile("open", counts.open, STATUSES["running"]._replace(word="Open")),
        Tile("waiting", counts.waiting, STATUSES["waiting"]),
        Tile("parked", counts.parked - counts.waiting, STATUSES["paused"]),
    ]
    return found + [
        Tile(outcome, counts.outcomes.get(outcome, 0), STATUSES[outcome])
        for outcome in OUTCOMES
        if outcome in always or counts.outcomes.get(outcome, 0)
    ]
