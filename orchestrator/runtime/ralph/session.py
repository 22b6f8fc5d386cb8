"""The directory of a session of the ralph loop: `.ralph-sessions/<yyMMdd-HHmmss>/`.

    plan.md                       goal, approach, verification; written by the planner
    plan.questions[.<name>].md    questions and answers by cycle
    tasks.md                      the tasks
    progress.md                   the state of each task: the truth for that
    tasks.<ID>-report[-r<N>].md   the work of an attempt and its review; never overwritten
    progress.review<N>.md         checks of the whole
    <SESSION>.instructions.md     instructions of people for the whole session
    transitions.jsonl             log of transitions

People, agents and the loop write here concurrently. So the loop never writes a file from memory: it changes one thing
in the text that it read, and only if the file still has the same SHA-256. A change from outside is refused and kept.
Between that check and the rename of the new file another program could still write; a program without locks cannot
close that gap.

*.json                prd.json: stories become tasks, `passes` becomes their marker
    *.md                  tasks.md, fix_plan.md: copied, without boxes that are no tasks; its boxes become the markers
    *.txt                 progress.txt, beside a prd.json: its learnings become part of the plan

All files are read before anything is written.

A line is written after its transition is durable. A crash between the two omits or truncates it; when the run is
resumed, the line is restored from the journal, which has all transitions.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.files import bounded
from orchestrator.files.atomic import atomic_write, read_digest, read_file, sweep
from orchestrator.files.path_safety import ODD, serves
from orchestrator.kernel.fact import Fact, Transition
from orchestrator.kernel.journal import Record
from orchestrator.kernel.run import Run
from orchestrator.machines.ralph import foreign_list, tasklist
from orchestrator.machines.ralph import questions as asking
from orchestrator.machines.ralph import reports as report_text
from orchestrator.machines.ralph.foreign_list import ForeignList, ImportNote, read_foreign_list
from orchestrator.machines.ralph.model import PlanQuestion, RalphEvent, RalphState, Task, together, trigger
from orchestrator.machines.ralph.outline import decoded, encoded, outline
from orchestrator.machines.ralph.reports import quoted
from orchestrator.machines.ralph.tasklist import (
    SAFE_ID,
    SETTLED,
    Marker,
    OutsideEdit,
    SessionFileError,
    TaskList,
    check_move,
    read_progress,
    read_tasks,
)
from orchestrator_callbacks.ralph.deps import RalphRun


class FileSet:
    """The files of a folder by name. All methods block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[str, str | None] = {}

    def where(self, name: str) -> str:
        """Return a file's path, for an error."""
        return str(self.folder / name)

    def read(self, name: str) -> str | None:
        """Return a file as text that preserves all bytes, None if it does not exist; remember its hash."""
        found = read_file(name, root=self.folder)
        if found.digest in ODD:
            raise SessionFileError(self.where(name), 0, f"is a {found.digest}, not a file")
        self._seen[name] = found.digest
        return None if found.digest is None else decoded(found.content)

    def content(self, name: str) -> bytes | None:
        """Return the bytes of a file without remembering its hash; None if it does not exist."""
        found = read_file(name, root=self.folder)
        return None if found.digest is None or found.digest in ODD else found.content

    def is_as_read(self, name: str) -> bool:
        """Return whether a file is unchanged since it was last read."""
        return read_digest(name, root=self.folder) == self._seen.get(name)

    def write(self, name: str, text: str) -> None:
        """Replace a file that was read. Raises OutsideEdit if it has changed since."""
        if not self.is_as_read(name):
            raise OutsideEdit(self.where(name))
        self._seen[name] = atomic_write(name, encoded(text), root=self.folder)

    def add(self, name: str, text: str) -> None:
        """Write a new file. Raises OutsideEdit if it exists."""
        self._seen[name] = None
        self.write(name, text)

    def names(self) -> Iterator[str]:
        """Yield the names of the files, sorted, without our temporary ones."""
        for entry in sorted(os.scandir(self.folder), key=lambda one: one.name):
            if entry.is_file(follow_symlinks=False) and serves(entry.name) is None:
                yield entry.name

    def sync(self) -> None:
        """Make every file and its name durable. Raises OSError."""
        for name in (*self.names(), "."):
            with suppress(FileNotFoundError):
                fd = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)


