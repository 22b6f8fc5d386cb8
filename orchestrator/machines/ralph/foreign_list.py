"""Task lists that other people and tools wrote, as the tasks.md of a session. Pure.

Markdown: only tasks are taken. A box under a heading such as *Overview* or *Success Criteria* describes the whole, so
it loses its box in the copy. A marker that we do not have, and an id that occurs twice, are replaced. Every line that
is left out or changed is reported, and all other text stays byte for byte.

The files of other loops of this kind:

prd.json      {"description", "userStories": [{"id", "title", "acceptanceCriteria", "priority", "passes", ...}]}
progress.txt  a log, newest entry anywhere: `## [2026-03-04] - US-013`, `## 2026-03-21 - setup: title`

Relatives of prd.json are read, too: an array at the top, other names of the list and of its members, criteria that are
objects. A story that cannot be read is left out and reported, and so is every value that is not taken as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

from orchestrator.machines.ralph import tasklist
from orchestrator.machines.ralph.outline import Node, Outline, outline
from orchestrator.machines.ralph.tasklist import (
    SAFE_ID,
    SETTLED,
    SPELLINGS,
    Marker,
    SessionFileError,
    TaskEntry,
    made_id,
    unused,
)

_SHOWN = 80
"""Maximum characters of a line in a note."""
_SHOWN_NOTES = 5
"""Maximum notes in the error of a list without a story."""


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
    # For each top-level item that describes the whole: its line -> the heading that says so.
    above: list[Node] = []
    sections: dict[int, str] = {}
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
                sections[node.line] = one.text
                break
    names: dict[str, int] = {}
    for node in tasks:
        if not node.heading and (section := sections.get(node.line)) is not None:
            line, (start, end) = lines[node.line], node.span
            lines[node.line] = line[: start - 1] + line[end + 1 :].lstrip(" \t")
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
        # The marks of the boxes among the details of a task.
        first, last = entry.node.line, entry.node.end
        boxes = [
            node.mark for node in found.outline.nodes if first < node.line < last and node.mark is not None
        ]
        done = sum(1 for mark in boxes if (_sign(mark) or Marker.OPEN) in SETTLED)
        marker = entry.mark or _said(found.outline, entry)
        if marker is None and boxes and done == len(boxes):
            marker = Marker.DONE
        if marker is None and done:
            notes.append(_note(entry.node, f"{done} of its {len(boxes)} boxes are done; imported as open"))
        markers[entry.id] = marker or Marker.OPEN
    return markers, notes


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


# ---- prd.json and progress.txt ----


_LISTS = ("userStories", "user_stories", "stories", "tasks", "items", "features", "issues")
"""Names of the list of stories."""
_TITLES = ("title", "name", "summary", "task", "story", "description")
_CRITERIA = ("acceptanceCriteria", "acceptance_criteria", "criteria", "successCriteria", "steps")
_TEXTS = ("description", "text", "criterion", "title", "name", "condition")
_DONE = ("passes", "done", "completed", "complete")
_STATES: Mapping[str, bool] = {
    **dict.fromkeys(
        ("true", "yes", "y", "done", "completed", "complete", "finished", "passed", "passing", "closed"), True
    ),
    **dict.fromkeys(
        ("false", "no", "n", "", "open", "todo", "to do", "pending", "not started", "failing"), False
    ),
    **dict.fromkeys(("in progress", "in_progress", "in-progress", "started", "blocked", "failed"), False),
}
"""A status in words -> whether the story is done."""
_RANKS: Mapping[str, float] = {
    **dict.fromkeys(("critical", "highest", "urgent", "p0"), 0),
    **dict.fromkeys(("high", "must", "p1"), 1),
    **dict.fromkeys(("medium", "normal", "should", "p2"), 2),
    **dict.fromkeys(("low", "could", "p3"), 3),
    **dict.fromkeys(("lowest", "p4"), 4),
}
"""A priority in words -> its rank."""
_GAP = " \t\r\n,"
_ENTRY = re.compile(r"##\s+\[?(?P<date>\d{4}-\d\d-\d\d)\]?\s+[-–—]\s+(?P<id>[^\s:]+)\s*(?::.*)?")
_DATED = re.compile(r"##\s+\[?\d{4}-\d")
_SECTION = re.compile(r"##\s+(?P<title>.*\S)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrdTask:
    """A task of a prd.json."""

    id: str
    title: str
    description: str = ""
    criteria: tuple[str, ...] = ()
    priority: float = 0.0
    done: bool = False
    notes: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrdPlan:
    """A prd.json."""

    title: str
    description: str
    stories: tuple[PrdTask, ...]
    context: Any = None
    """Other information about the whole, as plain data."""
    left_out: tuple[ImportNote, ...] = ()
    """Entries of the list that are no stories."""
    changed: tuple[ImportNote, ...] = ()
    """Values that are not taken as they are."""


def read_prd(text: str, where: str) -> PrdPlan:
    """Parse a prd.json. Raises SessionFileError if it has no story, with the line of an error of JSON."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise SessionFileError(where, error.lineno, f"is not JSON: {error.msg}") from None
    except ValueError as error:  # a number with thousands of digits
        raise SessionFileError(where, 0, f"cannot be read: {error}") from None
    except RecursionError:
        raise SessionFileError(where, 0, "is nested too deeply") from None
    whole: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    lists = {name: whole[name] for name in _LISTS if isinstance(whole.get(name), list)}
    name = next((name for name in lists if lists[name]), next(iter(lists), None))
    given = data if isinstance(data, list) else None if name is None else lists[name]
    if given is None:
        why = "is not a list of stories; it must be an array, or an object with one of these: "
        raise SessionFileError(where, 1, why + ", ".join(_LISTS))
    reading = _StoryReader()
    for story, line in zip_longest(given, _lines(text, name), fillvalue=0):
        reading.add(story, int(line or 0))
    reading.left_out += [
        ImportNote(0, other, f"{len(found)} entries; the stories are in {name!r}", known=False)
        for other, found in lists.items()
        if other != name and found
    ]
    if not reading.stories:
        lost = "; ".join(map(str, reading.left_out[:_SHOWN_NOTES])) or "the list is empty"
        raise SessionFileError(where, 0, f"has no story: {lost}")
    return PrdPlan(
        title=str(whole.get("project") or whole.get("productName") or "Imported stories"),
        description=str(whole.get("description") or ""),
        stories=tuple(sorted(reading.stories, key=lambda story: story.priority)),
        context=whole.get("context"),
        left_out=tuple(reading.left_out),
        changed=tuple(reading.changed),
    )


