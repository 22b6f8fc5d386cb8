"""Draw the path of a run through its states. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.cli.output import shown
from orchestrator.cli.runs.phrase import span
from orchestrator.runtime.runs.story import PathStep, StateVisit, folded

MOST_LINES = 30
"""Most lines of a drawing; a note replaces the middle of a longer one."""
_WIDTH = 110
_INDENT = "  "
_WORTH_SAYING = 0.0005
"""Stays shorter than these seconds are shown without their time."""


def drawn(visits: Sequence[StateVisit]) -> list[str]:
    """Return the path as lines of text."""
    lines = [line for step in folded(visits) for line in _lines(step)]
    if len(lines) <= MOST_LINES:
        return lines
    half = MOST_LINES // 2
    return [*lines[:half], f"{_INDENT}… {len(lines) - 2 * half:,} lines more …", *lines[-half:]]


def _lasted(seconds: float | None) -> str:
    if seconds is None:
        return " …"
    return f" {span(seconds)}" if seconds >= _WORTH_SAYING else ""


def _lines(step: PathStep) -> Iterator[str]:
    """Draw one step; a long one continues on the next line."""
    count = f"{step.times:,} × " if step.times > 1 else ""
    line = f"{_INDENT}{count}"
    for number, (state, seconds) in enumerate(zip(step.states, step.seconds, strict=True)):
        cell = shown(state, 60) + _lasted(seconds)
        if number and len(line) + len(cell) > _WIDTH:
            yield line.rstrip()
            line = _INDENT + " " * len(count)
        line += cell + (" → " if number < len(step.states) - 1 else "")
    yield line
