"""tasks.md and progress.md as data, and as text with single changes. Pure; all other text stays.

tasks.md describes the tasks. A task has one of these forms, with its details indented below:

    - task-1: Do this            under a heading that ends in "Tasks" or "Task List"
    - [ ] task-1: Do this        anywhere; without an id the id is derived from the text
    ### task-1: Do this          a heading, also "Task 1: Do this"; its list items are not tasks then

progress.md contains the status of each task: `- [x] task-1`, `- [ ] task-2: anything`. Items under a heading that
starts with "Planning", and ids that start with `plan-` or `qa-`, belong to planning.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.errors import RunError
from orchestrator.machines.ralph.outline import Node, Outline, OutlineProblem, outline

# ---- errors of the files of a session ----


class SessionFileError(RunError):
    """A file of a session cannot be read; `line` counts from 1 and is 0 for the whole file."""

    def __init__(self, path: str, line: int, why: str) -> None:
        super().__init__(f"{path}{f':{line}' if line else ''}: {why}")
        self.path = path
        self.line = line
        self.why = why


class OutsideEdit(RunError):
    """A file was changed outside since it was read. It is left unchanged."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} was changed outside since it was read; nothing was written. Check the file, then continue"
        )
        self.path = path


class IllegalMove(RunError):
    """A task's marker cannot move in this way; `allowed` are the markers that may follow."""

    def __init__(self, task: str, before: str, after: str, allowed: tuple[str, ...]) -> None:
        may = ", ".join(f"[{one}]" for one in allowed) or "nothing"
        super().__init__(
            f"task {task!r} cannot move from [{before}] to [{after}]; allowed after [{before}]: {may}"
        )
        self.task = task
        self.before = before
        self.after = after
        self.allowed = allowed


# ---- markers ----


class Marker(StrEnum):
    """The character between the brackets."""

    OPEN = " "
    ACTIVE = "/"
    REVIEW = "P"
    DONE = "x"
    FAILED = "F"
    CANCELLED = "C"


SETTLED = frozenset((Marker.DONE, Marker.CANCELLED))
"""Markers of tasks that need no more work."""

MOVES: Mapping[Marker, frozenset[Marker]] = {
    Marker.OPEN: frozenset((Marker.ACTIVE, Marker.CANCELLED)),
    Marker.ACTIVE: frozenset((Marker.REVIEW, Marker.OPEN, Marker.FAILED)),
    Marker.REVIEW: frozenset((Marker.DONE, Marker.OPEN, Marker.FAILED)),
    Marker.DONE: frozenset(),
    Marker.FAILED: frozenset((Marker.OPEN,)),
    Marker.CANCELLED: frozenset(),
}
"""Marker -> allowed next markers. `[P]` and `[/]` → `[ ]` are for rework."""


def check_move(task: str, before: Marker, after: Marker) -> bool:
    """Return whether the marker has to be written: False if it is set already. Raises IllegalMove."""
    if before is after:
        return False
    if after not in MOVES[before]:
        raise IllegalMove(task, before, after, tuple(sorted(MOVES[before])))
    return True


# ---- lists ----


SPELLINGS: Mapping[str, Marker] = {marker.value: marker for marker in Marker} | {
    "X": Marker.DONE,
    "p": Marker.REVIEW,
    "f": Marker.FAILED,
    "c": Marker.CANCELLED,
}
"""Spellings of people and models -> marker. The spelling stays in the file until the marker is moved."""