def _lines(text: str, name: str | None) -> Iterator[int]:
    """Yield the first line of each entry of the list with that name; None is an array at the top."""
    if name is None:
        at = text.index("[") + 1
    else:
        found = re.search(rf'"{name}"\s*:\s*\[', text)
        at = found.end() if found else len(text)
    decoder = json.JSONDecoder()
    while True:
        while at < len(text) and text[at] in _GAP:
            at += 1
        if at >= len(text) or text[at] == "]":
            return
        yield text.count("\n", 0, at) + 1
        try:
            _, at = decoder.raw_decode(text, at)
        except ValueError:
            return


@dataclass(slots=True)
class _StoryReader:
    """Reads the entries of a list of stories one after the other."""

    stories: list[PrdTask] = field(default_factory=list)
    left_out: list[ImportNote] = field(default_factory=list)
    changed: list[ImportNote] = field(default_factory=list)
    _lines: dict[str, int] = field(default_factory=dict)
    """Id of a story -> its line."""

    def add(self, given: object, line: int) -> None:
        """Read one entry, or note why it is left out."""
        story: Mapping[str, Any] = {"title": given} if isinstance(given, str) else {}
        story = given if isinstance(given, Mapping) else story
        title = next((story[name] for name in _TITLES if _is_said(story.get(name))), None)
        if title is None:
            why = (
                "a story has no title"
                if isinstance(given, Mapping)
                else "a story must be an object or a text"
            )
            self.left_out.append(ImportNote(line, _shown(given), why, known=False))
            return
        title = title.strip().splitlines()[0]
        criteria = _criteria(next((story[name] for name in _CRITERIA if story.get(name)), []))
        criteria += _criteria(story.get("subtasks") or [])
        self.stories.append(
            PrdTask(
                id=self._id(story, title, line),
                title=title,
                description=str(story.get("description") or ""),
                criteria=tuple(said for said, _ in criteria),
                priority=self._priority(story.get("priority", 0), title, line),
                done=self._done(story, [met for _, met in criteria], title, line),
                notes=str(story.get("notes") or ""),
                line=line,
            )
        )

    def _id(self, story: Mapping[str, Any], title: str, line: int) -> str:
        given = story.get("id")
        said = str(given) if isinstance(given, str | int) and not isinstance(given, bool) else ""
        usable = SAFE_ID.fullmatch(said) is not None
        name = said if usable else made_id(title)
        fresh = unused(name, self._lines)
        if given is not None and not usable:
            why = f"the id {_shown(given)} is imported as {fresh}; an id has letters, digits, - _ ."
            self.changed.append(ImportNote(line, title, why))
        elif fresh != name and usable:
            why = f"{name} occurs twice, first in line {self._lines[name]}; imported as {fresh}"
            self.changed.append(ImportNote(line, title, why))
        self._lines[fresh] = line
        return fresh

    def _priority(self, given: object, title: str, line: int) -> float:
        if isinstance(given, str):
            given = _RANKS.get(given.strip().lower(), given)
        if isinstance(given, str) and given.strip().isdigit():
            given = int(given)
        if isinstance(given, int | float) and not isinstance(given, bool) and given == given:  # noqa: PLR0124 - NaN
            return given
        self.changed.append(
            ImportNote(line, title, f"its priority {_shown(given)} is unknown; it keeps its place")
        )
        return self.stories[-1].priority if self.stories else 0

    def _done(self, story: Mapping[str, Any], met: list[bool | None], title: str, line: int) -> bool:
        """Return whether a story is done: as it says, else if each of its criteria says so."""
        said = [(name, story[name]) for name in (*_DONE, "status", "state") if story.get(name) is not None]
        for name, value in said:
            done = value if isinstance(value, bool) else _STATES.get(str(value).strip().lower())
            if done is not None:
                return done
            self.changed.append(
                ImportNote(line, title, f"its {name} {_shown(value)} is unknown; imported as open")
            )
        return not said and bool(met) and all(met)


