"""Timelines of runs as SVG: what happened when, in one lane for each kind of thing, or in columns of equal time.

A bar is at least 2 px wide, so that nothing disappears. Bars of one row never cover one another: bars that would are
one bar if they are ticks of the same kind. A label is drawn only where nothing else is; of two labels for one place
the exception wins.

Exceptions are not averaged: repeated attempts, warnings and the fullest budget have rows, and child runs, people and
processes keep their lanes. The work grows with the number of spans, and the size of the drawing does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from orchestrator.drawing.element import (
    Rectangle,
    drawing,
    duration,
    escaped,
    number,
    point,
    shortened,
    width,
)
from orchestrator.machines.timeline import WARNINGS, BudgetUse, Kind, Lane, Timeline, TimeMark, TimeSpan

# ---- lanes ----


CUT_WIDTH = 56.0
"""Width of a gap that is cut: its length is written in it."""
_MOST_CUT = 0.5
"""Share of the width that cut gaps have at most."""
_SHORTEST = 1e-5
"""Seconds of the shortest axis."""
_LARGE = 0.2
"""Share of the rest above which a gap is cut."""
_QUIET = frozenset((Kind.PERSON, Kind.IDLE, Kind.DOWN, Kind.WAIT, Kind.LOST))
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
_FINE = (1, 2, 5)
_APART = 84.0
"""Least distance of two labels of the axis."""


class Piece(NamedTuple):
    """A part of the time, and the part of the width that shows it."""

    start: float
    end: float
    left: float
    right: float
    cut: bool


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Turns a time into a place. Later times are never further left."""

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, line: Timeline, left: float, right: float) -> TimeAxis:
        """Return the axis of a timeline between two places."""
        whole = max(line.end - line.start, _SHORTEST)
        most = int((right - left) * _MOST_CUT / CUT_WIDTH)
        cuts = sorted(islice(_cuts(_gaps(line), whole), most))
        room = right - left - CUT_WIDTH * len(cuts)
        rest = max(whole - sum(end - start for start, end in cuts), _SHORTEST)
        pieces: list[Piece] = []
        at, x = line.start, left
        for start, end in cuts:
            x = _add(pieces, Piece(at, start, x, x + room * (start - at) / rest, cut=False))
            x = _add(pieces, Piece(start, end, x, x + CUT_WIDTH, cut=True))
            at = end
        _add(pieces, Piece(at, max(line.end, at + _SHORTEST), x, right, cut=False))
        return cls(tuple(pieces))

    def x(self, at: float) -> float:
        """Return the place of a time; one outside of the axis is at its end."""
        index = max(bisect_right(self.pieces, at, key=lambda one: one.start) - 1, 0)
        piece = self.pieces[index]
        share = (at - piece.start) / (piece.end - piece.start) if piece.end > piece.start else 0.0
        return piece.left + (piece.right - piece.left) * min(max(share, 0.0), 1.0)

    @property
    def cuts(self) -> list[Piece]:
        """The gaps that are cut."""
        return [piece for piece in self.pieces if piece.cut]

    def ticks(self, start: float) -> Iterator[tuple[float, float]]:
        """Yield place and seconds since `start` of each label of the axis."""
        straight = [piece for piece in self.pieces if not piece.cut and piece.right > piece.left]
        width = sum(piece.right - piece.left for piece in straight)
        seconds = sum(piece.end - piece.start for piece in straight)
        step = _step(seconds * _APART / max(width, 1.0))
        last = -_APART
        for piece in straight:
            first = -((start - piece.start) // step)  # rounded up
            for label in range(int(first), int((piece.end - start) / step) + 1):
                x = self.x(start + label * step)
                if x - last >= _APART and x <= self.pieces[-1].right - _APART / 2:
                    yield x, label * step
                    last = x


def _add(pieces: list[Piece], piece: Piece) -> float:
    pieces.append(piece)
    return piece.right


def _step(least: float) -> float:
    """Return a round number of seconds of at least so many."""
    if least > _STEPS[-1]:
        return _STEPS[-1] * float(-(-least // _STEPS[-1]))
    if least > 1:
        return float(next(step for step in _STEPS if step >= least))
    power = 1.0
    while power >= least:
        power /= 10
    return next(power * one for one in (*_FINE, 10) if power * one >= least)


def _gaps(line: Timeline) -> Iterator[tuple[float, float]]:
    """Yield the times in which nothing works: no request, tool, child run or state that is not parked."""
    busy = sorted(
        (span.start, line.until(span))
        for span in line.spans
        if span.kind not in _QUIET and (span.lane is not Lane.PROCESS)
    )
    at = line.start
    for start, end in busy:
        if min(start, line.end) > at:
            yield at, min(start, line.end)
        at = max(at, end)
    if line.end > at:
        yield at, line.end


def _cuts(gaps: Iterable[tuple[float, float]], whole: float) -> Iterator[tuple[float, float]]:
    """Yield the gaps to cut, the longest first: each takes more than a share of the rest."""
    rest = whole
    for start, end in sorted(gaps, key=lambda gap: gap[0] - gap[1]):
        if rest - (end - start) <= 0 or end - start <= _LARGE * (rest - (end - start)):
            return
        rest -= end - start
        yield start, end


NAMES = 92.0
"""Width of the column with the names of the lanes."""
EDGE = 16.0
TEXT = 10.5
"""Size of all text but the names of lanes."""
LEAST = 2.0
"""Least width of a bar."""
TICK = 3.0
"""A bar below this width is a tick."""
AXIS, TURNS, CAPTION = 24.0, 22.0, 15.0
_PAD = 5.0
_GAP = 6.0
"""Between two labels."""
_SIGN = 7.0
"""Half the width of a sign, and the space beside it."""
_SHIFT = 60.0
"""How far a label below a lane may be moved to the right for another one."""


Caption: TypeAlias = tuple[float, str, str]
"""Place, text and class of a label below the bars of a lane."""


@dataclass(frozen=True, slots=True)
class LaneForm:
    """The form of a lane: height of a bar, distance of rows, most rows, and where labels are."""

    bar: float
    pitch: float
    rows: int
    inside: bool = True
    beside: bool = False
    below: bool = False
    """Whether names that do not fit are written below too, not only exceptions."""


FORMS: Final = {
    Lane.STATE: LaneForm(16, 18, 1),
    Lane.MODEL: LaneForm(16, 18, 3),
    Lane.TOOLS: LaneForm(9, 12, 6, inside=False, beside=True),
    Lane.CHILD: LaneForm(11, 14, 4, inside=False, beside=True),
    Lane.PERSON: LaneForm(16, 18, 3, beside=True),
    Lane.PROCESS: LaneForm(14, 16, 1, below=True),
}


@dataclass(slots=True)
class Bar:
    """A span with its place. `count` spans are drawn as one."""

    span: TimeSpan
    area: Rectangle
    row: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Label:
    """A text with its place. `form` is its class."""

    text: str
    area: Rectangle
    form: str = ""


@dataclass(frozen=True, slots=True)
class Sign:
    """A mark with its place."""

    mark: TimeMark
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class LaneBox:
    """A lane with its place; `hidden` spans have no row."""

    name: str
    y: float
    height: float
    hidden: int = 0


@dataclass(slots=True)
class LanesLayout:
    """Everything with its place."""

    axis: TimeAxis
    left: float
    right: float
    height: float = 0.0
    lanes: list[LaneBox] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    signs: list[Sign] = field(default_factory=list)
    lines: list[float] = field(default_factory=list)
    """Where a labelled time or turn has a line."""
    turns: list[float] = field(default_factory=list)
    """Where a turn starts."""


def lay_out(line: Timeline, width_: float, top: float) -> LanesLayout:
    """Return the places of everything in a timeline.

    Args:
        line: The timeline.
        width_: Width of the drawing in pixels.
        top: The y of the axis.
    """
    left, right = NAMES, width_ - EDGE
    found = LanesLayout(TimeAxis.of(line, left, right), left, right)
    label_axis(found, line, top)
    y = top + AXIS
    if line.turns:
        found.lanes.append(LaneBox("Turn", y, TURNS))
        for turn in line.turns:
            x = found.axis.x(turn.at)
            if not found.turns or x - found.turns[-1] >= TICK:
                found.turns.append(x)
            text = f"{turn.turn:,}"
            wide = width(text, TEXT)
            if x + 4 + wide <= found.right:
                add_label(found.labels, Label(text, Rectangle(x + 4, y + 5, wide, 13), "turn"))
        y = y + TURNS
    for lane in Lane:
        y = lay_out_lane(found, line, lane, y)
    found.height = y
    return found


def lay_out_lane(found: LanesLayout, line: Timeline, lane: Lane, y: float) -> float:
    """Place the spans and marks of one lane, if it has any; return its bottom."""
    spans = [span for span in line.spans if span.lane is lane]
    marks = [mark for mark in line.marks if mark.lane is lane]
    return _LanePlan(found, line, lane, y).lay_out(spans, marks) if spans or marks else y


def label_axis(found: LanesLayout, line: Timeline, top: float) -> None:
    """Write times and the lengths of cut gaps above the lanes."""
    end = _end_text(found.axis, line)
    wide = width(end, TEXT)
    found.labels.append(Label(end, Rectangle(found.right - wide, top + 5, wide, 13), "axis"))
    for cut in found.axis.cuts:
        text = duration(cut.end - cut.start)
        add_label(found.labels, _centred(text, (cut.left + cut.right) / 2, top + 5, "axis cut"))
    for x, seconds in found.axis.ticks(line.start):
        label = _centred(duration(seconds), max(x, found.left + 10), top + 5, "axis")
        if add_label(found.labels, label):
            found.lines.append(x)


def _end_text(axis: TimeAxis, line: Timeline) -> str:
    """Return the last label of the axis; a cut gap before it has no room for its own."""
    last = axis.cuts[-1] if axis.cuts else None
    if last is not None and last.end >= line.end:
        text = f"+{duration(last.end - last.start)}"
    else:
        text = duration(line.end - line.start)
    return f"now, {text}" if line.live else text


def _centred(text: str, x: float, y: float, form: str) -> Label:
    wide = width(text, TEXT)
    return Label(text, Rectangle(x - wide / 2, y, wide, 13), form)


def add_label(labels: list[Label], label: Label) -> bool:
    """Add a label if it touches none of the last ones; they are in order, and few cover one another."""
    area = label.area
    wide = Rectangle(area.x - _GAP, area.y, area.width + 2 * _GAP, area.height)
    if any(wide.meets(other.area) for other in labels[-24:]):
        return False
    labels.append(label)
    return True


@dataclass(slots=True)
class _LanePlan:
    """Places the bars and labels of one lane."""

    found: LanesLayout
    line: Timeline
    lane: Lane
    y: float
    bars: list[Bar] = field(default_factory=list)
    hidden: int = 0
    labels: list[Label] = field(default_factory=list)

    @property
    def form(self) -> LaneForm:
        return FORMS[self.lane]

    def lay_out(self, spans: Sequence[TimeSpan], marks: Sequence[TimeMark]) -> float:
        """Place everything; return the bottom of the lane."""
        rows = self._set_bars(spans)
        bottom = self.y + _PAD + max(rows, 1) * self.form.pitch
        captions = [*self._set_signs(marks), *self._label_bars()]
        # Write labels below the bars where they fit, exceptions first; return whether there are any.
        order = sorted(captions, key=lambda one: not WARNINGS.isdisjoint(one[2].split()), reverse=True)
        placed: list[Label] = []
        for start, text, form in order:
            wide = width(text, TEXT)
            x = max(min(start - 1, self.found.right - wide), self.found.left)
            area = Rectangle(x, bottom, wide, 13)
            before = max((one.area.right for one in placed if _near(area, one.area)), default=None)
            if before is not None and before - x <= _SHIFT:
                area = Rectangle(before + _GAP + 2, bottom, wide, 13)
            fits = area.right <= self.found.right and not any(_near(area, one.area) for one in placed)
            if fits:
                placed.append(Label(text, area, form))
        self.labels += placed
        captioned = bool(placed)
        height = bottom - self.y + (CAPTION if captioned else 0) + _PAD - 2
        found = self.found
        found.lanes.append(LaneBox(self.lane.value, self.y, height, self.hidden))
        found.bars += self.bars
        found.labels += self.labels
        return self.y + height

    # ---- bars ----

    def _set_bars(self, spans: Iterable[TimeSpan]) -> int:
        """Place bars in the first row that is free at their time; return the number of rows."""
        ends: list[float] = []
        last: list[Bar] = []
        for span in spans:
            row = next((row for row, end in enumerate(ends) if end <= span.start), len(ends))
            if row >= self.form.rows:
                if span.kind not in WARNINGS:
                    self.hidden += 1
                    continue
                row = self.form.rows - 1
            # A bar that starts at its time, or where the row is free.
            free = last[row].area.right if row < len(last) else self.found.left
            axis, right = self.found.axis, self.found.right
            start = min(max(axis.x(span.start), free), right - LEAST)
            end = min(max(axis.x(self.line.until(span)), start + LEAST), right)
            y = self.y + _PAD + row * self.form.pitch
            bar = Bar(span, Rectangle(start, y, end - start, self.form.bar), row)
            pushed = bar.area.x - self.found.axis.x(span.start) > TICK and bar.area.width < TICK
            if pushed and span.kind not in WARNINGS:
                ends[row] = max(ends[row], self.line.until(span))
                continue  # there is no room for all the short ones
            if row == len(ends):
                ends.append(0.0)
                last.append(bar)
            ends[row] = max(ends[row], self.line.until(span))
            if not _joined(last[row], bar):
                last[row] = bar
                self.bars.append(bar)
        return len(ends)

    # ---- labels ----

    def _label_bars(self) -> Iterator[Caption]:
        """Write labels into and beside bars; yield those for the line below instead."""
        size: Counter[tuple[object, ...]] = Counter()
        for bar in self.bars:
            size[_group(bar)] += bar.count
        left = size.copy()
        for index, bar in enumerate(self.bars):
            left[_group(bar)] -= bar.count
            if left[_group(bar)]:
                continue  # the last bar of the group has the label
            text = _text_of(bar.span, size[_group(bar)])
            if text and not self._written(bar, index, shortened(text)):
                name = self.form.below and bar.span.kind is Kind.WORK
                if name or bar.span.kind in WARNINGS or bar.span.kind is Kind.WAIT:
                    yield bar.area.x, shortened(text), f"note {bar.span.kind}"

    def _written(self, bar: Bar, index: int, text: str) -> bool:
        """Write a label into a bar, or beside it if the row is free there."""
        area, wide = bar.area, width(text, TEXT)
        y = area.y + (area.height - 13) / 2
        thread = bar.span.kind is Kind.WAIT
        thin = self.form.below and bar.span.kind is Kind.WORK
        if (self.form.inside or thread) and not thin and wide + 10 <= area.width:
            x = area.middle - wide / 2 if thread else area.x + 5
            self._write(text, x, y, f"{'thread-text' if thread else 'on'} {bar.span.kind}")
            return True
        if not self.form.beside or area.width < TICK:
            return False
        around = [one.area for one in self.labels[-12:]]
        around += [one.area for one in self.bars[max(index - 12, 0) : index + 24] if one is not bar]
        gap = 5 + (_SIGN if self.lane is Lane.PERSON else 0)
        for x in (area.right + gap, area.x - 5 - wide):
            place = Rectangle(x, y, wide, 13)
            free = self.found.left <= x and place.right <= self.found.right
            if free and not any(_near(place, other) for other in around):
                self._write(text, x, y, f"note {bar.span.kind}")
                return True
        return False

    def _write(self, text: str, x: float, y: float, form: str) -> None:
        self.labels.append(Label(text, Rectangle(x, y, width(text, TEXT), 13), form))

    def _set_signs(self, marks: Iterable[TimeMark]) -> Iterator[Caption]:
        y = self.y + _PAD + self.form.bar / 2
        for mark in marks:
            x = self.found.axis.x(mark.at)
            self.found.signs.append(Sign(mark, x, y))
            if mark.kind is not Kind.CRASH:  # the time after it has a label
                yield x, shortened(mark.name), f"note {mark.kind}"


def _joined(before: Bar, bar: Bar) -> bool:
    """Add a tick to the tick of the same kind that it touches; return False if it is a bar of its own."""
    if before is bar or before.span.kind is not bar.span.kind or bar.area.x - before.area.right >= 1:
        return False
    if min(before.area.width, bar.area.width) >= TICK or bar.span.name != before.span.name:
        return False
    before.area = Rectangle(before.area.x, before.area.y, bar.area.right - before.area.x, before.area.height)
    before.count += bar.count
    return True


def _group(bar: Bar) -> tuple[object, ...]:
    """Return what bars with a common label share: calls of one turn to one tool with the same result."""
    span = bar.span
    return (
        (span.turn, span.name, span.kind, span.note) if span.lane is Lane.TOOLS and span.turn else (id(bar),)
    )


def _near(one: Rectangle, other: Rectangle) -> bool:
    return Rectangle(one.x - _GAP / 2, one.y, one.width + _GAP, one.height).meets(other)


_TIMED = frozenset((Kind.WAIT, Kind.DOWN, Kind.PERSON, Kind.IDLE))
"""Kinds whose label has their length."""


def _text_of(span: TimeSpan, count: int) -> str:
    """Return the label of a bar. A normal request has none."""
    if span.lane is Lane.MODEL and span.kind is Kind.MODEL:
        return ""
    failed_attempt = span.lane is Lane.MODEL and span.kind is Kind.FAILED
    text = span.note if failed_attempt else ", ".join(filter(None, (span.name, span.note)))
    if span.kind in _TIMED and span.end is not None and span.lane is not Lane.STATE:
        text = f"{text} {duration(span.end - span.start)}"
    return f"{text} ×{count}" if count > 1 and text else text


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
    # Set the fullest budget of each column; a budget keeps its use until it is seen again.
    for use in line.budgets:
        column = found.columns[_at(found, use.at)]
        if column.budget is None or use.share >= column.budget.share:
            column.budget = use
    last: BudgetUse | None = None
    for column in found.columns:
        last = column.budget = column.budget or last
    label_axis(lanes, line, top)
    y = _label_columns(found, line, top + AXIS)
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


def _label_columns(found: ColumnsLayout, line: Timeline, y: float) -> float:
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
            most = 5
            more = f", and {len(column.warnings) - most} more" if len(column.warnings) > most else ""
            text = ", ".join(column.warnings[:most]) + more
            yield _cell(found, index, found.warning_y + 5, height=_WARNING - 10, form="warning", text=text)
        if found.budget_y:
            level = sum(column.budget is not None and column.budget.share > limit for limit in _LEVELS)
            text = (
                f"{column.budget.guard} {column.budget.share * 100:.0f} %"
                if column.budget
                else "no budget seen"
            )
            yield _cell(found, index, found.budget_y + 6, height=12, form=f"budget level-{level}", text=text)
    if found.budget_y:
        # The label of the budget that is used most at the end.
        last = found.columns[-1].budget or BudgetUse(0.0, "", 0.0, 0.0)
        others = f", the fullest of {found.budgets} budgets" if found.budgets > 1 else ""
        text = f"{last.guard} {last.share * 100:.0f} % of {last.limit:,g}{others}"
        x = found.lanes.right - width(text, TEXT)
        yield (
            f'<text class="text axis" x="{number(x)}" y="{number(found.budget_y + 31)}">{escaped(text)}</text>'
        )


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


def _cell(found: ColumnsLayout, index: int, y: float, *, height: float, form: str, text: str) -> str:
    """Return a rectangle in a column."""
    x = found.lanes.left + index * found.column_width
    gap = 0.0 if form.startswith("budget") else 0.6
    return (
        f'<g class="span {form}"><title>{escaped(text)}</title><rect class="bar" x="{x:.2f}" y="{number(y)}"'
        f' width="{found.column_width - gap:.2f}" height="{number(height)}"/></g>'
    )


# ---- the drawing ----


MOST_TURNS = 300
"""Turns above which the drawing has columns of equal time in place of bars."""
LEAST_WIDTH = 360.0
_HEADER = 30.0
_HATCH = 6.0
"""Distance of the slanted lines in a bar."""
_LEGEND = (
    ("model", "Model"),
    ("tool", "Tools"),
    ("people", "People"),
    ("down", "No process"),
    ("work", "Own work"),
)


def timeline_svg(
    line: Timeline, *, width_px: float = 1200.0, header: bool = True, styled: bool = True
) -> str:
    """Return the drawing of a timeline as SVG.

    Times are wall time. A long gap in which nothing works is cut, and its length is written in it. Over MOST_TURNS
    turns the drawing has 200 columns of equal time; `line.between(first, last)` is a part that is drawn in full.

    Args:
        line: The timeline.
        width_px: Width in pixels, at least 360.
        header: Whether the run, its totals and the legend are drawn above.
        styled: Whether the stylesheet is included. A page includes `stylesheet()` once instead.

    Returns:
        An element `svg` with its size in pixels and a description in words.
    """
    wide = max(width_px, LEAST_WIDTH)
    top = _HEADER if header else 0.0
    head = [_header(line, wide)] if header else []
    if len(line.turns) > MOST_TURNS:
        columns = lay_out_columns(line, wide, top)
        parts, height = [*lane_parts(columns.lanes), *column_parts(columns)], columns.height
    else:
        found = lay_out(line, wide, top)
        parts, height = list(lane_parts(found)), found.height
    title = f"Timeline of run {shortened(line.name)}"
    size = (wide, height + 6)
    return drawing("fsm-timeline", size, title, [*head, *parts], description=described(line), styled=styled)


def described(line: Timeline) -> str:
    """Return a timeline in words; `line.rows()` has everything."""
    seconds: dict[Kind, float] = {}
    for span in line.spans:
        if span.lane.value != "State":
            seconds[span.kind] = seconds.get(span.kind, 0.0) + line.until(span) - span.start
    crashes = sum(mark.kind is Kind.CRASH for mark in line.marks)
    facts = [
        f"{duration(line.end - line.start)} in all, {len(line.turns):,} turns",
        *(f"{duration(seconds[kind])} {text}" for kind, text in _WORDS if seconds.get(kind)),
        f"{crashes:,} crashes" if crashes else "",
    ]
    return "; ".join(filter(None, facts)) + "."


_WORDS = (
    (Kind.MODEL, "model"),
    (Kind.TOOL, "tools"),
    (Kind.CHILD, "child runs"),
    (Kind.PERSON, "waiting for people"),
    (Kind.DOWN, "without a process"),
    (Kind.FAILED, "failed attempts and calls"),
    (Kind.WAIT, "waiting for the next attempt or a slot"),
)


# ---- the form with lanes ----


def lane_parts(found: LanesLayout) -> Iterator[str]:
    """Yield the elements of a layout: lanes, gaps, lines, bars, labels, signs, from back to front."""
    top, bottom = found.lanes[0].y if found.lanes else 0.0, found.height
    yield from (_lane(lane, found) for lane in found.lanes)
    yield from (
        rectangle(Rectangle(cut.left, top, cut.right - cut.left, bottom - top), "gap", 0)
        for cut in found.axis.cuts
    )
    yield from (_upright("grid", x, top, bottom) for x in found.lines)
    yield from (_upright("turn", x, top, found.lanes[0].y + found.lanes[0].height) for x in found.turns)
    yield from map(_bar, found.bars)
    yield from (_cut_edges(cut, top, bottom) for cut in found.axis.cuts)
    yield from map(label_text, found.labels)
    yield from map(_sign, found.signs)


def _lane(lane: LaneBox, found: LanesLayout) -> str:
    y = lane.y + min(17, lane.height / 2 + 4)
    more = f' <tspan class="hidden">+{lane.hidden:,}</tspan>' if lane.hidden else ""
    return (
        f'<path class="rule" d="M0 {number(lane.y)}H{number(found.right + EDGE)}"/>'
        f'<text class="lane" x="14" y="{number(y)}">{escaped(lane.name)}{more}</text>'
    )


def _bar(bar: Bar) -> str:
    span, area = bar.span, bar.area
    form = "tick" if area.width < TICK else "bar"
    words = ", ".join(filter(None, (span.name, span.note))) or span.kind.value
    count = f" ×{bar.count}" if bar.count > 1 else ""
    end = duration(span.end - span.start) if span.end is not None else "not finished"
    turn = f"turn {span.turn}: " if span.turn else ""
    lane = span.lane.value.split()[0].lower()
    return (
        f'<g class="span {lane} {span.kind}"><title>{escaped(f"{turn}{words}{count}, {end}")}</title>'
        f"{_shape(area, span.kind, lane, form)}</g>"
    )


def _shape(area: Rectangle, kind: Kind, lane: str, form: str) -> str:
    middle = area.y + area.height / 2
    if kind is Kind.WAIT or (lane == "process" and kind is Kind.IDLE):
        return f'<path class="thread" d="M{number(area.x)} {number(middle)}H{number(area.right)}"/>'
    if lane == "process" and kind is Kind.WORK:
        return rectangle(Rectangle(area.x, middle - 2.5, area.width, 5), form, 2)
    if form == "tick":
        return rectangle(area, form, 0)
    hatch = f'<path class="hatch" d="{_hatch(area)}"/>' if kind in {Kind.LOST, Kind.UNKNOWN} else ""
    return rectangle(area, form, min(2.5, area.width / 4)) + hatch


def _hatch(area: Rectangle) -> str:
    """Return slanted lines in a rectangle."""
    found: list[str] = []
    x = area.x - area.height + _HATCH
    while x < area.right:
        left, right = max(x, area.x), min(x + area.height, area.right)
        if right > left:
            low, high = area.bottom - (left - x), area.bottom - (right - x)
            found.append(f"M{point((left, low))}L{point((right, high))}")
        x += _HATCH
    return "".join(found)


def rectangle(area: Rectangle, form: str, corner: float) -> str:
    """Return a rectangle with round corners."""
    round_ = f' rx="{number(corner)}"' if corner else ""
    return (
        f'<rect class="{form}" x="{number(area.x)}" y="{number(area.y)}" width="{number(area.width)}"'
        f' height="{number(area.height)}"{round_}/>'
    )


def _cut_edges(cut: Piece, top: float, bottom: float) -> str:
    """Return the double stroke of a cut, in front of the bars that it interrupts."""
    x = (cut.left + cut.right) / 2
    high = bottom - top
    lines = "".join(f"M{number(x + by + 3)} {number(top)}l-6 {number(high)}" for by in (-2.5, 2.5))
    band = f"M{number(x + 3)} {number(top)}l-6 {number(high)}"
    return f'<path class="break" d="{band}"/><path class="stroke" d="{lines}"/>'


def _upright(form: str, x: float, top: float, bottom: float) -> str:
    return f'<path class="{form}" d="M{number(x)} {number(top)}V{number(bottom)}"/>'


def label_text(label: Label) -> str:
    """Return a label."""
    area = label.area
    y = number(area.y + 10)
    back = label.form.startswith("thread-text")
    behind = (
        rectangle(Rectangle(area.x - 3, area.y, area.width + 6, area.height), "surface", 0) if back else ""
    )
    return (
        f'{behind}<text class="text {label.form}" x="{number(area.x)}" y="{y}">{escaped(label.text)}</text>'
    )


def _sign(sign: Sign) -> str:
    x, y = sign.x, sign.y
    form = {
        Kind.CRASH: f"M{number(x - 4)} {number(y - 4)}l8 8m0 -8l-8 8",
        Kind.RESUMED: f"M{number(x - 3)} {number(y - 5)}l7 5l-7 5z",
    }.get(sign.mark.kind, f"M{number(x)} {number(y - 5)}l5 5l-5 5l-5 -5z")
    return (
        f'<g class="sign {sign.mark.kind}"><title>{escaped(sign.mark.name)}</title>'
        f'<path class="sign-form" d="{form}"/></g>'
    )


# ---- the header ----


def _header(line: Timeline, wide: float) -> str:
    turns = f", {len(line.turns):,} turns" if line.turns else ""
    name, facts = shortened(line.name), f"{duration(line.end - line.start)}{turns}"
    x = 14 + width(name, 13.5) + 10
    parts = [
        f'<text class="head" x="14" y="20">{escaped(name)}</text>',
        f'<text class="text facts" x="{number(x)}" y="20">{escaped(facts)}</text>',
    ]
    right = wide - EDGE
    for kind, text in reversed(_LEGEND):
        right -= width(text, 10.5)
        if right - 16 < max(x + width(facts, 10.5) + 16, NAMES):
            break
        parts.append(f'<text class="text key" x="{number(right)}" y="19.5">{text}</text>')
        parts.append(
            f'<g class="span key {kind}">{rectangle(Rectangle(right - 15, 10, 10, 10), "bar", 2)}</g>'
        )
        right -= 29
    return "".join(parts)