_ALLOWED = ", ".join(f"[{marker.value}]" for marker in Marker)
_ID = r"[A-Za-z][A-Za-z0-9_]*(?:[-.][A-Za-z0-9_]+)+|[A-Z]{1,6}\d[\w.]*"
_NAMED = re.compile(rf"(?P<q>\*\*|`|)(?P<id>{_ID})(?P=q)\s*(?:(?P<sep>:|[—–]|-\s)\s*|(?=\()|$)(?P<rest>.*)")
_NAMED_PLAIN = re.compile(r"(?P<id>(?:task|plan|qa)-\d[\w.]*)\s+(?P<rest>.*)")
_NAMED_CODE = re.compile(r"`(?P<id>[A-Za-z0-9][A-Za-z0-9_.-]{0,79})`\s*(?P<sep>:)\s*(?P<rest>.*)")
_NAMED_BOLD = re.compile(rf"\*\*(?P<id>{_ID})\s*(?P<sep>:|[—–])\s*(?P<rest>.*)")
_TASK_HEADING = re.compile(
    r"(?:(?:\[(?P<mark>.)\]|(?P<done>[✓✔✅☑])\ufe0f?)\s+)?[Tt]ask\s+(?P<number>\d[\w.]*)\s*(?:[:—–.]|-\s)\s*(?P<rest>.*)"
)
_LIST_HEADING = re.compile(r".*\b(?:tasks|task list|task)\b\W*", re.IGNORECASE)
_FIELD = re.compile(
    r"(?:\*\*|__)?(?P<name>[A-Za-z][A-Za-z ]{2,20}?)(?:\*\*|__)?\s*:(?:\*\*|__)?\s*(?P<value>.*)"
)
_DEPENDS = re.compile(r"\bdepends on\b\s*:?\s*(?P<ids>[^)]*)", re.IGNORECASE)
_FIELDS: Mapping[str, str] = {
    "type": "type",
    "files": "files",
    "objective": "objective",
    "success criteria": "criteria",
    "acceptance criteria": "criteria",
    "inherits from": "inherits_from",
    "depends on": "inherits_from",
    "dependencies": "inherits_from",
}
_SHORTEST = 3
"""Minimum characters of an id that is derived from a text; a shorter one would not identify the task."""
EXAMPLE = "`- [ ] task-1: what` is one"
"""Hint for people and models that wrote a list without a task."""
SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
"""An id that can be part of a file name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """A task in one of the two files."""

    id: str
    title: str
    node: Node
    mark: Marker | None = None
    """None if the file does not give a status."""
    planning: bool = False
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Type, files, objective, criteria and inherits_from, if given."""


@dataclass(frozen=True, slots=True)
class TaskList:
    """One of the two files."""

    outline: Outline
    entries: tuple[TaskEntry, ...]
    problems: tuple[OutlineProblem, ...]

    def get(self, task_id: str) -> TaskEntry | None:
        """Return the entry of a task, or None."""
        return next((entry for entry in self.entries if entry.id == task_id), None)


def read_tasks(found: Outline) -> TaskList:
    """Parse a tasks.md."""
    return _read(found, task_nodes(found), strict=False)


def read_progress(found: Outline) -> TaskList:
    """Parse a progress.md. Each of its boxes must have a known marker."""
    items = [node for node in found.nodes if node.mark is not None and not node.depth]
    return _read(found, items, strict=True)


def task_nodes(found: Outline) -> Iterator[Node]:
    """Yield the headings and items that are tasks."""
    inside = 0
    for node in found.nodes:
        if node.line < inside:
            continue
        if node.heading:
            if node.heading > 1 and _heading_id(node.text):
                inside = node.end
                yield node
            continue
        if node.depth:
            continue
        if node.mark is not None or (is_list_heading(node.section) and _is_named(node.text)):
            yield node


def is_list_heading(text: str) -> bool:
    """Return whether a heading is that of a list of tasks."""
    return _LIST_HEADING.fullmatch(text) is not None


def _is_named(text: str) -> bool:
    name = _NAMED.fullmatch(text) or _NAMED_BOLD.fullmatch(text) or _NAMED_CODE.fullmatch(text)
    return name is not None and name["sep"] is not None


def _read(found: Outline, nodes: Iterable[Node], *, strict: bool) -> TaskList:
    # The first line with a zero byte: a file saved as UTF-16 would otherwise be a list without tasks.
    at = next((number for number, line in enumerate(found.lines, 1) if "\0" in line), None)
    problems = [
        *found.problems,
        *([] if at is None else [OutlineProblem(at, "contains a zero byte; save the file as UTF-8")]),
    ]
    entries: list[TaskEntry] = []
    taken: dict[str, Node] = {}
    for node in nodes:
        given = node.mark if not node.heading else _heading_mark(node.text)
        if given is not None and given not in SPELLINGS:
            if strict or len(given) == 1:
                problems.append(
                    OutlineProblem(node.line + 1, f"unknown marker [{given}]; allowed: {_ALLOWED}")
                )
            if strict:
                continue
            given = None
        name, title = name_of(node)
        if not name:
            name = unused(made_id(title), taken)
        elif name in taken:
            first = taken[name].line + 1
            problems.append(OutlineProblem(node.line + 1, f"task {name} occurs twice; first in line {first}"))
            continue
        taken[name] = node
        entries.append(
            TaskEntry(
                id=name,
                title=title,
                node=node,
                mark=None if given is None else SPELLINGS[given],
                planning=name.startswith(("plan-", "qa-")) or node.section.lower().startswith("planning"),
                fields=_fields(found, node),
            )
        )
    return TaskList(found, tuple(entries), tuple(sorted(problems, key=lambda one: one.line)))


