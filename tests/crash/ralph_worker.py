"""A process that drives one run of the ralph loop over SQLite and a session directory until it ends or is killed.

As a script it is a nursery, as `tests.crash.loop_worker` is: it imports everything once, then forks a child for each
line of its input. An order says what the child does with the run in `folder`, and where it dies:

    do       run, or resume
    kill     "", "before" or "after" the `at`-th write to the journal, "agent": at the `at`-th boundary of an agent's
             work (its begin, its middle, its end), "files": before or after the `at`-th change of the session's files
    state    with "agent": only boundaries in that state are counted

`python -m tests.crash.ralph_worker FOLDER` lives once, without a nursery.

The agents know nothing but the session's files: two tasks, one of them reworked once, a round of questions, a task that
an executor finds, a check of the whole that fails once. What happens outside stands in `folder/world`, a line each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.model import AgentRequest
from orchestrator.runtime.ralph import ralph
from orchestrator.runtime.ralph.ralph import Ralph, RalphResult
from orchestrator.runtime.ralph.session import SessionDirectory
from tests.crash import mortal
from tests.crash.mortal import RUN, Fate, crashing, nursery
from tests.crash.worker import show_marks

TASKS = "# Tasks\n\n## Implementation Tasks\n\n- task-1: the parser\n- task-2: the printer\n"
CYCLE = (
    "### Cycle {0}\n\n#### Generated Questions\n\n1. **[High Priority]** Which width?\n"
    "    - **Category**: Technical\n    - **Status**: Unanswered\n    - **Answer**:\n"
)
FOUND = {"id": "task-9", "description": "the manual", "rationale": "nobody would know how"}
MISSING = {"id": "task-5", "description": "the licence", "rationale": "the goal names one"}
STATE_OF = {
    Role.PLANNER: "Planning",
    Role.QUESTIONER: "Planning",
    Role.EXECUTOR: "Executing",
    Role.REVIEWER: "Reviewing",
    Role.CHECKER: "Complete",
}
CHANGES = (
    "mark",
    "add_tasks",
    "append_review",
    "write_check",
    "open_planning",
    "close_planning",
    "answer",
    "log",
)


class World(mortal.World):
    """The agents, and where the process dies in their work."""

    def __init__(self, folder: Path, fate: Fate, state: str = "") -> None:
        super().__init__(folder, fate)
        self._state = state

    async def agent(self, request: AgentRequest) -> Any:
        """Be any of the five, with its three places to die."""
        counted = self._state in {"", STATE_OF[request.role]}
        if counted:
            await self.fate.point("before")
        self.say("began", role=request.role.value, key=request.key)
        path = Path(request.input["SESSION_PATH"])
        work = _WORK[request.role](path, request.input)
        next(work)
        if counted:
            await self.fate.point("within")
        said = next(work)
        self.say("ended", role=request.role.value, key=request.key)
        if counted:
            await self.fate.point("after")
        return said


def _plan(path: Path, given: Any) -> Any:
    yield
    if given["MODE"] == "INITIALIZE" and "### Cycle" not in _read(path / "plan.questions.md"):
        yield {"status": "needs_qa_cycle", "next_actions": ["qa_brainstorm"]}
        return
    if "# Tasks" not in _read(path / "tasks.md"):  # a loss of power can leave the name without the content
        (path / "tasks.md").write_text(TASKS)
    yield {"status": "completed"}


def _question(path: Path, given: Any) -> Any:
    file, cycle = path / "plan.questions.md", CYCLE.format(given["CYCLE_NUMBER"])
    if cycle not in _read(file):
        file.write_text(_read(file) + cycle)
    yield
    yield {"status": "completed", "questions_generated": 1}


def _execute(path: Path, given: Any) -> Any:
    report = path / Path(given["CONTEXT"]["report_path"]).name
    with report.open("x") as file:
        file.write("# Task Report\n")
    yield
    with report.open("a") as file:
        file.write(f"\n## PART 1: IMPLEMENTATION REPORT\n\n{given['TASK_ID']}.{given['ATTEMPT_NUMBER']}\n")
    found = [FOUND] if given["TASK_ID"] == "task-2" else []
    yield {"status": "completed", "success_criteria_met": True, "discovered_tasks": found}


def _review(path: Path, given: Any) -> Any:
    text = (path / Path(given["REPORT_PATH"]).name).read_text()
    yield
    if "\ntask-1.1\n" in text:
        yield {"status": "completed", "verdict": "Failed", "feedback": "it has no test"}
        return
    yield {"status": "completed", "verdict": "Qualified"}


def _check(path: Path, _: Any) -> Any:
    yield
    if "task-5" not in (path / "tasks.md").read_text():
        yield {"passed": False, "missing_tasks": [MISSING], "summary": "the licence is missing"}
        return
    yield {"passed": True, "summary": "the goal is met"}


def _read(file: Path) -> str:
    """Return the text of a file; nothing where there is none, or garbage after a loss of power."""
    try:
        return file.read_text()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


_WORK: dict[Role, Callable[[Path, Any], Any]] = {
    Role.PLANNER: _plan,
    Role.QUESTIONER: _question,
    Role.EXECUTOR: _execute,
    Role.REVIEWER: _review,
    Role.CHECKER: _check,
}


def deadly_files(at: int) -> tuple[type[SessionDirectory], list[str]]:
    """Session directories that note the changes made to them, before and after each; at the `at`-th we die."""
    passed: list[str] = []

    def point(name: str) -> None:
        passed.append(name)
        if len(passed) == at:
            os.kill(os.getpid(), SIGKILL)

    def deadly(name: str) -> Any:
        def change(self: SessionDirectory, *arguments: Any) -> Any:
            point(name)
            said = getattr(SessionDirectory, name)(self, *arguments)
            point(name)
            return said

        return change

    kind = type("Deadly", (SessionDirectory,), {name: deadly(name) for name in CHANGES})
    return kind, passed


def readable(log: bytes) -> Iterator[Any]:
    """Yield the transitions of a log up to a line that a power loss has torn."""
    for line in log.splitlines():
        try:
            yield json.loads(line)["transition"]
        except ValueError:
            return


def told(result: RalphResult) -> dict[str, Any]:
    """A result as the tests compare it: all but the times, with what stands in the session."""
    path = Path(result.session_path)
    log = (path / "transitions.jsonl").read_bytes()
    names = [one.name for one in path.iterdir() if "interrupted" not in one.name]
    skip = {"transitions.jsonl", f"{result.session_id}.instructions.md"}
    return {
        "outcome": str(result.outcome),
        "reason": result.reason,
        "counts": [result.executions, result.qualified, result.reworks, result.replans, result.qa_cycles],
        "moves": [[one.seq, one.event, one.iteration] for one in result.transitions],
        "log": list(readable(log)),
        "files": {
            name: (path / name).read_text().replace(result.session_id, "SESSION")
            for name in sorted(names)
            if name not in skip
        },
    }


async def live(folder: Path, *, do: str, kill: str = "", at: int = 0, state: str = "") -> None:
    fate = Fate(at if kill == "agent" else 0)
    world = World(folder, fate, state)
    inner = SqliteJournal(folder / "journal.db")
    journal = crashing(inner, kill if kill in {"before", "after"} else "", at)
    kind, changes = deadly_files(at if kill == "files" else 0)
    vars(ralph)["SessionDirectory"] = kind
    five = (world.agent,) * 5
    one = Ralph(*five, root=folder / "sessions", journal=journal, observers=())
    going = one.run("a formatter", run_id=RUN) if do == "run" else one.resume(RUN)
    result = await going
    world.say("counted", writes=len(journal.writes), points=fate.passed, changes=changes)
    world.say("result", **told(result))
    await inner.close()


def warmed() -> None:
    """Do once, where it is thrown away, what would take each child a while the first time."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(Path(folder), do="run"))


if __name__ == "__main__":
    if sys.argv[1:]:
        show_marks()
        asyncio.run(live(Path(sys.argv[1]), do="run"))
    else:
        warmed()
        nursery(live)
