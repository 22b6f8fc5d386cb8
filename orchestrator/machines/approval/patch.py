"""Unified diffs, applied exactly or not at all: no fuzz, no offset, no other file. Pure; text in, text out.

Lines are told apart by a line feed only, so that other letters which Python takes for line ends stay inside a line, and
a file with carriage returns is changed by a diff with carriage returns and no other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

_HUNK = re.compile(r"@@ -([0-9]{1,9})(?:,([0-9]{1,9}))? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@(?: .*)?\r?")
_NO_END = "\\ No newline at end of file"
_MARKS = frozenset(" +-")


class PatchUnreadable(ValueError):
    """It is no unified diff of one file."""


class PatchMismatch(ValueError):
    """The file is not what the diff says it is."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """One change: lines with their ends, as they are before and after, from a line on (1 is the first)."""

    start: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Patch:
    """All changes of one file. The names are as they stand in its head, None where there is no head."""

    hunks: tuple[Hunk, ...]
    old: str | None
    new: str | None
    changed: int
    """Added and removed lines."""

    def apply(self, text: str) -> str:
        """Return the text after it. Raises PatchMismatch."""
        lines = split(text)
        made: list[str] = []
        position = 0
        for number, hunk in enumerate(self.hunks, 1):
            begin = hunk.start - 1 if hunk.before else hunk.start
            if begin < position:
                raise PatchMismatch(f"hunk {number} begins before the end of the one before it")
            found = tuple(lines[begin : begin + len(hunk.before)])
            if begin > len(lines) or found != hunk.before:
                raise PatchMismatch(_difference(number, begin, hunk.before, found))
            made += lines[position:begin]
            made += hunk.after
            position = begin + len(hunk.before)
        made += lines[position:]
        if any(not line.endswith("\n") for line in made[:-1]):
            raise PatchMismatch("a line without an end would stand before another line")
        return "".join(made)


def parse(text: str) -> Patch:
    """Read a diff of one file, with or without its two head lines. Raises PatchUnreadable.

    A last line that lost its end counts as having one: that a file has none is said by the mark for it alone.
    """
    lines = split(text if not text or text.endswith("\n") else f"{text}\n")
    old, new, index = _head(lines)
    hunks: list[Hunk] = []
    changed = 0
    while index < len(lines):
        hunk, lost, index = _hunk(lines, index)
        hunks.append(hunk)
        changed += lost
    if not hunks:
        raise PatchUnreadable("it has no hunk: a line such as '@@ -1,3 +1,4 @@' is needed")
    return Patch(tuple(hunks), old, new, changed)


def make(path: str, before: str | None, after: str | None, *, context: int = 3) -> str:
    """Return the diff between two texts; None is no file. Empty where they are the same."""
    old = "/dev/null" if before is None else f"a/{path}"
    new = "/dev/null" if after is None else f"b/{path}"
    made = difflib.unified_diff(split(before or ""), split(after or ""), old, new, n=context)
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_END}\n" for line in made)


def split(text: str) -> list[str]:
    """Return the lines of a text with their ends; only the last may have none."""
    lines = text.split("\n")
    whole = [f"{line}\n" for line in lines[:-1]]
    return [*whole, lines[-1]] if lines[-1] else whole


def named(head: str) -> str:
    """Return the path that a head line of a diff names: without `a/` or `b/`, and without a time after a tab."""
    name = head.split("\t", 1)[0].strip()
    return name[2:] if name.startswith(("a/", "b/")) else name


def _head(lines: list[str]) -> tuple[str | None, str | None, int]:
    first = [line.rstrip("\r\n") for line in lines[:2]]
    if not first or not first[0].startswith("--- "):
        return None, None, 0
    if len(first) == 1 or not first[1].startswith("+++ "):
        raise PatchUnreadable("after the line '--- ' a line '+++ ' is needed")
    return first[0][4:], first[1][4:], 2


def _hunk(lines: list[str], index: int) -> tuple[Hunk, int, int]:
    head = lines[index].removesuffix("\n")
    found = _HUNK.fullmatch(head)
    if found is None:
        raise PatchUnreadable(f"line {index + 1} is no head of a hunk, and the hunk before it is over")
    start, new_start = int(found[1]), int(found[3])
    wanted = [1 if count is None else int(count) for count in (found[2], found[4])]
    before: list[str] = []
    after: list[str] = []
    lost = 0
    last = index
    for last, mark, line in _body(lines, index + 1, wanted):  # noqa: B007 - the last one is where it ends
        if mark != "+":
            before.append(line)
        if mark != "-":
            after.append(line)
        lost += mark != " "
    if [len(before), len(after)] != wanted:
        raise PatchUnreadable(f"the hunk {head.strip()!r} has {len(before)} old and {len(after)} new lines")
    if (before and not start) or (after and not new_start):
        raise PatchUnreadable(f"the hunk {head.strip()!r} begins at line 0")
    return Hunk(start, tuple(before), tuple(after)), lost, _past(lines, last)


def _body(lines: list[str], index: int, wanted: list[int]) -> Iterator[tuple[int, str, str]]:
    """Yield number, mark and text of the lines of a hunk, as long as its head says."""
    old, new = wanted
    while (old or new) and index < len(lines):
        mark, line = lines[index][0], lines[index][1:]
        if lines[index] in {"\n", "\r\n"}:  # an empty line of context that lost its blank on the way
            mark, line = " ", lines[index]
        if mark not in _MARKS:
            raise PatchUnreadable(f"line {index + 1} begins with {mark!r}; possible: a blank, '+', '-'")
        if index + 1 < len(lines) and lines[index + 1].startswith("\\"):
            line = line.removesuffix("\n")
        old -= mark != "+"
        new -= mark != "-"
        if old < 0 or new < 0:
            raise PatchUnreadable(f"line {index + 1} is one more than the head of its hunk says")
        yield index, mark, line
        index += 1
        if index < len(lines) and lines[index].startswith("\\"):
            index += 1


def _past(lines: list[str], last: int) -> int:
    index = last + 1
    return index + (index < len(lines) and lines[index].startswith("\\"))


def _difference(number: int, begin: int, wanted: tuple[str, ...], found: tuple[str, ...]) -> str:
    for offset, line in enumerate(wanted):
        if offset >= len(found) or found[offset] != line:
            return f"hunk {number} does not fit: line {begin + offset + 1} is another one than the diff says"
    return f"hunk {number} does not fit: it begins at line {begin + 1}, and there are fewer lines"
