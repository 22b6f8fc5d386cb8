"""The lines of a Markdown file with their structure: headings and list items; all other text is kept as it is.

A file is its lines, and a change replaces some of them; no other text is rewritten. Bytes that are not UTF-8, all
kinds of line ends, a missing last line end, and a byte order mark are preserved. Everything inside code fences,
comments and front matter is plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_FENCE = re.compile(r"\s*(?:(?:[-*+]|\d{1,9}[.)])\s+)?(?P<mark>`{3,}|~{3,})(?P<info>.*)")
_HEADING = re.compile(r" {0,3}(?P<level>#{1,6})(?:[ \t]+(?P<text>.*))?")
_ITEM = re.compile(
    r"(?P<indent>[ \t]*)(?:[-*+]|\d{1,9}[.)])[ \t]+"
    r"(?:\[(?P<mark>[^\[\]]{0,12})\](?=[ \t]|$)[ \t]*)?(?P<text>.*)"
)
_ENCODING = ("utf-8", "surrogateescape")


def decoded(content: bytes) -> str:
    """Return any bytes as text that `encoded` converts back to the same bytes."""
    return content.decode(*_ENCODING)


def encoded(text: str) -> bytes:
    """Return the bytes of a text that was `decoded`."""
    return text.encode(*_ENCODING)


@dataclass(frozen=True, slots=True)
class OutlineProblem:
    """An unreadable part of a file. `line` counts from 1."""

    line: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A heading or a list item."""

    line: int
    """Index of its line, from 0."""
    end: int
    """Index after its last line, without trailing blank lines."""
    heading: int = 0
    """Level of a heading, 1 to 6; 0 for an item."""
    depth: int = 0
    """Number of items that contain it."""
    text: str
    mark: str | None = None
    """Text between the brackets of an item, if it has brackets."""
    span: tuple[int, int] = (0, 0)
    """Position of the mark in the line."""
    section: str = ""
    """The nearest heading above it."""
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Outline:
    """A parsed file."""

    lines: tuple[str, ...]
    """The lines with their line ends; joined, they are the file."""
    nodes: tuple[Node, ...]
    problems: tuple[OutlineProblem, ...] = ()

    @property
    def newline(self) -> str:
        """Line end of the file's first line."""
        first = self.lines[0] if self.lines else "\n"
        return first[len(first.rstrip("\r\n")) :] or "\n"

    def text(self) -> str:
        """Return the file."""
        return "".join(self.lines)

    def marked(self, node: Node, mark: str) -> str:
        """Return the file with another mark in the brackets of an item."""
        line, (start, end) = self.lines[node.line], node.span
        changed = f"{line[:start]}{mark}{line[end:]}"
        return "".join((*self.lines[: node.line], changed, *self.lines[node.line + 1 :]))

    def inserted(self, index: int, new: list[str]) -> str:
        """Return the file with lines (without line ends) inserted before the line of that index."""
        before = "".join(self.lines[:index])
        if before and not before.endswith(("\n", "\r")):
            before += self.newline
        return before + "".join(f"{line}{self.newline}" for line in new) + "".join(self.lines[index:])


def outline(text: str) -> Outline:
    """Parse a file. Every text has an outline; errors are among its problems."""
    lines = tuple(_LINE.findall(text))
    reading = _Reading(lines)
    found = list(reading)
    return Outline(lines, tuple(_with_ends(found, lines, reading.enclosed)), tuple(reading.problems))


