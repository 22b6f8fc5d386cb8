"""A timeline of many turns: columns of equal time, with the mean turn of each.

Exceptions are not averaged: repeated attempts, warnings and the fullest budget have rows, and child runs, people and
processes keep their lanes. The work grows with the number of spans, and the size of the drawing does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.drawing.element import number
from orchestrator.drawing.geometry import Rectangle
from orchestrator.drawing.timeline.axis import TimeAxis
from orchestrator.drawing.timeline.lanes import (
    AXIS,
    EDGE,
    NAMES,
    TEXT,
    TURNS,
    Label,
    LaneBox,
    LanesLayout,
    add_label,
    label_axis,
    lay_out_lane,
)
from orchestrator.drawing.timeline.value import WARNINGS, BudgetUse, Kind, Lane, Timeline
from orchestrator.drawing.words import duration, escaped, width

COLUMNS = 200
_STACK = (Kind.MODEL, Kind.TOOL)
_OF_MODEL = frozenset((Kind.MODEL, Kind.FAILED, Kind.WAIT, Kind.UNKNOWN))
_MEAN, _REPEATED, _BUDGET, _WARNING = 78.0, 26.0, 38.0, 24.0
"""Heights of the rows."""
_LEVELS = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Used parts of a limit above which a cell of the budget row has the first, second, … tint."""


@dataclass(slots=True)
class Column:
    """A part of the width with what happened in it."""

    turns: int = 0
    seconds: dict[Kind, float] = field(default_factory=lambda: dict.fromkeys(_STACK, 0.0))
    repeated: int = 0
    warnings: list[str] = field(default_factory=list)
    budget: BudgetUse | None = None
    """The fullest one."""

    def mean(self, kind: Kind) -> float:
        """Return the mean seconds of a turn for a kind of work."""
        return self.seconds[kind] / self.turns if self.turns else 0.0


@dataclass(slots=True)
class ColumnsLayout:
    """The columns, and the lanes below them."""

    columns: list[Column]
    lanes: LanesLayout
    mean_y: float = 0.0
    repeated_y: float = 0.0
    warning_y: float = 0.0
    budget_y: float = 0.0
    """0 without a row of budgets; likewise for the others."""
    budgets: int = 0
    """Number of different budgets."""

    @property
    def height(self) -> float:
        """The bottom of the drawing."""
        return self.lanes.height

    @property
    def column_width(self) -> float:
        """Width of a column in pixels."""
        return (self.lanes.right - self.lanes.left) / len(self.columns)


def lay_out_columns(line: Timeline, width_px: float, top: float) -> ColumnsLayout:
    """Return the columns and lanes of a timeline; `top` is the y of its axis."""
    left, right = NAMES, width_px - EDGE
    lanes = LanesLayout(TimeAxis.of(line, left, right), left, right)
    found = ColumnsLayout([Column() for _ in range(COLUMNS)], lanes)
    _fill_turns(found, line)
    _fill_exceptions(found, line)
    _fill_budgets(found, line)
    label_axis(lanes, line, top)
    y = _label_turns(found, line, top + AXIS)
    found.mean_y, y = y, _row(found, "Mean turn", y, _MEAN)
    if any(column.repeated for column in found.columns):
        found.repeated_y, y = y, _row(found, "Repeated", y, _REPEATED)
    if any(column.warnings for column in found.columns):
        found.warning_y, y = y, _row(found, "Warnings", y, _WARNING)
    if line.budgets:
        found.budgets = len({use.guard for use in line.budgets})
        found.budget_y, y = y, _row(found, "Budgets", y, _BUDGET)
    for lane in (Lane.CHILD, Lane.PERSON, Lane.PROCESS):
        y = lay_out_lane(lanes, line, lane, y)
    lanes.height = y
    return found


def _row(found: ColumnsLayout, name: str, y: float, height: float) -> float:
    found.lanes.lanes.append(LaneBox(name, y, height))
    return y + height


def _at(found: ColumnsLayout, time: float) -> int:
    """Return the number of the column of a time."""
    x = found.lanes.axis.x(time) - found.lanes.left
    return min(max(int(x / found.column_width), 0), len(found.columns) - 1)


def _fill_turns(found: ColumnsLayout, line: Timeline) -> None:
    """Add each turn to every column that it meets."""
    seconds: dict[int, dict[Kind, float]] = {}
    for span in line.spans:
        kind = Kind.MODEL if span.kind in _OF_MODEL else span.kind
        if span.turn and span.lane in {Lane.MODEL, Lane.TOOLS} and kind in _STACK:
            of_turn = seconds.setdefault(span.turn, dict.fromkeys(_STACK, 0.0))
            of_turn[kind] += line.until(span) - span.start
    cut = {
        at for one in found.lanes.axis.cuts for at in range(_at(found, one.start), _at(found, one.end) + 1)
    }
    ends = [*(turn.at for turn in line.turns[1:]), line.end]
    for turn, end in zip(line.turns, ends, strict=True):
        first, last = _at(found, turn.at), _at(found, end)
        for column in (found.columns[at] for at in range(first, last + 1) if at not in cut):
            column.turns += 1
            for kind, spent in seconds.get(turn.turn, {}).items():
                column.seconds[kind] += spent