# ---- ids ----


def name_of(node: Node) -> tuple[str, str]:
    """Return the id of a task, or "", and its title."""
    return split(node.text) if not node.heading else (_heading_id(node.text) or ("", node.text))


def split(text: str) -> tuple[str, str]:
    """Return the id at the start of a task's text, or "", and the rest."""
    if found := _NAMED_BOLD.fullmatch(text) or _NAMED_CODE.fullmatch(text):
        return found["id"], _plain(found["rest"])
    found = _NAMED.fullmatch(text) or _NAMED_PLAIN.fullmatch(text)
    if found is None or not SAFE_ID.fullmatch(found["id"]):
        return "", _plain(text)
    return found["id"], _plain(found["rest"])


def shown_id(task_id: str, *, heading: bool = False) -> str:
    """Return an id as it is written before a text, in a code span if it would not be recognized otherwise."""
    plain = f"{task_id}: x"
    read = (_heading_id(plain) or ("",)) if heading else split(plain)
    return task_id if read[0] == task_id else f"`{task_id}`"


def _heading_id(text: str) -> tuple[str, str] | None:
    if found := _TASK_HEADING.fullmatch(text):
        return f"task-{found['number'].rstrip('.')}", _plain(found["rest"])
    if found := _NAMED_CODE.fullmatch(text):
        return found["id"], _plain(found["rest"])
    found = _NAMED.fullmatch(text)
    if found is None or found["sep"] is None or not any(one.isdigit() for one in found["id"]):
        return None
    return found["id"], _plain(found["rest"])


def _heading_mark(text: str) -> str | None:
    """Return the known mark of a heading such as `[x] Task 1: Do this` or `✅ Task 1: Do this`, else None."""
    found = _TASK_HEADING.fullmatch(text)
    if found is not None and found["done"]:
        return Marker.DONE.value
    return found["mark"] if found is not None and found["mark"] in SPELLINGS else None


def _encoded(title: str) -> bytes:
    """Return the bytes of a title, as a file has them; a lone surrogate, which only JSON can have, as three bytes."""
    try:
        return title.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return title.encode("utf-8", "surrogatepass")


def made_id(title: str) -> str:
    """Return an id that is derived from a task's text, so that it stays the same when the task is moved."""
    folded = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", folded).strip("-")
    if len(slug) < _SHORTEST:
        return f"task-{hashlib.sha256(_encoded(title)).hexdigest()[:8]}"
    return slug[:40].rstrip("-")


def unused(name: str, taken: Mapping[str, object]) -> str:
    """Return an id that is not taken, derived from another one."""
    number, fresh = 2, name
    while fresh in taken:
        fresh, number = f"{name}-{number}", number + 1
    return fresh


def _plain(text: str) -> str:
    """Return text without emphasis around the whole of it."""
    stripped = text.strip()
    for mark in ("**", "__"):
        inner = stripped[len(mark) : -len(mark)]
        if stripped.startswith(mark) and stripped.endswith(mark) and inner and mark not in inner:
            return inner.strip()
    return stripped.removesuffix("**").strip() if stripped.count("**") == 1 else stripped


# ---- details of a task ----


def _line(node: Node) -> int:
    return node.line


def _fields(found: Outline, task: Node) -> Mapping[str, tuple[str, ...]]:
    first = bisect_right(found.nodes, task.line, key=_line)
    below = [
        node
        for node in found.nodes[first : bisect_left(found.nodes, task.end, key=_line)]
        if not node.heading
    ]
    least = min((node.depth for node in below), default=0)
    fields: dict[str, tuple[str, ...]] = {}
    for number, node in enumerate(below):
        named = _FIELD.fullmatch(node.text) if node.depth == least else None
        name = _FIELDS.get(named["name"].strip().lower()) if named else None
        if named is None or name is None:
            continue
        listed = []
        for deeper in below[number + 1 :]:
            if deeper.depth <= least:
                break
            if deeper.depth == least + 1:
                listed.append(_plain(deeper.text))
        value = _plain(named["value"])
        if name in {"files", "inherits_from"}:
            fields[name] = (*_listed(value), *(one for item in listed for one in _listed(item)))
        else:
            fields[name] = (*((value,) if value else ()), *listed)
        if name == "type" and (depends := _DEPENDS.search(named["value"])):
            fields.setdefault("inherits_from", _listed(depends["ids"]))
    return fields


