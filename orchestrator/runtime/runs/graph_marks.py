"""The path of a run, or of many, as marks on the drawing of their graph. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from orchestrator.drawing.element import duration
from orchestrator.drawing.mark import GraphMarks
from orchestrator.drawing.status import STATUSES
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.runs.story import Story
from orchestrator.telemetry.history import History, StateStats

Heat: TypeAlias = Literal["time", "visits"]
"""What makes a state darker: its share of the time, or of the visits."""

_WORDS = {"orphaned": "no process for"}
_SHORTEST = 0.001
"""Seconds in a state from which on they are written in its box."""


def run_marks(head: RunHead, story: Story, now: float, *, heat: Heat = "time") -> GraphMarks:
    """Return the marks of one run: its present state in the colour of its status, and its path.

    Args:
        head: The run.
        story: Its records.
        now: Epoch seconds.
        heat: What makes a state darker.
    """
    status = status_name(head)
    notes = {}
    if story.entered_at is not None and head.status != "ended":
        visits = story.history.states[story.state].visits
        here = f"visit {visits:,}, " if visits > 1 else ""
        notes[story.state] = (
            f"{here}{_WORDS.get(status, status)} {duration(max(now - story.entered_at, 0.0))}"
        )
    return path_marks(story.history, heat=heat, current=story.state or None, status=status, notes=notes)


def path_marks(
    history: History,
    *,
    heat: Heat = "time",
    current: str | None = None,
    status: str = "running",
    notes: Mapping[str, str] = MappingProxyType({}),
) -> GraphMarks:
    """Return the marks of all runs in a history: visits and time of states and edges.

    Args:
        history: The transitions.
        heat: What makes a state darker.
        current: The state that is lit.
        status: The colour of that state, one of `drawing.status.STATUSES`.
        notes: State -> text in its box in place of visits and time.
    """
    states = history.states
    amount = {name: stats.total if heat == "time" else float(stats.visits) for name, stats in states.items()}
    whole = sum(amount.values()) or 1.0
    return GraphMarks(
        current=current,
        status=status,
        notes={name: _note(stats) for name, stats in states.items() if stats.visits} | dict(notes),
        share={name: one / whole for name, one in amount.items()},
        taken=dict(history.edges),
        seconds=dict(history.edge_seconds),
    )


def status_name(head: RunHead) -> str:
    """Return the status of a run as a name of `drawing.status.STATUSES`: its outcome if it has ended."""
    if head.status == "ended":
        return head.outcome if head.outcome in STATUSES else "failed"
    if head.status == "parked":
        return "waiting" if head.waiting else "paused"
    return "orphaned" if head.owner is None else "running"


def _note(stats: StateStats) -> str:
    visits = f"{stats.visits:,} visit{'s' if stats.visits > 1 else ''}"
    return f"{visits} · {duration(stats.total)}" if stats.total >= _SHORTEST else visits
