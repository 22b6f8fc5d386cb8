"""What the tests of the ralph loop share: agents that write real session files, as a script tells them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.model import AgentRequest
from orchestrator.runtime.ralph.ralph import Ralph
from orchestrator.runtime.ralph.session import TRANSITIONS
from tests.with_runtime import with_runtime

NO_WAIT = RetryPolicy(base=0.0, max_delay=0.0, jitter=0.0)
QUALIFIED = {"status": "completed", "verdict": "Qualified"}
NOT_QUALIFIED = {"status": "completed", "verdict": "Failed", "feedback": "no test"}


def tasks_md(*tasks: str) -> str:
    return "# Tasks\n\n## Implementation Tasks\n\n" + "".join(f"- {one}\n" for one in tasks)


def report_name(task: str, attempt: int) -> str:
    return f"tasks.{task}-report.md" if attempt == 1 else f"tasks.{task}-report-r{attempt}.md"


class World:
    """The five agents. `says` maps a role, or (role, task), to what it answers, in order; then what is usual.

    An entry may be an exception to raise, a function of the request, or an answer.
    """

    def __init__(
        self,
        root: Path,
        says: Mapping[Any, Any] | None = None,
        tasks: tuple[str, ...] = ("task-1: one", "task-2: two"),
    ) -> None:
        self.root = root
        self.tasks = tasks
        self.says = {key: list(answers) for key, answers in (says or {}).items()}
        self.calls: list[AgentRequest] = []

    @property
    def called(self) -> list[str]:
        """Who was asked, with the task where there is one and the mode where there is one."""
        return [" ".join((one.role, *self._about(one))) for one in self.calls]

    def _about(self, one: AgentRequest) -> list[str]:
        names = ("TASK_ID", "ATTEMPT_NUMBER", "MODE", "CYCLE_NUMBER")
        return [str(one.input[name]) for name in names if name in one.input]

    def of(self, role: Role) -> list[AgentRequest]:
        return [one for one in self.calls if one.role is role]

    def __call__(self, request: AgentRequest) -> Any:
        self.calls.append(request)
        said = self._next((request.role, request.input.get("TASK_ID")), self._next(request.role, None))
        if isinstance(said, BaseException):
            raise said
        if callable(said):
            return said(request)
        return self.usual(request) | (said or {}) if isinstance(said, dict) or said is None else said

    def _next(self, key: Any, default: Any) -> Any:
        answers = self.says.get(key)
        return answers.pop(0) if answers else default

    def usual(self, request: AgentRequest) -> dict[str, Any]:
        """Do the work of a role as it is done where nothing is special."""
        path = Path(request.input["SESSION_PATH"])
        match request.role:
            case Role.PLANNER:
                if not (path / "tasks.md").exists():
                    (path / "tasks.md").write_text(tasks_md(*self.tasks))
                return {"status": "completed"}
            case Role.EXECUTOR:
                task, attempt = request.input["TASK_ID"], request.input["ATTEMPT_NUMBER"]
                with (path / report_name(task, attempt)).open("x") as file:
                    file.write(f"# Task Report\n\n## PART 1: IMPLEMENTATION REPORT\n\nattempt {attempt}\n")
                return {"status": "completed", "success_criteria_met": True}
            case Role.REVIEWER:
                return dict(QUALIFIED)
            case Role.QUESTIONER:
                number = request.input["CYCLE_NUMBER"]
                with (path / "plan.questions.md").open("a") as file:
                    file.write(question_cycle(number))
                return {"status": "completed", "questions_generated": 1}
            case _:
                return {"passed": True, "summary": "the goal is met"}

    def ralph(self, *, checker: bool = True, questioner: bool = True, **options: Any) -> Ralph:
        return Ralph(
            self,
            self,
            self,
            self if questioner else None,
            self if checker else None,
            **with_runtime(**{"root": self.root, "observers": (), "retry": NO_WAIT, **options}),
        )


def question_cycle(number: int) -> str:
    return (
        f"### Cycle {number}\n\n#### Generated Questions\n\n1. **[High Priority]** Which shell, {number}?\n"
        "    - **Category**: Technical\n    - **Status**: Unanswered\n    - **Answer**:\n\n"
    )


def log_of(session: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(session) / TRANSITIONS).read_text().splitlines()]


def moves_of(session: str | Path) -> list[tuple[str, str, str]]:
    """From, trigger, to of each line of transitions.jsonl."""
    moved = (line["transition"] for line in log_of(session))
    return [(one["from"], one["trigger"], one["to"]) for one in moved]


def markers(session: str | Path) -> dict[str, str]:
    """Id of each task of progress.md that is no planning -> its marker."""
    lines = (Path(session) / "progress.md").read_text().splitlines()
    found = [line[3:].partition("] ") for line in lines if line.startswith("- [")]
    return {text.partition(":")[0]: mark for mark, _, text in found if not text.startswith("plan-")}


def then(*acts: Callable[[AgentRequest], Any]) -> Callable[[AgentRequest], Any]:
    """An answer that does several things; the last gives what is said."""

    def said(request: AgentRequest) -> Any:
        return [act(request) for act in acts][-1]

    return said