_CHECK = re.compile(r"progress\.review(?P<number>[1-9]\d*)?\.md")


class Reports:
    """The reports of one session."""

    def __init__(self, shelf: FileSet) -> None:
        self._shelf = shelf
        self._begins: dict[str, tuple[int, str]] = {}
        """Name -> length and hash of the start of the file, which must not change."""

    def look(self) -> None:
        """Remember the content of the reports. Raises SessionFileError if existing content has changed.

        A deleted report counts as missing; `find` reports it to the caller that needs it.
        """
        for name in list(self._begins):
            content = self._shelf.content(name)
            if content is None:
                del self._begins[name]
            else:
                self._check(name, content)
        for name in self._names():
            self._remember(name)

    def attempts(self, task_id: str) -> int:
        """Return the number of a task's last report. Earlier reports may be missing, but their numbers stay taken."""
        found = (report_text.report_of(name) for name in self._names())
        return max((one[1] for one in found if one is not None and one[0] == task_id), default=0)

    def path(self, task_id: str, attempt: int) -> Path:
        """Return the path for the report of an attempt."""
        return self._shelf.folder / report_text.report_name(task_id, attempt)

    def find(self, task_id: str, attempt: int) -> Path | None:
        """Return the report of an attempt; None if it is missing or empty."""
        path = self.path(task_id, attempt)
        return path if (self._shelf.content(path.name) or b"").strip() else None

    def set_aside(self, task_id: str, attempt: int) -> Path | None:
        """Rename the report of an interrupted attempt to a name that is ignored; return None without one."""
        path = self.path(task_id, attempt)
        if not path.is_file():
            return None
        number = 1
        while (aside := path.with_name(f"{path.stem}.interrupted-{number}.md")).exists():
            number += 1
        os.rename(path, aside)  # noqa: PTH104 - as the rest of this package
        self._begins.pop(path.name, None)
        return aside

    def append_review(self, task_id: str, attempt: int, review: Mapping[str, Any]) -> None:
        """Append the second part to a report that has none. Raises SessionFileError without a report."""
        name = report_text.report_name(task_id, attempt)
        content = self._shelf.content(name)
        if content is None:
            raise SessionFileError(self._shelf.where(name), 0, "is missing, so it cannot be reviewed")
        self._check(name, content)  # before the reviewer's version counts as the reviewed one
        text = decoded(content)
        if not report_text.is_reviewed(text):
            apart = "" if text.endswith("\n") else "\n"
            atomic_write(
                name, encoded(text + apart + report_text.review_part(review)), root=self._shelf.folder
            )
        self._remember(name)

    def write_check(self, check: Mapping[str, Any]) -> str:
        """Write the result of a check, unless the last file has it already; return the file's name."""
        numbers = [
            int(found["number"] or 1) for name in self._shelf.names() if (found := _CHECK.fullmatch(name))
        ]
        last = max(numbers, default=0)
        name = f"progress.review{last}.md"
        if last and self._shelf.content(name) == encoded(report_text.check_report(last, check)):
            return name
        name = f"progress.review{last + 1}.md"
        self._shelf.add(name, report_text.check_report(last + 1, check))
        return name

    def _names(self) -> Iterator[str]:
        return (name for name in self._shelf.names() if report_text.report_of(name))

    def _check(self, name: str, now: bytes) -> None:
        length, digest = self._begins.get(name, (0, _digest(b"")))
        if _digest(now[:length]) != digest:
            why = "was overwritten; a report may only be appended to"
            raise SessionFileError(self._shelf.where(name), 0, why)

    def _remember(self, name: str) -> None:
        content = self._shelf.content(name) or b""
        self._begins[name] = (len(content), _digest(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


TASKS = "tasks.md"
PROGRESS = "progress.md"
TRANSITIONS = "transitions.jsonl"
_READERS = {TASKS: read_tasks, PROGRESS: read_progress}


def session_id_for(now: datetime, root: Path) -> str:
    """Return the name of a session that starts now, or in the next second without an existing session."""
    while (root / (name := now.strftime("%y%m%d-%H%M%S"))).exists():
        now += timedelta(seconds=1)
    return name


class SessionDirectory:
    """The files of one session. All methods block; one owner at a time. Raises SessionFileError and OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.id = self.path.name
        self._shelf = FileSet(self.path)
        self._reports = Reports(self._shelf)
        self._lists: dict[str, TaskList] = {}
        self._tasks: tuple[Task, ...] = ()

    @classmethod
    def create(cls, root: Path, request: str, session_id: str) -> SessionDirectory:
        """Create the directory of a new session below `root`. Does nothing if this session exists already.

        Raises ConfigError for an invalid id, SessionFileError if another session has it.
        """
        if not SAFE_ID.fullmatch(session_id):
            raise ConfigError(
                f"session id {session_id!r} cannot name a folder; use a name such as 260131-144400"
            )
        root.mkdir(parents=True, exist_ok=True)
        (root / session_id).mkdir(exist_ok=True)
        made = cls(root / session_id)
        instructions = f"{session_id}.instructions.md"
        wanted = report_text.instructions_report(session_id, root.name, request)
        there = made._shelf.read(instructions)
        if there not in {None, wanted} or (there is None and set(made._shelf.names()) - {PROGRESS}):
            raise SessionFileError(
                str(made.path), 0, "is the directory of another session; open that, or wait"
            )
        if made._shelf.read(PROGRESS) is None:
            made._shelf.write(PROGRESS, tasklist.new_progress(f"Session: {session_id}"))
        if there is None:
            made._shelf.write(instructions, wanted)
        made.refresh()
        return made

    @classmethod
    def open(cls, path: Path | str) -> SessionDirectory:
        """Open and read the directory of an existing session."""
        found = cls(Path(path))
        if not found.path.is_dir():
            raise SessionFileError(str(path), 0, "the session directory does not exist")
        found.refresh()
        return found

    def fill(self, files: Mapping[str, str]) -> None:
        """Write the first content of a session without tasks, and read it."""
        for name, text in files.items():
            self._shelf.read(name)
            self._shelf.write(name, text)
        self.refresh()

    def sync(self) -> None:
        """Make files durable that agents wrote into the session. Raises OSError."""
        self._shelf.sync()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the session against other runs with any journal. Raises SessionFileError if another run is active.

        The lock ends with the process. On a file system without locks, other runs are not excluded.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    sweep(self.path)  # half-written files of a killed process
                except BlockingIOError:
                    raise SessionFileError(
                        str(self.path), 0, "another run is active in it; wait for its end"
                    ) from None
            yield
        finally:
            os.close(fd)

    # ---- tasks ----

    def refresh(self) -> None:
        """Read the files again; their current content counts. Raises SessionFileError with file and line."""
        self._reports.look()
        lists = {name: self._read(name) for name in (TASKS, PROGRESS)}
        if self._shelf.content(PROGRESS) is None and any(
            entry.mark is None for entry in lists[TASKS].entries
        ):
            raise SessionFileError(
                self._shelf.where(PROGRESS), 0, "is missing, and only it says which tasks are done"
            )
        self._tasks = together(lists[TASKS], lists[PROGRESS], self._shelf.where(TASKS))
        self._lists = lists

    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks in the order of tasks.md, as of the last read."""
        return self._tasks

    def mark(self, task_id: str, to: Marker) -> None:
        """Move a task's marker; does nothing if it is set already. Raises IllegalMove, OutsideEdit."""
        if not self._shelf.is_as_read(PROGRESS):
            now = (self._shelf.content(PROGRESS) or b"").decode("utf-8", "surrogateescape")
            there = _READERS[PROGRESS](outline(now)).get(task_id)  # as it is now, without remembering it
            if there is None or there.mark is not to:
                raise OutsideEdit(self._shelf.where(PROGRESS))
            self.refresh()  # the agent of the task has marked it
            return
        task = next((task for task in self._tasks if task.id == task_id), None)
        if task is None:
            raise SessionFileError(self._shelf.where(TASKS), 0, f"unknown task {task_id!r}")
        if check_move(task_id, task.marker, to):
            self._put(task, to)

    def add_tasks(self, found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Add missing tasks to tasks.md and progress.md; return the ids of the added ones."""
        added = []
        for one in found:
            task_id, description, rationale = (
                str(one.get(name) or "") for name in ("id", "description", "rationale")
            )
            if not SAFE_ID.fullmatch(task_id):
                raise SessionFileError(self._shelf.where(TASKS), 0, f"{task_id!r} cannot be the id of a task")
            if any(task.id == task_id for task in self._tasks):
                continue
            # tasks.md first: a task without a line in progress.md is open
            self._change(TASKS, tasklist.with_task(self._lists[TASKS], task_id, description, rationale))
            progress = self._lists[PROGRESS]
            self._change(PROGRESS, tasklist.with_status(progress, task_id, description, Marker.OPEN))
            added.append(task_id)
        return tuple(added)

    def open_planning(self, what: str) -> str:
        """Note in progress.md that planning is active, if not noted already; return the item's id."""
        items = [entry for entry in self._lists[PROGRESS].entries if entry.planning]
        for entry in items:
            if entry.mark not in SETTLED and entry.id.startswith("plan-"):
                return entry.id
        taken = {entry.id for entry in items}
        number = next(one for one in range(1, len(items) + 2) if f"plan-{one}" not in taken)
        task_id = f"plan-{number}"
        progress = self._lists[PROGRESS]
        self._change(PROGRESS, tasklist.with_status(progress, task_id, what, Marker.OPEN, planning=True))
        return task_id

    def close_planning(self) -> None:
        """Mark every item of planning as done."""
        for task in self._tasks:
            if task.planning and task.marker not in SETTLED:
                self._put(task, Marker.DONE)

    # ---- reports ----

    def attempts(self, task_id: str) -> int:
        """Return the number of a task's last report, 0 without one. The next attempt has the next number."""
        return self._reports.attempts(task_id)

    def report_path(self, task_id: str, attempt: int) -> Path:
        """Return the path for the report of an attempt."""
        return self._reports.path(task_id, attempt)

    def report(self, task_id: str, attempt: int) -> Path | None:
        """Return the report of an attempt, None if it is missing or empty."""
        return self._reports.find(task_id, attempt)

    def set_aside(self, task_id: str, attempt: int) -> Path | None:
        """Rename the report of an interrupted attempt; return None without one."""
        return self._reports.set_aside(task_id, attempt)

    def append_review(self, task_id: str, attempt: int, review: Mapping[str, Any]) -> None:
        """Add the review as the second part of the report, unless the reviewer has written it."""
        self._reports.append_review(task_id, attempt, review)

    def write_check(self, summary: Mapping[str, Any]) -> str:
        """Write the result of a check as the next progress.review<N>.md; return its name."""
        return self._reports.write_check(summary)

    # ---- people ----

    def cycles(self) -> int:
        """Return the number of cycles of questions."""
        return max((asking.cycles(outline(text)) for text in self._papers().values()), default=0)

    def questions(self) -> tuple[PlanQuestion, ...]:
        """Return the questions, answered or not."""
        return tuple(
            PlanQuestion(id=_prefix(name) + one.id, text=one.text, category=one.category, answer=one.answer)
            for name, text in self._papers().items()
            for one in asking.question_entries(outline(text))
        )

    def answer(self, answers: Mapping[str, str], source: str = "a person") -> None:
        """Write answers to questions; an answered question keeps its answer.

        Raises SessionFileError for an unknown question.
        """
        known = {question.id for question in self.questions()}
        if strange := sorted(set(answers) - known):
            listed = ", ".join(sorted(known)) or "none"
            raise SessionFileError(str(self.path), 0, f"unknown question {strange[0]!r}; known: {listed}")
        for name, before in self._papers().items():
            text = before
            for question_id, said in answers.items():
                found = outline(text)
                for one in asking.question_entries(found):
                    if _prefix(name) + one.id == question_id and said.strip():
                        text = asking.answered(found, one, said, source)
            self._shelf.write(name, text)

    def instructions(self) -> tuple[Mapping[str, str], str]:
        """Return the front matter and the text of the instructions file."""
        return report_text.front_matter(self._shelf.read(f"{self.id}.instructions.md") or "")

    def log(self, line: str) -> None:
        """Append a line to transitions.jsonl."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        fd = os.open(self.path / TRANSITIONS, flags, 0o666)
        try:
            os.write(fd, f"{line.rstrip()}\n".encode())
        finally:
            os.close(fd)

    def sync_log(self) -> None:
        """Make the lines of transitions.jsonl durable: no resume mends those of a run that has ended."""
        fd = os.open(self.path / TRANSITIONS, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # ---- private ----

    def _papers(self) -> dict[str, str]:
        """Read the question files, the general one first."""
        names = [
            "plan.questions.md",
            *(f"plan.questions.{category}.md" for category in asking.CATEGORIES),
        ]
        return {name: text for name in names if (text := self._shelf.read(name)) is not None}

    def _put(self, task: Task, to: Marker) -> None:
        """Write the marker of a task to progress.md, adding a line if necessary, and to its box in tasks.md, if any."""
        progress, tasks = self._lists[PROGRESS], self._lists[TASKS]
        line, described = progress.get(task.id), tasks.get(task.id)
        if line is not None:
            self._change(PROGRESS, tasklist.moved(progress, line, to))
        else:
            self._change(
                PROGRESS, tasklist.with_status(progress, task.id, task.title, to, planning=task.planning)
            )
        if described is not None and described.mark is not None and self._shelf.is_as_read(TASKS):
            self._change(TASKS, tasklist.moved(tasks, described, to))  # a copy: progress.md is what counts

    def _change(self, name: str, text: str) -> None:
        self._shelf.write(name, text)
        self._lists[name] = _READERS[name](outline(text))
        self._tasks = together(self._lists[TASKS], self._lists[PROGRESS], self._shelf.where(TASKS))

    def _read(self, name: str) -> TaskList:
        """Read a list. Raises SessionFileError for its first problem."""
        found = _READERS[name](outline(self._shelf.read(name) or ""))
        if found.problems:
            first = found.problems[0]
            raise SessionFileError(self._shelf.where(name), first.line, first.why)
        return found


def _prefix(name: str) -> str:
    """Return the prefix of question ids of a file: empty for the general file, else the category."""
    category = name.removeprefix("plan.questions").removesuffix("md").strip(".")
    return f"{category}:" if category else ""


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
        text = decoded(bounded.read_file(self.file))
        if self.file.suffix == ".md":
            if logs:
                raise SessionFileError(str(logs[0]), 0, "goes with a prd.json, not with a list in Markdown")
            given = read_foreign_list(text)
            self.left_out, self.changed = given.left_out, given.changed
            self.request, self._files = _of_markdown(given, str(self.file))
        else:
            found = foreign_list.read_prd(text, str(self.file))
            self.left_out, self.changed = found.left_out, found.changed
            known = [story.id for story in found.stories]
            log = (
                foreign_list.read_log(decoded(bounded.read_file(logs[0])), str(logs[0]), known)
                if logs
                else None
            )
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


def _of_prd(found: foreign_list.PrdPlan, log: foreign_list.ProgressLog | None) -> dict[str, str]:
    plan = [f"# Plan: {found.title}", "", "## Goal & Success Criteria", "", *quoted(found.description)]
    plan += ["", "## Context & Analysis"]
    if found.context is not None:
        plan += ["", "```json", json.dumps(found.context, indent=2, ensure_ascii=False), "```"]
    for title, said in (log.sections if log else {}).items():
        plan += ["", f"### {title}", "", *quoted(said)]
    tasks = ["# Task List", "", tasklist.TASKS]
    for story in found.stories:
        tasks += [
            f"- {tasklist.shown_id(story.id)}: {tasklist.one_line(story.title)}",
            "    - **Type**: Sequential",
        ]
        if said := tasklist.one_line(f"{story.description} {story.notes}"):
            tasks.append(f"    - **Objective**: {said}")
        tasks.append("    - **Success Criteria**:")
        tasks += [f"        - {tasklist.one_line(one)}" for one in story.criteria]
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
        f"- [{marker.value}] {tasklist.shown_id(task_id)}: {tasklist.one_line(title)}"
        for task_id, title, marker in statuses
    ]
    return tasklist.new_progress("Imported tasks") + "\n" + "\n".join(lines) + "\n"


class SessionLog:
    """An observer that writes the transitions of runs into their sessions. `find` returns a live run."""

    def __init__(self, find: Callable[[str], Run[Any, Any] | None]) -> None:
        self._find = find

    def observe(self, fact: Fact) -> None:
        """Write a line for a transition."""
        if type(fact) is Transition and (run := self._find(fact.run_id)) is not None:
            ctx = run.ctx
            move = fact.source, fact.event, fact.dest
            run.deps.session.log(log_line(ctx.session_id, fact.at, move, ctx.about, ctx.blockers))


def log_line(
    session_id: str,
    at: float,
    move: tuple[str, str, str],
    about: tuple[str | None, int],
    blockers: Sequence[str] = (),
) -> str:
    """Return a line of the log without its line end.

    `move` is from, event, to; `about` is the task and its attempt. The line of a failure names its blockers.
    """
    source, event, dest = move
    known = event in set(RalphEvent) and source in set(RalphState)
    return json.dumps(
        {
            "timestamp": datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "sessionId": session_id,
            "transition": {
                "from": source,
                "to": dest,
                "trigger": trigger(RalphEvent(event), RalphState(source)) if known else event,
                "taskId": about[0],
                "attemptNumber": about[1],
                **({"blockers": list(blockers)} if blockers and dest == RalphState.FAILED else {}),
            },
        },
        ensure_ascii=False,
    )


def mend_log(run: RalphRun, records: Iterable[Record]) -> None:
    """Complete the log of a resumed run. Raises OSError.

    It is synced when its run ends: after a power loss before that, any part of it may be missing or wrong.
    """
    path = Path(run.ctx.session_path) / TRANSITIONS
    written = path.read_bytes() if path.exists() else b""
    run.ctx.log_offset = min(run.ctx.log_offset, written.rfind(b"\n") + 1)
    found = written[run.ctx.log_offset :].splitlines(keepends=True)
    moves = list(_lines(run.ctx.session_id, records))
    right = 0
    for one, move in zip(found, moves, strict=False):
        if one != f"{move}\n".encode():
            break
        right += 1
    if right < len(found):
        with path.open("r+b") as file:
            file.truncate(run.ctx.log_offset + sum(map(len, found[:right])))
    for move in moves[right:]:
        run.deps.session.log(move)


def _lines(session_id: str, records: Iterable[Record]) -> Iterable[str]:
    """Yield the lines of a run. Task and attempt of a transition are in the context that was written with it."""
    about: tuple[str | None, int] = (None, 0)
    blockers: Sequence[str] = ()
    pending: Record | None = None

    def line_of(record: Record) -> str:
        body = record.body
        move = body["source"], body["event"], body["dest"]
        return log_line(session_id, body["at"], move, about, blockers)

    for record in records:
        if record.kind == "transition":
            if pending is not None:
                yield line_of(pending)
            pending = record
        elif record.kind == "context":
            task, attempt = record.body.get("about", about)
            about = (task, attempt)
            blockers = record.body.get("blockers", blockers)
    if pending is not None:
        yield line_of(pending)
