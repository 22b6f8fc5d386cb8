"""The status of a run, and the tiles that select one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from orchestrator.drawing.status import STATUSES, StatusStyle
from orchestrator.kernel.journal import RunCounts, RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.runtime.runs.graph_marks import status_name

OUTCOMES: Final = tuple(outcome.value for outcome in Outcome)


def status_of(head: RunHead) -> StatusStyle:
    """Return the status of a run."""
    return STATUSES[status_name(head)]


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
