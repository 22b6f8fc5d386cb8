"""A new session from an existing list of tasks. The list is only read.

    *.json                prd.json: stories become tasks, `passes` becomes their marker
    *.md                  tasks.md, fix_plan.md: copied, without boxes that are no tasks; its boxes become the markers
    *.txt                 progress.txt, beside a prd.json: its learnings become part of the plan

All files are read before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from orchestrator.files.bounded import read_file
from orchestrator.machines.ralph import amend, prd, tasklist
from orchestrator.machines.ralph.fault import SessionFileError
from orchestrator.machines.ralph.foreign_list import ForeignList, ImportNote, read_foreign_list
from orchestrator.machines.ralph.marker import SETTLED, Marker
from orchestrator.machines.ralph.model import Task
from orchestrator.machines.ralph.outline import decoded, outline
from orchestrator.machines.ralph.reports import quoted
from orchestrator.machines.ralph.task_count import together
from orchestrator.machines.ralph.tasklist import read_progress, read_tasks
from orchestrator.runtime.ralph.session.directory import PROGRESS, TASKS, SessionDirectory

PLAN = "plan.md"
_SHOWN = 5
"""Lines that an error about a list without a task names."""


class ImportedTasks:
    """Task files that were read. Raises SessionFileError with file and line, and OSError."""

    def __init__(self, files: Sequence[Path]) -> None:
        lists = [file for file in files if file.suffix in {".json", ".example", ".md"}]
        logs = [file for file in files if file.suffix == ".txt"]
        if len(lists) != 1 or len(logs) > 1 or len(lists) + len(logs) != len(files):
            named = ", ".join(str(file) for file in files)
            raise SessionFileError(
                named, 0, "give one list (prd.json, tasks.md), and with a prd.json its progress.txt"
            )
        self.file = lists[0]
        self.left_out: tuple[ImportNote, ...] = ()
        """Lines that are not imported."""
        self.changed: tuple[ImportNote, ...] = ()
        """Lines that are imported in another form."""
        text = decoded(read_file(self.file))
        if self.file.suffix == ".md":
            if logs:
                raise SessionFileError(str(logs[0]), 0, "goes with a prd.json, not with a list in Markdown")
            given = read_foreign_list(text)
            self.left_out, self.changed = given.left_out, given.changed
            self.request, self._files = _of_markdown(given, str(self.file))
        else:
            found = prd.read_prd(text, str(self.file))
            self.left_out, self.changed = found.left_out, found.changed
            known = [story.id for story in found.stories]
            log = prd.read_log(decoded(read_file(logs[0])), str(logs[0]), known) if logs else None
            self.request, self._files = found.description or found.title, _of_prd(found, log)

    def tasks(self) -> tuple[Task, ...]:
        """Return the imported tasks."""
        lists = (read_tasks(outline(self._files[TASKS])), read_progress(outline(self._files[PROGRESS])))
        return together(*lists, str(self.file))

    @property
    def doubtful(self) -> bool:
        """Whether more entries of an unknown form are left out than tasks are imported."""
        return sum(1 for note in self.left_out if not note.known) > len(self.tasks())

    def summary(self) -> list[str]:
        """Return lines about the import: the number of tasks, and what was left out or changed and why."""
        tasks = self.tasks()
        done = sum(1 for task in tasks if task.marker in SETTLED)
        lines = [f"{self.file.name}: {len(tasks)} tasks, {done} of them done; {len(self.left_out)} left out"]
        lines += [f"  left out, {note}" for note in self.left_out]
        lines += [f"  changed, {note}" for note in self.changed]
        return lines

    def into(self, root: Path, request: str, session_id: str) -> SessionDirectory:
        """Make a session of them. Raises SessionFileError if another session has that id."""
        session = SessionDirectory.create(root, request or self.request, session_id)
        if not (session.path / TASKS).exists():
            session.fill(self._files)
        return session


def _of_markdown(given: ForeignList, where: str) -> tuple[str, dict[str, str]]:
    text = given.text
    found = read_tasks(outline(text))
    if found.problems:
        raise SessionFileError(where, found.problems[0].line, found.problems[0].why)
    if not found.entries:
        lost = "".join(f"; {note}" for note in given.left_out[:_SHOWN])
        raise SessionFileError(where, 0, f"has no task: {tasklist.EXAMPLE}{lost}")
    together(found, read_progress(outline("")), where)
    title = next((node.text for node in found.outline.nodes if node.heading), Path(where).stem)
    statuses = [(entry.id, entry.title, given.markers[entry.id]) for entry in found.entries]
    plan = f"# Plan: {title}\n\n## Goal & Success Criteria\n\nAll tasks of tasks.md, taken from {Path(where).name}.\n"
    return title, {PLAN: plan, PROGRESS: _progress(statuses), TASKS: text}


def _of_prd(found: prd.PrdPlan, log: prd.ProgressLog | None) -> dict[str, str]:
    plan = [f"# Plan: {found.title}", "", "## Goal & Success Criteria", "", *quoted(found.description)]
    plan += ["", "## Context & Analysis"]
    if found.context is not None:
        plan += ["", "```json", json.dumps(found.context, indent=2, ensure_ascii=False), "```"]
    for title, said in (log.sections if log else {}).items():
        plan += ["", f"### {title}", "", *quoted(said)]
    tasks = ["# Task List", "", amend.TASKS]
    for story in found.stories:
        tasks += [
            f"- {tasklist.shown_id(story.id)}: {amend.one_line(story.title)}",
            "    - **Type**: Sequential",
        ]
        if said := amend.one_line(f"{story.description} {story.notes}"):
            tasks.append(f"    - **Objective**: {said}")
        tasks.append("    - **Success Criteria**:")
        tasks += [f"        - {amend.one_line(one)}" for one in story.criteria]
        tasks.append("")
    statuses = [
        (story.id, story.title, Marker.DONE if story.done else Marker.OPEN) for story in found.stories
    ]
    return {
        PLAN: "\n".join(plan) + "\n",
        PROGRESS: _progress(statuses),
        TASKS: "\n".join(tasks).rstrip("\n") + "\n",
    }


def _progress(statuses: Sequence[tuple[str, str, Marker]]) -> str:
    lines = [
        f"- [{marker.value}] {tasklist.shown_id(task_id)}: {amend.one_line(title)}"
        for task_id, title, marker in statuses
    ]
    return amend.new_progress("Imported tasks") + "\n" + "\n".join(lines) + "\n"
