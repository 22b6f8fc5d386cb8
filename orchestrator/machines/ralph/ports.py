"""Whom the loop calls: the agents, the people, and the files of the session.

An agent is any callable that takes an AgentRequest; a sync one runs in a thread of its own. It answers with a mapping,
JSON text, or a model of `contract`, which `contract.read` makes into the output of its role. Only the hooks call one,
for one role and mode at a time. An agent that was cut short by a crash is called again with the same `key`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.marker import Marker
from orchestrator.machines.ralph.model import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """What an agent is asked to do."""

    role: Role
    input: Mapping[str, Any]
    """The input of its role (systems 6.3) as JSON types, under the seed's names: SESSION_PATH, MODE …"""
    key: str = ""
    """Idempotency key: the same for this piece of work, whichever process asks for it, however often."""
    run_id: str = ""
    again: int = 0
    """How often this was asked before because the answer could not be used."""
    fault: str = ""
    """What was wrong with the last answer."""
    notes: tuple[str, ...] = ()
    """What people said for everybody to know, oldest first."""
    deps: Any = None
    """The host's own handles."""


AgentPort: TypeAlias = Callable[[AgentRequest], Awaitable[Any] | Any]
"""An agent, as the hooks call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """A question of plan.questions.md."""

    id: str
    text: str
    category: str = ""
    answer: str | None = None
    """None while nobody has answered."""


AnswerPort: TypeAlias = Callable[[Sequence[PlanQuestion]], Awaitable[Mapping[str, str]] | Mapping[str, str]]
"""Asks a person: question id -> answer, for those that got one."""


class RalphSession(Protocol):
    """The files of a session. Sync, quick, one owner. What changed outside since it was read is never overwritten."""

    id: str
    path: Path

    def sync(self) -> None:
        """Make durable what others wrote into the session. Raises OSError."""
        ...

    def refresh(self) -> None:
        """Read the files again: as they are now is the truth. Raises SessionFileError."""
        ...

    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks in the order of the file, as last read."""
        ...

    def mark(self, task_id: str, to: Marker) -> None:
        """Move a task's marker, atomically; nothing where it stands there. Raises IllegalMove, OutsideEdit."""
        ...

    def add_tasks(self, found: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
        """Add tasks (id, description, rationale) to tasks.md and progress.md; known ids are left alone.

        Returns the ids added.
        """
        ...

    def open_planning(self, what: str) -> str:
        """Note in progress.md that planning is under way; returns the item's id. Nothing where one is open."""
        ...

    def close_planning(self) -> None:
        """Note that planning is over."""
        ...

    def attempts(self, task_id: str) -> int:
        """Return the number of a task's last report, 0 without one: its next attempt is one more."""
        ...

    def report_path(self, task_id: str, attempt: int) -> Path:
        """Return where the report of an attempt belongs."""
        ...

    def report(self, task_id: str, attempt: int) -> Path | None:
        """Return the report of an attempt, None where it is missing or empty."""
        ...

    def set_aside(self, task_id: str, attempt: int) -> Path | None:
        """Rename what an attempt that was cut short left as its report, so that it is kept and counts for nothing."""
        ...

    def append_review(self, task_id: str, attempt: int, review: Mapping[str, Any]) -> None:
        """Add the review as the report's second part, where the reviewer did not; nothing where it is there."""
        ...

    def write_check(self, summary: Mapping[str, Any]) -> str:
        """Write what a holistic check found as the next progress.review[N].md; returns its name."""
        ...

    def cycles(self) -> int:
        """Return how many rounds of questions there were."""
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