def _fill_exceptions(found: ColumnsLayout, line: Timeline) -> None:
    for span in line.spans:
        if span.kind in WARNINGS:
            column = found.columns[_at(found, span.start)]
            column.repeated += span.lane is Lane.MODEL
            if span.lane is Lane.TOOLS:
                column.warnings.append(f"{span.name}: {span.note}")
    for mark in line.marks:
        if mark.kind in {Kind.WARNING, Kind.FAILED}:
            found.columns[_at(found, mark.at)].warnings.append(mark.name)


def _fill_budgets(found: ColumnsLayout, line: Timeline) -> None:
    """Set the fullest budget of each column; a budget keeps its use until it is seen again."""
    for use in line.budgets:
        column = found.columns[_at(found, use.at)]
        if column.budget is None or use.share >= column.budget.share:
            column.budget = use
    last: BudgetUse | None = None
    for column in found.columns:
        last = column.budget = column.budget or last


def _label_turns(found: ColumnsLayout, line: Timeline, y: float) -> float:
    lanes = found.lanes
    lanes.lanes.append(LaneBox("Turn", y, TURNS))
    step = max(len(line.turns) // 8, 1)
    for turn in line.turns[::step]:
        text, x = f"{turn.turn:,}", lanes.axis.x(turn.at)
        wide = width(text, TEXT)
        if x + 4 + wide <= lanes.right and add_label(
            lanes.labels, Label(text, Rectangle(x + 4, y + 4, wide, 13), "turn")
        ):
            lanes.turns.append(x)
    return y + TURNS


# ---- elements ----


def column_parts(found: ColumnsLayout) -> Iterator[str]:
    """Yield the elements of the columns; those of the lanes are not here."""
    largest = max((sum(map(column.mean, _STACK)) for column in found.columns), default=0.0)
    if largest > 0:
        yield from _means(found, largest)
    for index, column in enumerate(found.columns):
        if column.repeated:
            high = min(4.0 + 3.0 * (column.repeated - 1), _REPEATED - 8)
            y, text = found.repeated_y + _REPEATED - 4 - high, f"{column.repeated} repeated"
            yield _cell(found, index, y, height=high, form="repeated", text=text)
        if column.warnings:
            text = _texts(column.warnings)
            yield _cell(found, index, found.warning_y + 5, height=_WARNING - 10, form="warning", text=text)
        if found.budget_y:
            yield _budget(found, index, column.budget)
    if found.budget_y:
        yield _fullest(found)


def _means(found: ColumnsLayout, largest: float) -> Iterator[str]:
    bottom = found.mean_y + _MEAN - 4
    for index, column in enumerate(found.columns):
        y = bottom
        text = f"{column.turns:,} turns, mean {duration(sum(map(column.mean, _STACK)))}"
        for kind in _STACK:
            if (mean := column.mean(kind)) > 0:
                high = max(mean / largest * (_MEAN - 20), 0.5)
                y -= high
                yield _cell(found, index, y, height=high, form=kind.value, text=text)
    text = duration(largest)
    x = found.lanes.right - width(text, TEXT)
    yield f'<text class="text axis" x="{number(x)}" y="{number(found.mean_y + 12)}">{text}</text>'


def _budget(found: ColumnsLayout, index: int, use: BudgetUse | None) -> str:
    level = sum(use is not None and use.share > limit for limit in _LEVELS)
    text = f"{use.guard} {use.share * 100:.0f} %" if use else "no budget seen"
    return _cell(found, index, found.budget_y + 6, height=12, form=f"budget level-{level}", text=text)


def _fullest(found: ColumnsLayout) -> str:
    """Return the label of the budget that is used most at the end."""
    last = found.columns[-1].budget or BudgetUse(0.0, "", 0.0, 0.0)
    others = f", the fullest of {found.budgets} budgets" if found.budgets > 1 else ""
    text = f"{last.guard} {last.share * 100:.0f} % of {last.limit:,g}{others}"
    x = found.lanes.right - width(text, TEXT)
    return f'<text class="text axis" x="{number(x)}" y="{number(found.budget_y + 31)}">{escaped(text)}</text>'


def _cell(found: ColumnsLayout, index: int, y: float, *, height: float, form: str, text: str) -> str:
    """Return a rectangle in a column."""
    x = found.lanes.left + index * found.column_width
    gap = 0.0 if form.startswith("budget") else 0.6
    return (
        f'<g class="span {form}"><title>{escaped(text)}</title><rect class="bar" x="{x:.2f}" y="{number(y)}"'
        f' width="{found.column_width - gap:.2f}" height="{number(height)}"/></g>'
    )


def _texts(found: list[str]) -> str:
    most = 5
    more = f", and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