@dataclass(slots=True)
class _Reading:
    """Reads the lines once and yields the nodes without their ends."""

    lines: tuple[str, ...]
    problems: list[OutlineProblem] = field(default_factory=list)
    enclosed: set[int] = field(default_factory=set)
    """Indices of the lines after the first one of a fence or comment, to its end."""
    section: str = ""
    _open: list[int] = field(default_factory=list)
    """Indents of the items that may contain the next one."""

    def __iter__(self) -> Iterator[Node]:
        for index in self._prose():
            line = self.lines[index].rstrip("\r\n")
            if heading := _HEADING.fullmatch(line):
                self._open.clear()
                self.section = _title(heading["text"] or "")
                level = len(heading["level"])
                yield Node(line=index, end=index, heading=level, text=self.section)
            elif item := _ITEM.fullmatch(line):
                indent = len(item["indent"].expandtabs(4))
                while self._open and self._open[-1] >= indent:
                    self._open.pop()
                node = Node(
                    line=index,
                    end=index,
                    depth=len(self._open),
                    text=item["text"].strip(),
                    mark=item["mark"],
                    span=item.span("mark"),
                    section=self.section,
                    indent=indent,
                )
                self._open.append(indent)
                yield node
            elif line.strip() and not line.startswith((" ", "\t")):
                self._open.clear()

    def _prose(self) -> Iterator[int]:
        """Yield the indices of lines outside front matter, fences and comments."""
        index = _front_matter(self.lines)
        while index < len(self.lines):
            line = self.lines[index]
            if fence := _FENCE.match(line):
                if "`" in fence["info"] and fence["mark"][0] == "`":
                    yield index  # inline code such as ```x```
                    index += 1
                    continue
                index = self._enclose(index, self._past_fence(index, fence["mark"]))
                continue
            if not line.lstrip("\ufeff \t").startswith("<!--"):
                yield index
            opened = line.rfind("<!--")
            if opened >= 0 and "`" not in line[:opened] and "-->" not in line[opened:]:
                index = self._enclose(index, self._past_comment(index))
                continue
            index += 1

    def _enclose(self, start: int, end: int) -> int:
        self.enclosed.update(range(start + 1, end))
        return end

    def _past_fence(self, start: int, mark: str) -> int:
        closing = re.compile(rf"\s*{re.escape(mark[0])}{{{len(mark)},}}\s*")
        for index in range(start + 1, len(self.lines)):
            if closing.fullmatch(self.lines[index]):
                return index + 1
        self.problems.append(OutlineProblem(start + 1, "a code fence starts here and never ends"))
        return len(self.lines)

    def _past_comment(self, start: int) -> int:
        for index in range(start + 1, len(self.lines)):
            if "-->" in self.lines[index]:
                return index + 1
        self.problems.append(OutlineProblem(start + 1, "a comment starts here and never ends"))
        return len(self.lines)


def _front_matter(lines: tuple[str, ...]) -> int:
    """Return the index after the front matter, 0 without front matter."""
    if not lines or lines[0].strip("\ufeff \t\r\n") != "---":
        return 0
    for index in range(1, len(lines)):
        if lines[index].rstrip() in {"---", "..."}:
            return index + 1
    return 0


def _with_ends(nodes: list[Node], lines: tuple[str, ...], enclosed: set[int]) -> Iterator[Node]:
    from dataclasses import replace

    for number, node in enumerate(nodes):
        end = len(lines)
        for later in nodes[number + 1 :]:
            if _closes(later, node):
                end = later.line
                break
        if not node.heading:
            end = min(end, _paragraph(lines, node, end, enclosed))
        while end > node.line + 1 and not lines[end - 1].strip():
            end -= 1
        yield replace(node, end=end)


def _title(text: str) -> str:
    """Return the text of a heading without closing number signs."""
    text = text.rstrip(" \t")
    bare = text.rstrip("#")
    return (bare if bare.endswith((" ", "\t")) else text).strip()


def _closes(later: Node, node: Node) -> bool:
    if node.heading:
        return 0 < later.heading <= node.heading
    return bool(later.heading) or later.depth <= node.depth


def _paragraph(lines: tuple[str, ...], node: Node, end: int, enclosed: set[int]) -> int:
    """Return the line at which an item ends, because unindented text follows a blank line."""
    for index in range(node.line + 2, end):
        line = lines[index]
        unindented = line.strip() and not line.startswith((" ", "\t"))
        if unindented and index not in enclosed and not lines[index - 1].strip():
            return index
    return end