def _listed(value: str) -> tuple[str, ...]:
    inner = value.strip().removeprefix("[").removesuffix("]")
    parts = (part.strip(" `*\"'") for part in re.split(r",|\band\b", inner))
    return tuple(part for part in parts if part and part.lower() not in {"none", "n/a", "-"})


# ---- changes ----


PLANNING = "## Planning Progress"
IMPLEMENTATION = "## Implementation Progress"
TASKS = "## Implementation Tasks"

_WORDS = {
    Marker.OPEN: "not started",
    Marker.ACTIVE: "in progress",
    Marker.REVIEW: "review pending",
    Marker.DONE: "completed",
    Marker.FAILED: "failed",
    Marker.CANCELLED: "cancelled",
}

_STATUS = re.compile(rf"\((?:{'|'.join(_WORDS.values())})\)(?=\s*$)", re.IGNORECASE)
"""Status text after an id in the template of progress.md: `task-1 (In Progress)`."""

LEGEND = "Markers: " + ", ".join(f"`[{marker.value}]` {word}" for marker, word in _WORDS.items())


def new_progress(title: str) -> str:
    """Return the progress.md of a new session."""
    return f"# Progress Tracking\n\n{title}\n\n{LEGEND}\n\n{PLANNING}\n\n{IMPLEMENTATION}\n"


def moved(there: TaskList, entry: TaskEntry, to: Marker) -> str:
    """Return the file with the marker of one entry moved, and its status text changed if there is one."""
    text = there.outline.marked(entry.node, to.value)
    lines = outline(text).lines
    said = _STATUS.sub(f"({_WORDS[to].title()})", lines[entry.node.line])
    return "".join((*lines[: entry.node.line], said, *lines[entry.node.line + 1 :]))


def with_status(there: TaskList, task_id: str, title: str, marker: Marker, *, planning: bool = False) -> str:
    """Return a progress.md with a line for a task that has none."""
    text = f"- [{marker.value}] {shown_id(task_id)}: {one_line(title) or task_id}"
    siblings = [entry for entry in there.entries if entry.planning == planning]
    found = there.outline
    if siblings:
        return found.inserted(siblings[-1].node.end, [text])
    heading = PLANNING if planning else IMPLEMENTATION
    section = _section(found, heading.lstrip("# ").partition(" ")[0])
    if section is not None:
        lines = [text] if section.end > section.line + 1 else ["", text]
        return found.inserted(section.end, lines)
    return found.inserted(len(found.lines), ["", heading, "", text] if found.lines else [heading, "", text])


def with_task(there: TaskList, task_id: str, description: str, rationale: str) -> str:
    """Return a tasks.md with another task in the style of the existing ones."""
    found = there.outline
    last = next((entry for entry in reversed(there.entries) if not entry.planning), None)
    section = _section(found, "Discovered")
    style = _written(last, task_id, one_line(description), one_line(rationale))
    if section is not None:
        return found.inserted(section.end, style)
    if last is not None:
        apart = [""] if last.node.heading or last.node.end - last.node.line > 1 else []
        return found.inserted(last.node.end, [*apart, *style])
    heading = [] if _section(found, "Implementation") else [TASKS, ""]
    blank = [""] if found.lines and found.lines[-1].strip() else []
    return found.inserted(len(found.lines), [*blank, *heading, *style])


def _written(like: TaskEntry | None, task_id: str, description: str, rationale: str) -> list[str]:
    task_id = shown_id(task_id, heading=like is not None and like.node.heading > 0)
    if like is not None and like.node.heading:
        lines = [f"{'#' * like.node.heading} {task_id}: {description}", "", "- **Type**: Sequential"]
        return [*lines, f"- **Objective**: {rationale or description}"]
    box = "[ ] " if like is not None and like.mark is not None else ""
    lines = [f"- {box}{task_id}: {description}"]
    if not box:
        lines.append("    - **Type**: Sequential")
    if rationale or not box:
        lines.append(f"    - **Objective**: {rationale or description}")
    return lines


def _section(found: Outline, begins: str) -> Node | None:
    """Return the last heading that starts with this text."""
    headings: Iterable[Node] = (node for node in reversed(found.nodes) if node.heading)
    return next((node for node in headings if node.text.lower().startswith(begins.lower())), None)


def one_line(text: str) -> str:
    """Return text on one line that cannot end its item, start another one, or open a comment; without zero bytes."""
    return " ".join(text.replace("\0", " ").split()).replace("<!--", "<! --")
