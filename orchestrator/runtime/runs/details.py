"""Everything that a journal has about one run at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from orchestrator.errors import RunError
from orchestrator.kernel.journal import Journal, Posted, RunHead
from orchestrator.llm.message import Usage
from orchestrator.machines.llm_loop.model import Question
from orchestrator.runtime.runs.story import Story


@dataclass(frozen=True, slots=True)
class RunDetails:
    """One run: its head, its history, and the requests that it has not read."""

    head: RunHead
    story: Story
    unread: list[Posted]

    @classmethod
    async def read(cls, journal: Journal, run_id: str) -> Self:
        """Read a run. Raises RunUnknown, Corrupt, StoreDown."""
        return await cls.of(journal, await journal.head(run_id))

    @classmethod
    async def of(cls, journal: Journal, head: RunHead) -> Self:
        """Read the records of a run. Raises RunUnknown, Corrupt, StoreDown."""
        story = Story.of(head.run_id, await journal.load(head.run_id))
        return cls(head, story, await story.unread(journal))

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.story.ended is not None

    @property
    def owner_died(self) -> bool:
        """Whether the run was left in the middle of its work: it has started, and no process owns it."""
        return self.head.status == "open" and self.head.owner is None and self.story.begun

    @property
    def questions(self) -> list[Question]:
        """The questions of the run that it has no answer to."""
        return [*self.story.questions.values()]

    @property
    def usage(self) -> Usage:
        """Usage as the limits count it: with child runs, and with the estimates for lost answers."""
        return self.story.total


def not_ended(head: RunHead) -> RunError:
    """Return the error for reading the result of a run that has none."""
    reason = f" ({head.reason})" if head.reason else ""
    then = "wait for its end" if head.owner is not None else "resume it, or wait until an engine does"
    return RunError(f"run {head.run_id!r} has no result yet: it is {head.status}{reason}; {then}")
