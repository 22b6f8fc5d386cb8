"""A run on its way through an engine, and what whoever submitted it holds of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.runtime.service.hosting import Hosting


class Phase(StrEnum):
    """Where a run is in its engine."""

    QUEUED = "queued"
    """It has not begun; the journal knows nothing of it, unless it is one that goes on."""
    RUNNING = "running"
    WAITING = "waiting"
    """For somebody: it has no slot."""
    READY = "ready"
    """It could go on and waits for a slot."""
    OVER = "over"
    """It ended, or goes no further in this engine."""


@dataclass(slots=True, eq=False)
class EngineJob:
    """One run of an engine. `work` begins it, or goes on with it."""

    run_id: str
    agent: str
    hosting: Hosting
    work: Callable[[], Coroutine[Any, Any, object]]
    """Gives what its agent gives: a Result, a PipelineResult, an RlmResult, or a host's own."""
    context: Context
    """What the code inside the run finds in context variables: those of whoever submitted it."""
    end: asyncio.Future[object]
    """What it gave, or the error as a value: nobody need ask for the end of a run."""
    conversation_id: str | None = None
    stored: bool = False
    """The journal had it before it was submitted."""
    phase: Phase = Phase.QUEUED
    reason: str = ""
    """What it waits for."""
    entered: float = 0.0
    """When it was queued, by the clock of its agent (monotonic)."""
    before: float = 0.0
    """Seconds that it had waited then in the journal for a process to begin it, as far as clocks agree."""
    seated: bool = False
    task: asyncio.Task[object] | None = field(default=None, repr=False)
    cut: bool = False
    """The engine cancelled its task, and says what became of it."""

    def settle(self, outcome: object) -> None:
        """Tell those who wait for the end; the first word counts."""
        self.phase = Phase.OVER
        if not self.end.done():
            self.end.set_result(outcome)


class Handle:
    """A run that an engine took. Await it for what `run` of its agent returns.

    Who is cancelled while waiting leaves the run alone. Awaiting raises Suspended for a run that was left before its
    end, in the journal, for whoever resumes it; NotAdmitting or CancelRequested for one that was let go before it
    began; else what `run` of the agent raises.
    """

    __slots__ = ("_job",)

    def __init__(self, job: EngineJob) -> None:
        self._job = job

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self._job.run_id

    @property
    def phase(self) -> Phase:
        """Where it is now."""
        return self._job.phase

    def done(self) -> bool:
        """Tell whether awaiting it returns, or raises, at once."""
        return self._job.end.done()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        outcome = await asyncio.shield(self._job.end)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def __repr__(self) -> str:
        return f"Handle({self._job.run_id!r}, {self._job.phase.value})"
