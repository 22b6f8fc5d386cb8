"""Task lists that other people and tools wrote, as the tasks.md of a session. Pure.

Only tasks are taken. A box under a heading such as *Overview* or *Success Criteria* describes the whole, so it loses
its box in the copy. A marker that we do not have, and an id that occurs twice, are replaced. Every line that is left
out or changed is reported, and all other text stays byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.machines.ralph import tasklist
from orchestrator.machines.ralph.marker import SETTLED, Marker
from orchestrator.machines.ralph.outline import Node, Outline, outline
from orchestrator.machines.ralph.tasklist import SPELLINGS, TaskEntry

_SHOWN = 80


class ImportNote(NamedTuple):
    """A line of a list that was left out or changed."""

    line: int
    """From 1; 0 for the whole file."""
    text: str
    why: str
    known: bool = True
    """Whether it is known what the line is. An unknown line may be a task that is lost."""

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}…"
        return f"line {self.line}: {shown!r}: {self.why}" if self.line else f"{shown!r}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignList:
    """A list in Markdown as the tasks.md of a session."""

    text: str
    markers: Mapping[str, Marker]
    """Id of a task -> its marker, also if only its details say that it is done."""
    left_out: tuple[ImportNote, ...] = ()
    changed: tuple[ImportNote, ...] = ()


_ABOUT_THE_WHOLE = re.compile(
    r"overview|summary|introduction|background|context|(?:non[- ])?goals?|objectives?|purpose|"
    r"(?:overall |final )?(?:success|acceptance|completion|exit|quality) (?:criteria|criterion|metrics|gates?)|"
    r"criteria|definitions? of (?:done|ready)|(?:out of )?scope|assumptions?|constraints?|risks?|"
    r"notes?|references?|resources|legend|key|glossary|open questions|sign[- ]?offs?|approvals?",
    re.IGNORECASE,
)
"""Headings of sections whose boxes describe the whole list and are no tasks."""
_NUMBERING = re.compile(r"^[\W\d_]+|\s*\([^()]*\)\W*$|[\W_]+$")

_SIGNS: Mapping[str, Marker] = {
    **dict.fromkeys(("✓", "✔", "✅", "☑", "√", "done", "completed", "complete", "finished"), Marker.DONE),
    **dict.fromkeys(("cancelled", "canceled", "dropped", "wontfix", "won't do", "skipped"), Marker.CANCELLED),
}
"""Spelling of a status in other lists, in lower case -> marker."""
_SIGN_AT_END = re.compile(r"(?:[✓✔✅☑]\ufe0f?|[(\[](?P<word>[a-z' ]+|x)[)\]])\W*", re.IGNORECASE)
_STATUS = re.compile(
    r"[-*+]?\s*(?:\*\*|__)?status(?:\*\*|__)?\s*:(?:\*\*|__)?\s*(?P<value>.+)", re.IGNORECASE
)


def read_foreign_list(text: str) -> ForeignList:
    """Return a list as the tasks.md of a session. Errors of the text are left in it for `read_tasks`."""
    found = outline(text)
    lines = list(found.lines)
    left_out: list[ImportNote] = []
    changed: list[ImportNote] = []
    tasks = list(tasklist.task_nodes(found))
    sections = _sections(found)
    names: dict[str, int] = {}
    for node in tasks:
        if not node.heading and (section := sections.get(node.line)) is not None:
            lines[node.line] = _without_box(lines[node.line], node)
            left_out.append(_note(node, f"a box under {section!r} describes the whole and is no task"))
            continue
        if node.mark is not None and node.mark not in SPELLINGS:
            marker = _sign(node.mark) or Marker.OPEN
            start, end = node.span
            lines[node.line] = f"{lines[node.line][:start]}{marker.value}{lines[node.line][end:]}"
            changed.append(_note(node, f"the marker [{node.mark}] is imported as [{marker.value}]"))
        name, title = tasklist.name_of(node)
        if not name:
            continue
        if name in names:
            fresh = tasklist.unused(name, names)
            lines[node.line] = _renamed(lines[node.line], node, fresh, title)
            why = f"{name} occurs twice, first in line {names[name]}; imported as {fresh}"
            changed.append(_note(node, why))
            name = fresh
        names[name] = node.line + 1
    left_out += [
        _note(node, "it has neither a box nor an id", known=False) for node in _unmarked(found, tasks)
    ]
    copy = "".join(lines)
    markers, partly = _markers(copy)
    left_out.sort()
    return ForeignList(
        text=copy, markers=markers, left_out=tuple(left_out), changed=tuple(sorted((*changed, *partly)))
    )


def _note(node: Node, why: str, *, known: bool = True) -> ImportNote:
    return ImportNote(node.line + 1, node.text, why, known)


def _sections(found: Outline) -> dict[int, str]:
    """Return for each top-level item that describes the whole: its line -> the heading that says so.

    A heading counts for its subsections, except that of the whole file.
    """
    above: list[Node] = []
    described: dict[int, str] = {}
    for node in found.nodes:
        if node.heading:
            above = [one for one in above if one.heading < node.heading] + [node]
            continue
        for one in reversed(above):
            if tasklist.is_list_heading(one.text):
                break
            if (one is above[-1] or one.heading > 1) and _ABOUT_THE_WHOLE.fullmatch(
                _NUMBERING.sub("", one.text)
            ):
                described[node.line] = one.text
                break
    return described


def _unmarked(found: Outline, tasks: list[Node]) -> Iterator[Node]:
    """Yield the top-level items of a section of tasks that cannot be tasks: they have neither a box nor an id."""
    taken = {node.line for node in tasks}
    inside = 0
    for node in found.nodes:
        if node.heading and node.line in taken:
            inside = node.end
        item = not node.heading and not node.depth and node.mark is None and node.line >= inside
        if item and node.line not in taken and tasklist.is_list_heading(node.section):
            yield node


def _without_box(line: str, node: Node) -> str:
    start, end = node.span
    return line[: start - 1] + line[end + 1 :].lstrip(" \t")


def _renamed(line: str, node: Node, name: str, title: str) -> str:
    end = line[len(line.rstrip("\r\n")) :]
    head = line[: line.rindex(node.text)]
    shown = tasklist.shown_id(name, heading=bool(node.heading))
    return f"{head}{shown}: {title}{end}"


# ---- status ----


def _markers(text: str) -> tuple[dict[str, Marker], list[ImportNote]]:
    """Return the marker of each task, and a note on each task of which only a part is done."""
    found = tasklist.read_tasks(outline(text))
    markers: dict[str, Marker] = {}
    notes: list[ImportNote] = []
    for entry in found.entries:
        boxes = _boxes(found.outline, entry)
        done = sum(1 for mark in boxes if (_sign(mark) or Marker.OPEN) in SETTLED)
        marker = entry.mark or _said(found.outline, entry)
        if marker is None and boxes and done == len(boxes):
            marker = Marker.DONE
        if marker is None and done:
            notes.append(_note(entry.node, f"{done} of its {len(boxes)} boxes are done; imported as open"))
        markers[entry.id] = marker or Marker.OPEN
    return markers, notes


def _boxes(found: Outline, entry: TaskEntry) -> list[str]:
    """Return the marks of the boxes among the details of a task."""
    first, last = entry.node.line, entry.node.end
    return [node.mark for node in found.nodes if first < node.line < last and node.mark is not None]


def _said(found: Outline, entry: TaskEntry) -> Marker | None:
    """Return the status that the heading of a task, its title or its field `Status` gives."""
    end = list(_SIGN_AT_END.finditer(entry.node.text))
    if end and end[-1].end() == len(entry.node.text):
        sign = _sign(end[-1]["word"] or "✅")
        if sign is not None:
            return sign
    for line in found.lines[entry.node.line + 1 : entry.node.end]:
        if field := _STATUS.fullmatch(line.strip()):
            return _sign(field["value"].strip(" *_`"))
    return None


def _sign(said: str) -> Marker | None:
    """Return the marker of a status in words or signs, or None."""
    if said in SPELLINGS:
        return SPELLINGS[said]
    folded = said.strip().lower().removesuffix("\ufe0f")
    return _SIGNS.get(folded) or _SIGNS.get(folded[:1]) or _SIGNS.get(folded.partition(" ")[0])
