"""Times as pixels. A gap in which nothing works is cut if it would take much of the width."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from orchestrator.drawing.timeline.value import Kind, Lane, Timeline

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
            for number in range(int(first), int((piece.end - start) / step) + 1):
                x = self.x(start + number * step)
                if x - last >= _APART and x <= self.pieces[-1].right - _APART / 2:
                    yield x, number * step
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
