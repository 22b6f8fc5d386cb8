"""A run inside an engine, and the handle that the submitter gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, cast

from orchestrator.runtime.llm_loop.result import OutputT_co, ResultT_co
from orchestrator.runtime.service.hosting import Hosting


class Phase(StrEnum):
    """Where a run is in its engine."""

    QUEUED = "queued"
    """Not started. It is not in the journal, unless it is a resumed run."""
    RUNNING = "running"
    WAITING = "waiting"
    """Waits for a person and holds no slot."""
    READY = "ready"
    """Can continue and waits for a slot."""
    OVER = "over"
    """Ended, or does not continue in this engine."""


@dataclass(slots=True, eq=False)
class EngineJob:
    """One run of an engine. `work` starts or resumes it."""

    run_id: str
    agent: str
    hosting: Hosting
    work: Callable[[], Coroutine[Any, Any, object]]
    """Returns the result of its agent: a Result, a PipelineResult, an RlmResult or a host's own type."""
    context: Context
    """Context variables for the code inside the run: a copy of the submitter's."""
    end: asyncio.Future[object]
    """The result, or the error as a value, so that an unread error causes no warning."""
    conversation_id: str | None = None
    stored: bool = False
    """The journal had the run before it was submitted."""
    phase: Phase = Phase.QUEUED
    reason: str = ""
    """Why the run waits."""
    entered: float = 0.0
    """When it was queued, by the monotonic clock of its agent."""
    before: float = 0.0
    """Seconds that the run had waited in the journal before it was queued; exact only if clocks agree."""
    seated: bool = False
    task: asyncio.Task[object] | None = field(default=None, repr=False)
    cut: bool = False
    """The engine cancelled its task and records the outcome itself."""

    def settle(self, outcome: object) -> None:
        """Set the outcome. Only the first call has an effect."""
        self.phase = Phase.OVER
        if not self.end.done():
            self.end.set_result(outcome)


class Handle(Generic[OutputT_co, ResultT_co]):
    """A run that an engine admitted. Await the handle for the value that `run` of its agent returns.

    `Handle[Report]` gives a `Result[Report]`. An agent with another class of results, such as a Pipeline, has it as
    the second parameter.

    Cancelling the caller that awaits the handle does not affect the run.

    Raises:
        Suspended: The run was left in the journal before its end and can be resumed.
        NotAdmitting: The engine was drained before the run started.
        CancelRequested: The run was cancelled before it started.
        Exception: Any error that `run` of the agent raises.

    Example:
        handle = await engine.submit("Summarise the open incidents.")
        result = await handle
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
        """Current phase of the run."""
        return self._job.phase

    def done(self) -> bool:
        """Return whether awaiting the handle returns or raises at once."""
        return self._job.end.done()

    def __await__(self) -> Generator[Any, None, ResultT_co]:
        return self._wait().__await__()

    async def _wait(self) -> ResultT_co:
        outcome = await asyncio.shield(self._job.end)
        if isinstance(outcome, BaseException):
            raise outcome
        return cast("ResultT_co", outcome)

    def __repr__(self) -> str:
        return f"Handle({self._job.run_id!r}, {self._job.phase.value})"
