"""The tasks of a session: the descriptions of tasks.md with the markers of progress.md. Pure.

A task without a line in progress.md has the status of its box in tasks.md, and is open without a box. A line of
progress.md without a task in tasks.md is a task with only a title.
"""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter

from orchestrator.machines.ralph.fault import SessionFileError
from orchestrator.machines.ralph.marker import Marker
from orchestrator.machines.ralph.model import Task
from orchestrator.machines.ralph.tasklist import TaskEntry, TaskList

_TASK_ID = re.compile(r"task-[\w.-]+")


def together(tasks: TaskList, progress: TaskList, where: str) -> tuple[Task, ...]:
    """Return the tasks in the order of tasks.md. Raises SessionFileError for impossible predecessors."""
    described = {entry.id for entry in tasks.entries}
    known = {entry.id for entry in (*tasks.entries, *progress.entries) if not entry.planning}
    lines_of = {entry.id: entry for entry in progress.entries}
    merged = [
        *(_task(entry, lines_of.get(entry.id), known) for entry in tasks.entries),
        *(_task(entry, entry, known) for entry in progress.entries if entry.id not in described),
    ]
    lines = {entry.id: entry.node.line + 1 for entry in tasks.entries}
    for task in merged:
        for forerunner in task.inherits_from:
            if forerunner not in known:
                raise SessionFileError(
                    where, lines.get(task.id, 0), f"{task.id} depends on {forerunner}, which is not a task"
                )
    if circle := _circle(merged):
        raise SessionFileError(
            where, lines.get(circle[0], 0), f"these tasks depend on each other: {', '.join(circle)}"
        )
    return tuple(merged)


def _task(entry: TaskEntry, line: TaskEntry | None, known: set[str]) -> Task:
    status = entry.mark if line is None else line.mark
    given = entry.fields
    # Text that neither is nor looks like a task ("plan.md, section 2") is prose, and a task does not depend on
    # prose. It does not depend on planning either, which is complete before any task starts.
    forerunners = [one for one in given.get("inherits_from", ()) if one in known or _TASK_ID.fullmatch(one)]
    return Task(
        id=entry.id,
        title=entry.title,
        marker=status or Marker.OPEN,
        planning=entry.planning or (line is not None and line.planning),
        type="Parallelizable" if _first(given.get("type")).lower().startswith("parallel") else "Sequential",
        files=tuple(given.get("files", ())),
        objective=" ".join(given.get("objective", ())),
        criteria=tuple(given.get("criteria", ())),
        inherits_from=tuple(one for one in forerunners if one != entry.id),
    )


def _first(values: tuple[str, ...] | None) -> str:
    return values[0] if values else ""


def _circle(tasks: list[Task]) -> list[str]:
    """Return tasks that depend on each other, so that none could ever start; empty if there are none."""
    try:
        TopologicalSorter({task.id: task.inherits_from for task in tasks}).prepare()
    except CycleError as error:
        return sorted(set(error.args[1]))
    return []
