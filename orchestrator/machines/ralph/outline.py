"""The lines of a Markdown file with what they are: headings and list items, everything else kept as it is.

Nothing of the text is ever made anew: a file is its lines, and a change is a change of some of them. Bytes that are no
UTF-8, line ends of every kind, a missing last one, and a byte order mark all come out as they went in. What is inside
code fences, comments and front matter is text, whatever it looks like.
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
    """Return bytes as text from which `encoded` makes the same bytes, whatever they are."""
    return content.decode(*_ENCODING)


def encoded(text: str) -> bytes:
    """Return the bytes of a text that was `decoded`."""
    return text.encode(*_ENCODING)


@dataclass(frozen=True, slots=True)
class OutlineProblem:
    """Something in a file that cannot be read. `line` counts from 1."""

    line: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A heading or a list item."""

    line: int
    """Index of its line, from 0."""
    end: int
    """Index past the last line that belongs to it; blank lines at its end do not."""
    heading: int = 0
    """Level of a heading, 1 to 6; 0 for an item."""
    depth: int = 0
    """How many items it is inside of."""
    text: str
    mark: str | None = None
    """What is between the brackets of an item that has them."""
    span: tuple[int, int] = (0, 0)
    """Where in the line that is."""
    section: str = ""
    """The nearest heading above it."""
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Outline:
    """A file that was looked through."""

    lines: tuple[str, ...]
    """With their ends: joined, they are the file."""
    nodes: tuple[Node, ...]
    problems: tuple[OutlineProblem, ...] = ()

    @property
    def newline(self) -> str:
        """The line end that the file uses: that of its first line."""
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
        """Return the file with lines (without ends) put in before the line of that index."""
        before = "".join(self.lines[:index])
        if before and not before.endswith(("\n", "\r")):
            before += self.newline
        return before + "".join(f"{line}{self.newline}" for line in new) + "".join(self.lines[index:])


def outline(text: str) -> Outline:
    """Look a file through. Any text has an outline; what is wrong with it is among the problems."""
    lines = tuple(_LINE.findall(text))
    reading = _Reading(lines)
    found = list(reading)
    return Outline(lines, tuple(_with_ends(found, lines)), tuple(reading.problems))


@dataclass(slots=True)
class _Reading:
    """Goes through the lines once and gives the nodes, their ends not known yet."""

    lines: tuple[str, ...]
    problems: list[OutlineProblem] = field(default_factory=list)
    section: str = ""
    _open: list[int] = field(default_factory=list)
    """Indents of the items that the next one may be inside of."""

    def __iter__(self) -> Iterator[Node]:
        for index in self._prose():
            line = self.lines[index].rstrip("\r\n")
            if heading := _HEADING.fullmatch(line):
                self._open.clear()
                self.section = _title(heading["text"] or "")
                level = len(heading["level"])
                yield Node(line=index, end=index, heading=level, text=self.section)
            elif item := _ITEM.fullmatch(line):
                yield self._item(index, item)
            elif line.strip() and not line.startswith((" ", "\t")):
                self._open.clear()

    def _item(self, index: int, item: re.Match[str]) -> Node:
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
        return node

    def _prose(self) -> Iterator[int]:
        """Give the indices of lines that are no front matter, and neither in a fence nor in a comment."""
        index = _front_matter(self.lines)
        while index < len(self.lines):
            line = self.lines[index]
            if fence := _FENCE.match(line):
                if "`" in fence["info"] and fence["mark"][0] == "`":
                    yield index  # code in a line, as ```x```
                    index += 1
                    continue
                index = self._past_fence(index, fence["mark"])
                continue
            if not line.lstrip("\ufeff \t").startswith("<!--"):
                yield index
            opened = line.rfind("<!--")
            if opened >= 0 and "`" not in line[:opened] and "-->" not in line[opened:]:
                index = self._past_comment(index)
                continue
            index += 1

    def _past_fence(self, start: int, mark: str) -> int:
        closing = re.compile(rf"\s*{re.escape(mark[0])}{{{len(mark)},}}\s*")
        for index in range(start + 1, len(self.lines)):
            if closing.fullmatch(self.lines[index]):
                return index + 1
        self.problems.append(OutlineProblem(start + 1, "a code fence begins here and never ends"))
        return len(self.lines)

    def _past_comment(self, start: int) -> int:
        for index in range(start + 1, len(self.lines)):
            if "-->" in self.lines[index]:
                return index + 1
        self.problems.append(OutlineProblem(start + 1, "a comment begins here and never ends"))
        return len(self.lines)


def _front_matter(lines: tuple[str, ...]) -> int:
    """Return the index past the front matter, 0 where there is none."""
    if not lines or lines[0].strip("\ufeff \t\r\n") != "---":
        return 0
    for index in range(1, len(lines)):
        if lines[index].rstrip() in {"---", "..."}:
            return index + 1
    return 0


def _with_ends(nodes: list[Node], lines: tuple[str, ...]) -> Iterator[Node]:
    from dataclasses import replace

    for number, node in enumerate(nodes):
        end = len(lines)
        for later in nodes[number + 1 :]:
            if _closes(later, node):
                end = later.line
                break
        if not node.heading:
            end = min(end, _paragraph(lines, node, end))
        while end > node.line + 1 and not lines[end - 1].strip():
            end -= 1
        yield replace(node, end=end)


def _title(text: str) -> str:
    """Return the text of a heading without the number signs that may close it."""
    text = text.rstrip(" \t")
    bare = text.rstrip("#")
    return (bare if bare.endswith((" ", "\t")) else text).strip()


def _closes(later: Node, node: Node) -> bool:
    if node.heading:
        return 0 < later.heading <= node.heading
    return bool(later.heading) or later.depth <= node.depth


def _paragraph(lines: tuple[str, ...], node: Node, end: int) -> int:
    """Return where an item ends because unindented text follows a blank line."""
    for index in range(node.line + 2, end):
        line = lines[index]
        if line.strip() and not line.startswith((" ", "\t")) and not lines[index - 1].strip():
            return index
    return end
