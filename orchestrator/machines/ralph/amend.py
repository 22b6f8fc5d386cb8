"""Single changes of tasks.md and progress.md: a moved marker, an added line. Pure; all other text stays."""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.machines.ralph.marker import Marker
from orchestrator.machines.ralph.outline import Node, Outline, outline
from orchestrator.machines.ralph.tasklist import TaskEntry, TaskList, shown_id

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
