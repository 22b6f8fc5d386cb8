"""A timeline as plain data: spans and marks with wall times, in epoch seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias


class Lane(StrEnum):
    """A lane; the order is that of the drawing, from top to bottom."""

    STATE = "State"
    MODEL = "Model"
    TOOLS = "Tools"
    CHILD = "Child run"
    PERSON = "People"
    PROCESS = "Process"


class Kind(StrEnum):
    """The kind of a span or mark: its colour and form."""

    MODEL = "model"
    TOOL = "tool"
    CHILD = "child"
    PERSON = "people"
    WORK = "work"
    """Own work of the machine, and a process that works."""
    IDLE = "idle"
    """A parked run that waits for something other than a person, and a process without work."""
    DOWN = "down"
    """No process had the run."""
    FAILED = "failed"
    """An attempt, call or child run that failed."""
    WAIT = "wait"
    """The wait before the next attempt, or for a slot."""
    LOST = "lost"
    """A request or call without a result, because its process ended."""
    UNKNOWN = "unknown"
    """A span whose parts have no recorded times."""
    CRASH = "crash"
    RESUMED = "resumed"
    DECISION = "decision"
    WARNING = "warning"
    """A guard that refused, or a budget that is nearly used up."""


WARNINGS = frozenset((Kind.FAILED, Kind.LOST, Kind.DOWN, Kind.CRASH, Kind.WARNING))
"""Kinds that a drawing never leaves out in favour of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """Something that lasted. `end` is None while it lasts."""

    lane: Lane
    kind: Kind
    start: float
    end: float | None
    name: str = ""
    """The state, model, tool, child run, person or process."""
    note: str = ""
    """What is exceptional: an error, a charge, a repetition."""
    turn: int = 0
    """Number of the model's answer that it belongs to, from 1; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMark:
    """Something that happened at one moment."""

    lane: Lane
    kind: Kind
    at: float
    name: str = ""
    turn: int = 0


class TurnStart(NamedTuple):
    """The start of a turn: of the state in which the model was asked."""

    turn: int
    at: float


class BudgetUse(NamedTuple):
    """The use of a budget, as a guard saw it."""

    at: float
    guard: str
    observed: float
    limit: float

    @property
    def share(self) -> float:
        """Used part of the limit; 0 without a limit."""
        return self.observed / self.limit if self.limit > 0 else 0.0


Row: TypeAlias = tuple[float, str, str, str, float | None]
"""Start in seconds from the start of the run, lane, kind, text, and length in seconds; None for a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What happened in a run, in the order of time. Lists are sorted by their start."""

    name: str
    """Id of the run."""
    start: float
    end: float
    """End of the run, or the time of the reading."""
    live: bool = False
    """Whether the run had not ended then."""
    turns: tuple[TurnStart, ...] = ()
    spans: tuple[TimeSpan, ...] = ()
    marks: tuple[TimeMark, ...] = ()
    budgets: tuple[BudgetUse, ...] = ()

    def until(self, span: TimeSpan) -> float:
        """Return the end of a span; of one that lasts, the end of the timeline."""
        return self.end if span.end is None else max(span.start, span.end)

    def between(self, first: int, last: int) -> Timeline:
        """Return the part from the start of one turn to the end of another. Turns that do not exist are left out.

        Args:
            first: The first turn, from 1.
            last: The last turn.
        """
        starts = {turn.turn: turn.at for turn in self.turns}
        start = starts.get(first, self.start)
        end = next((turn.at for turn in self.turns if turn.turn > last), self.end)
        return replace(
            self,
            start=start,
            end=end,
            live=self.live and end == self.end,
            turns=tuple(turn for turn in self.turns if first <= turn.turn <= last),
            spans=tuple(
                replace(span, start=max(span.start, start), end=min(self.until(span), end))
                for span in self.spans
                if span.start < end and self.until(span) > start
            ),
            marks=tuple(mark for mark in self.marks if start <= mark.at <= end),
            budgets=tuple(use for use in self.budgets if start <= use.at <= end),
        )

    def rows(self) -> Iterator[Row]:
        """Yield the timeline as a table, in the order of time: the alternative in text to its drawing."""
        spans = (
            (
                one.start,
                one.lane,
                one.kind,
                f"{one.name}: {one.note}" if one.name and one.note else one.name or one.note,
                self.until(one) - one.start,
            )
            for one in self.spans
        )
        marks = ((one.at, one.lane, one.kind, one.name, None) for one in self.marks)
        order = list(Lane)
        found: list[tuple[float, Lane, Kind, str, float | None]] = [*spans, *marks]
        for at, lane, kind, text, seconds in sorted(found, key=lambda row: (row[0], order.index(row[1]))):
            yield at - self.start, lane.value, kind.value, text, seconds

    def as_json(self) -> list[dict[str, Any]]:
        """Return the rows as plain data."""
        names = ("at_s", "lane", "kind", "text", "seconds")
        return [dict(zip(names, row, strict=True)) for row in self.rows()]