def _is_said(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:120]


def _criteria(given: object) -> list[tuple[str, bool | None]]:
    """Return each criterion as text, and whether it is met if it says so."""
    if isinstance(given, str):
        return [(line.strip(" -*"), None) for line in given.splitlines() if line.strip(" -*")]
    found: list[tuple[str, bool | None]] = []
    for one in given if isinstance(given, list) else [given]:
        whole: Mapping[str, Any] = one if isinstance(one, Mapping) else {}
        said = next((whole[name] for name in _TEXTS if _is_said(whole.get(name))), None)
        said_done = (whole[name] for name in (*_DONE, "met", "checked", "status") if name in whole)
        met = next((_STATES.get(str(value).strip().lower()) for value in said_done), None)
        found.append((_shown(one) if said is None else said.strip(), met))
    return found


@dataclass(frozen=True, slots=True)
class ProgressEntry:
    """An entry of a progress.txt."""

    story: str
    date: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class ProgressLog:
    """A progress.txt: its entries, and other sections."""

    entries: tuple[ProgressEntry, ...]
    sections: Mapping[str, str]
    """Heading -> text of sections that are not entries: patterns, learnings."""


def read_log(text: str, where: str, known: Sequence[str] = ()) -> ProgressLog:
    """Parse a progress.txt.

    Raises SessionFileError for an invalid entry, or one about a story that is not in `known`.
    """
    entries: list[ProgressEntry] = []
    sections: dict[str, str] = {}
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if _SECTION.fullmatch(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        heading = lines[start].strip()
        body = "\n".join(line for line in lines[start + 1 : end] if line.strip() != "---").strip()
        found = _ENTRY.fullmatch(heading)
        if found is None and _DATED.match(heading):
            raise SessionFileError(
                where, start + 1, "is not an entry; write it as `## [2026-03-04] - US-013`"
            )
        if found is None:
            sections[heading.lstrip("# ")] = body
            continue
        if known and found["id"] not in known:
            raise SessionFileError(
                where, start + 1, f"is about the unknown story {found['id']}; known: {', '.join(known)}"
            )
        entries.append(ProgressEntry(found["id"], found["date"], body, start + 1))
    return ProgressLog(tuple(entries), sections)
