"""Places of bars, labels and signs of a timeline of up to 300 turns: one lane for each kind of thing.

A bar is at least 2 px wide, so that nothing disappears. Bars of one row never cover one another: bars that would are
one bar if they are ticks of the same kind. A label is drawn only where nothing else is; of two labels for one place
the exception wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from orchestrator.drawing.geometry import Rectangle
from orchestrator.drawing.timeline.axis import TimeAxis
from orchestrator.drawing.timeline.value import WARNINGS, Kind, Lane, Timeline, TimeMark, TimeSpan
from orchestrator.drawing.words import duration, shortened, width

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
        y = _label_turns(found, line, y)
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


def _label_turns(found: LanesLayout, line: Timeline, y: float) -> float:
    found.lanes.append(LaneBox("Turn", y, TURNS))
    for turn in line.turns:
        x = found.axis.x(turn.at)
        if not found.turns or x - found.turns[-1] >= TICK:
            found.turns.append(x)
        text = f"{turn.turn:,}"
        wide = width(text, TEXT)
        if x + 4 + wide <= found.right:
            add_label(found.labels, Label(text, Rectangle(x + 4, y + 5, wide, 13), "turn"))
    return y + TURNS


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
        captioned = self._set_captions(captions, bottom)
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
            bar = self._bar(span, row, last[row].area.right if row < len(last) else self.found.left)
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

    def _bar(self, span: TimeSpan, row: int, free: float) -> Bar:
        """Return a bar that starts at its time, or where the row is free."""
        axis, right = self.found.axis, self.found.right
        start = min(max(axis.x(span.start), free), right - LEAST)
        end = min(max(axis.x(self.line.until(span)), start + LEAST), right)
        y = self.y + _PAD + row * self.form.pitch
        return Bar(span, Rectangle(start, y, end - start, self.form.bar), row)

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

    def _set_captions(self, captions: Iterable[Caption], y: float) -> bool:
        """Write labels below the bars where they fit, exceptions first; return whether there are any."""
        order = sorted(captions, key=lambda one: not WARNINGS.isdisjoint(one[2].split()), reverse=True)
        placed: list[Label] = []
        for start, text, form in order:
            wide = width(text, TEXT)
            x = max(min(start - 1, self.found.right - wide), self.found.left)
            area = Rectangle(x, y, wide, 13)
            before = max((one.area.right for one in placed if _near(area, one.area)), default=None)
            if before is not None and before - x <= _SHIFT:
                area = Rectangle(before + _GAP + 2, y, wide, 13)
            fits = area.right <= self.found.right and not any(_near(area, one.area) for one in placed)
            if fits:
                placed.append(Label(text, area, form))
        self.labels += placed
        return bool(placed)


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
