"""The tasks of a session as a table with a progress bar."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.cli.output import shown
from orchestrator.cli.screen import RunTally
from orchestrator.errors import RunError
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.record import Fact, RunParked, RunStarted, Transition
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.marker import SETTLED, Marker
from orchestrator.machines.ralph.model import Task
from orchestrator.runtime.ralph.session import SessionDirectory

_STYLE = {
    Marker.OPEN: "dim",
    Marker.ACTIVE: "bold green",
    Marker.REVIEW: "bold yellow",
    Marker.DONE: "green",
    Marker.FAILED: "bold red",
    Marker.CANCELLED: "dim strike",
}
_BAR = 40
_TITLE = 60


class TaskBoardReader:
    """Reads the tasks of a session after each transition of its run. The first record of the run names the folder."""

    def __init__(self, root: Path, session: Path | None) -> None:
        self._root = root
        self._path = session
        self.session: SessionDirectory | None = None
        """The session as of the last read."""
        self.tasks: tuple[Task, ...] = ()
        self.attempts: dict[str, int] = {}

    def observe(self, fact: Fact) -> None:
        """Read the tasks again. The run reports unreadable files; the display keeps the last tasks."""
        if not isinstance(fact, RunStarted | Transition | RunParked) or fact.graph != RALPH.name:
            return
        if self._path is None:
            self._path = self._root / fact.run_id  # a session has the name of its first run
        try:
            files = SessionDirectory.open(self._path)
        except (RunError, OSError):
            return
        self.session = files
        self.tasks = tuple(task for task in files.tasks() if not task.planning)
        self.attempts = {task.id: files.attempts(task.id) for task in self.tasks}


class TaskBoard:
    """The live table: tasks, bar, and the state of the run."""

    def __init__(self, look: TaskBoardReader, _: Graph, tally: RunTally) -> None:
        self._look = look
        self._tally = tally

    def __rich__(self) -> Group:
        """Render the current state; also called from the refreshing thread."""
        tasks, tally = self._look.tasks, self._tally
        table = Table(box=None, pad_edge=True)
        for head in ("", "task", "", "reports"):
            table.add_column(head, no_wrap=True, justify="right" if head == "reports" else "left")
        for task in tasks:
            tried = str(self._look.attempts.get(task.id, 0) or "")
            row = (Text(f"[{task.marker.value}]"), shown(task.id, 40), shown(task.title, _TITLE), tried)
            table.add_row(*row, style=_STYLE[task.marker])
        seconds = 0.0 if tally.parked else time.perf_counter() - tally.entered
        state = Text(f"  ▶ {tally.state or 'Initializing'} {seconds:.0f} s")
        if tally.parked is not None:
            state = Text(f"  waits: {tally.parked[0]}")
        return Group(table, _bar(tasks), state)


def _bar(tasks: Sequence[Task]) -> Table:
    done, all_of_them = settled(tasks)
    line = Table.grid(padding=(0, 1))
    line.add_row("  ", ProgressBar(total=max(1, all_of_them), completed=done, width=_BAR), counted(tasks))
    return line


def settled(tasks: Iterable[Task]) -> tuple[int, int]:
    """Return the number of done tasks and of all tasks, without cancelled ones."""
    counted_ones = [task for task in tasks if task.marker is not Marker.CANCELLED]
    return sum(1 for task in counted_ones if task.marker in SETTLED), len(counted_ones)


def counted(tasks: Sequence[Task]) -> str:
    """Return the progress in words."""
    done, all_of_them = settled(tasks)
    return f"{done} of {all_of_them} tasks done"


def rows(tasks: Iterable[Task]) -> list[tuple[str, str, str]]:
    """Return the tasks as the rows of a plain table."""
    return [(f"[{task.marker.value}]", task.id, task.title) for task in tasks]


def task_json(task: Task) -> dict[str, Any]:
    """Return a task as plain data."""
    return {
        "id": task.id,
        "title": task.title,
        "marker": task.marker.value,
        "status": task.marker.name.lower(),
        "planning": task.planning,
        "type": task.type,
        "files": list(task.files),
        "objective": task.objective,
        "criteria": list(task.criteria),
        "inherits_from": list(task.inherits_from),
    }
