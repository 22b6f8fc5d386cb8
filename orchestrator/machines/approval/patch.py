"""Unified diffs that are applied exactly or not at all: no fuzz, no offset, one file. Pure functions on text.

Only a line feed separates lines. Other characters that Python treats as line ends stay inside a line. A file with
carriage returns can be changed only by a diff with carriage returns.
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
    """The text is not a unified diff of one file."""


class PatchMismatch(ValueError):
    """The file is not in the state that the diff expects."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """One change: lines with their line ends before and after, from line `start` (1 is the first)."""

    start: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Patch:
    """All changes of one file. `old` and `new` are the names in the file header, None without a header."""

    hunks: tuple[Hunk, ...]
    old: str | None
    new: str | None
    changed: int
    """Added and removed lines."""

    def apply(self, text: str) -> str:
        """Return the changed text. Raises PatchMismatch."""
        lines = split(text)
        made: list[str] = []
        position = 0
        for number, hunk in enumerate(self.hunks, 1):
            begin = hunk.start - 1 if hunk.before else hunk.start
            if begin < position:
                raise PatchMismatch(f"hunk {number} starts before the end of the previous hunk")
            found = tuple(lines[begin : begin + len(hunk.before)])
            if begin > len(lines) or found != hunk.before:
                raise PatchMismatch(_difference(number, begin, hunk.before, found))
            made += lines[position:begin]
            made += hunk.after
            position = begin + len(hunk.before)
        made += lines[position:]
        if any(not line.endswith("\n") for line in made[:-1]):
            raise PatchMismatch("a line without a line end would precede another line")
        return "".join(made)


def parse(text: str) -> Patch:
    """Parse a diff of one file, with or without its two header lines. Raises PatchUnreadable.

    A last line without a line end is treated as complete: only the marker line says that a file has no final line
    end.
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
    """Return the diff between two texts. None means no file; equal texts give an empty diff."""
    old = "/dev/null" if before is None else f"a/{path}"
    new = "/dev/null" if after is None else f"b/{path}"
    made = difflib.unified_diff(split(before or ""), split(after or ""), old, new, n=context)
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_END}\n" for line in made)


def split(text: str) -> list[str]:
    """Return the lines of a text with their line ends. Only the last line may have none."""
    lines = text.split("\n")
    whole = [f"{line}\n" for line in lines[:-1]]
    return [*whole, lines[-1]] if lines[-1] else whole


def named(head: str) -> str:
    """Return the path in a header line of a diff, without `a/` or `b/`, and without a timestamp after a tab."""
    name = head.split("\t", 1)[0].strip()
    return name[2:] if name.startswith(("a/", "b/")) else name


def _head(lines: list[str]) -> tuple[str | None, str | None, int]:
    first = [line.rstrip("\r\n") for line in lines[:2]]
    if not first or not first[0].startswith("--- "):
        return None, None, 0
    if len(first) == 1 or not first[1].startswith("+++ "):
        raise PatchUnreadable("a line '+++ ' must follow the line '--- '")
    return first[0][4:], first[1][4:], 2


def _hunk(lines: list[str], index: int) -> tuple[Hunk, int, int]:
    head = lines[index].removesuffix("\n")
    found = _HUNK.fullmatch(head)
    if found is None:
        raise PatchUnreadable(f"line {index + 1} is not a hunk header, and the previous hunk is complete")
    start, new_start = int(found[1]), int(found[3])
    expected = [1 if count is None else int(count) for count in (found[2], found[4])]
    before: list[str] = []
    after: list[str] = []
    lost = 0
    last = index
    for last, mark, line in _body(lines, index + 1, expected):  # noqa: B007 - used after the loop
        if mark != "+":
            before.append(line)
        if mark != "-":
            after.append(line)
        lost += mark != " "
    if [len(before), len(after)] != expected:
        raise PatchUnreadable(f"the hunk {head.strip()!r} has {len(before)} old and {len(after)} new lines")
    if (before and not start) or (after and not new_start):
        raise PatchUnreadable(f"the hunk {head.strip()!r} starts at line 0; the first line is 1")
    following = last + 1
    if following < len(lines) and lines[following].startswith("\\"):
        following += 1
    return Hunk(start, tuple(before), tuple(after)), lost, following


def _body(lines: list[str], index: int, expected: list[int]) -> Iterator[tuple[int, str, str]]:
    """Yield index, mark and text of each line of a hunk, as many as its header states."""
    old, new = expected
    while (old or new) and index < len(lines):
        mark, line = lines[index][0], lines[index][1:]
        if lines[index] in {"\n", "\r\n"}:  # an empty context line that lost its blank
            mark, line = " ", lines[index]
        if mark not in _MARKS:
            raise PatchUnreadable(f"line {index + 1} starts with {mark!r}; allowed: a blank, '+', '-'")
        if index + 1 < len(lines) and lines[index + 1].startswith("\\"):
            line = line.removesuffix("\n")
        old -= mark != "+"
        new -= mark != "-"
        if old < 0 or new < 0:
            raise PatchUnreadable(f"line {index + 1} is beyond the number of lines in its hunk header")
        yield index, mark, line
        index += 1
        if index < len(lines) and lines[index].startswith("\\"):
            index += 1


def _difference(number: int, begin: int, expected: tuple[str, ...], found: tuple[str, ...]) -> str:
    for offset, line in enumerate(expected):
        if offset >= len(found) or found[offset] != line:
            return f"hunk {number} does not fit: line {begin + offset + 1} differs from the diff"
    return f"hunk {number} does not fit: it starts at line {begin + 1} and needs more lines than the file has"
