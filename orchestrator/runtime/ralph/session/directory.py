"""One session directory: the implementation of `orchestrator.machines.ralph.ports.RalphSession`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.files.atomic import sweep
from orchestrator.machines.ralph import amend
from orchestrator.machines.ralph import questions as asking
from orchestrator.machines.ralph import reports as report_text
from orchestrator.machines.ralph.fault import OutsideEdit, SessionFileError
from orchestrator.machines.ralph.marker import SETTLED, Marker, check_move
from orchestrator.machines.ralph.model import Task
from orchestrator.machines.ralph.outline import outline
from orchestrator.machines.ralph.ports import PlanQuestion
from orchestrator.machines.ralph.task_count import together
from orchestrator.machines.ralph.tasklist import SAFE_ID, TaskList, read_progress, read_tasks
from orchestrator.runtime.ralph.session.file_set import FileSet
from orchestrator.runtime.ralph.session.reports import Reports

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
            made._shelf.write(PROGRESS, amend.new_progress(f"Session: {session_id}"))
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
            there = self._read_now(PROGRESS).get(task_id)
            if there is None or there.mark is not to:
                raise OutsideEdit(self._shelf.where(PROGRESS))
            self.refresh()  # the agent of the task has marked it
            return
        task = self._known(task_id)
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
            self._change(TASKS, amend.with_task(self._lists[TASKS], task_id, description, rationale))
            progress = self._lists[PROGRESS]
            self._change(PROGRESS, amend.with_status(progress, task_id, description, Marker.OPEN))
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
        self._change(PROGRESS, amend.with_status(progress, task_id, what, Marker.OPEN, planning=True))
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
        for name, text in self._papers().items():
            self._shelf.write(name, _with_answers(name, text, answers, source))

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

    # ---- private ----

    def _papers(self) -> dict[str, str]:
        """Read the question files, the general one first."""
        names = [
            "plan.questions.md",
            *(f"plan.questions.{category}.md" for category in asking.CATEGORIES),
        ]
        return {name: text for name in names if (text := self._shelf.read(name)) is not None}

    def _known(self, task_id: str) -> Task:
        task = next((task for task in self._tasks if task.id == task_id), None)
        if task is None:
            raise SessionFileError(self._shelf.where(TASKS), 0, f"unknown task {task_id!r}")
        return task

    def _put(self, task: Task, to: Marker) -> None:
        """Write the marker of a task to progress.md, adding a line if necessary, and to its box in tasks.md, if any."""
        progress, tasks = self._lists[PROGRESS], self._lists[TASKS]
        line, described = progress.get(task.id), tasks.get(task.id)
        if line is not None:
            self._change(PROGRESS, amend.moved(progress, line, to))
        else:
            self._change(
                PROGRESS, amend.with_status(progress, task.id, task.title, to, planning=task.planning)
            )
        if described is not None and described.mark is not None and self._shelf.is_as_read(TASKS):
            self._change(TASKS, amend.moved(tasks, described, to))  # a copy: progress.md is what counts

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

    def _read_now(self, name: str) -> TaskList:
        """Read a list without remembering its content."""
        return _READERS[name](outline((self._shelf.content(name) or b"").decode("utf-8", "surrogateescape")))


def _prefix(name: str) -> str:
    """Return the prefix of question ids of a file: empty for the general file, else the category."""
    category = name.removeprefix("plan.questions").removesuffix("md").strip(".")
    return f"{category}:" if category else ""


def _with_answers(name: str, text: str, answers: Mapping[str, str], source: str) -> str:
    for question_id, said in answers.items():
        found = outline(text)
        for one in asking.question_entries(found):
            if _prefix(name) + one.id == question_id and said.strip():
                text = asking.answered(found, one, said, source)
    return text
