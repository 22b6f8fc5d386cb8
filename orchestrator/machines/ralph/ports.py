"""The ports of the loop: agents, people, and the files of the session.

An agent is any callable that takes an AgentRequest; a synchronous one runs in its own thread. It returns a mapping,
JSON text, or a model of `contract`; `contract.read` converts it to the output of its role. Only the hooks call
agents, for one role and mode at a time. An agent that a crash interrupted is called again with the same `key`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.llm.usage import Usage
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.marker import Marker
from orchestrator.machines.ralph.model import RoleCall, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """A request to an agent."""

    role: Role
    input: Mapping[str, Any]
    """The input of its role as JSON types, with names in capitals: SESSION_PATH, MODE …"""
    key: str = ""
    """Idempotency key: the same for this piece of work in every process and every repetition."""
    run_id: str = ""
    again: int = 0
    """Number of earlier requests whose answer was invalid."""
    fault: str = ""
    """The fault of the last answer."""
    notes: tuple[str, ...] = ()
    """Notes of people for all agents, oldest first."""
    deps: Any = None
    """Handles of the host."""
    remaining_cost: float | None = None
    """Rest of the run's `max_cost`; None if it is unlimited."""
    previous: RoleCall | None = None
    """The last call of this role for the same task in the run, also of an earlier process; None for the first call."""
    calls: list[RoleCall] = field(default_factory=list)
    """See `spend`."""

    @property
    def task_id(self) -> str | None:
        """Id of the task; None for a role that has none."""
        task = self.input.get("TASK_ID")
        return None if task is None else str(task)

    def spend(
        self,
        usage: Usage,
        *,
        agent: str = "",
        model: str = "",
        session: str | None = None,
        child_run_id: str | None = None,
    ) -> None:
        """Report the usage of this call, even if the agent then raises. It counts for the limits of the run.

        A call without a report is charged with an estimate of the tokens of its input and answer, at four characters
        per token; its cost is unknown.

        Args:
            usage: Tokens and cost. Without a cost, the price table of the runtime gives an estimate for `model`.
            agent: Name of the coding agent.
            model: Name of the model.
            session: Session of the coding agent.
            child_run_id: Run of the model in the same journal; a run is charged once.

        Raises:
            ConfigError: `usage` is no Usage.
        """
        given: object = usage
        if not isinstance(given, Usage):
            raise ConfigError(
                f"the usage is {given!r:.100}; give Usage(input_tokens, output_tokens, cost=...)"
            )
        self.calls.append(
            RoleCall(
                role=self.role,
                task_id=self.task_id,
                agent=agent,
                model=model,
                session=session,
                child_run_id=child_run_id,
                usage=usage,
            )
        )


AgentPort: TypeAlias = Callable[[AgentRequest], Awaitable[Any] | Any]
"""An agent, as the hooks call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """A question of plan.questions.md."""

    id: str
    text: str
    category: str = ""
    answer: str | None = None
    """None while the question is open."""


AnswerPort: TypeAlias = Callable[[Sequence[PlanQuestion]], Awaitable[Mapping[str, str]] | Mapping[str, str]]
"""Asks a person; returns question id -> answer for the answered questions."""


class RalphSession(Protocol):
    """The files of a session. Synchronous, fast, one owner. A file that changed outside is never overwritten."""

    id: str
    path: Path

    def sync(self) -> None:
        """Make files durable that agents wrote into the session. Raises OSError."""
        ...

    def refresh(self) -> None:
        """Read the files again; their current content counts. Raises SessionFileError."""
        ...

    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks in the order of the file, as of the last read."""
        ...

    def mark(self, task_id: str, to: Marker) -> None:
        """Move a task's marker atomically; does nothing if it is set already. Raises IllegalMove, OutsideEdit."""
        ...

    def add_tasks(self, found: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
        """Add tasks (id, description, rationale) to tasks.md and progress.md, except known ids.

        Returns the ids of the added tasks.
        """
        ...

    def open_planning(self, what: str) -> str:
        """Note in progress.md that planning is active; return the item's id. Does nothing if such an item is open."""
        ...

    def close_planning(self) -> None:
        """Note that planning is complete."""
        ...

    def attempts(self, task_id: str) -> int:
        """Return the number of a task's last report, 0 without one. The next attempt has the next number."""
        ...

    def report_path(self, task_id: str, attempt: int) -> Path:
        """Return the path for the report of an attempt."""
        ...

    def report(self, task_id: str, attempt: int) -> Path | None:
        """Return the report of an attempt, None if it is missing or empty."""
        ...

    def set_aside(self, task_id: str, attempt: int) -> Path | None:
        """Rename the report of an interrupted attempt, so that it is kept but ignored."""
        ...

    def append_review(self, task_id: str, attempt: int, review: Mapping[str, Any]) -> None:
        """Add the review as the second part of the report, unless the reviewer has written it."""
        ...

    def write_check(self, summary: Mapping[str, Any]) -> str:
        """Write the result of a holistic check as the next progress.review[N].md; return its name."""
        ...

    def cycles(self) -> int:
        """Return the number of rounds of questions."""
        ...

    def questions(self) -> tuple[PlanQuestion, ...]:
        """Return the questions, answered or not."""
        ...

    def answer(self, answers: Mapping[str, str]) -> None:
        """Write answers to questions into plan.questions.md."""
        ...

    def log(self, line: str) -> None:
        """Append a line to transitions.jsonl."""
        ...
