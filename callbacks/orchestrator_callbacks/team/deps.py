"""Dependencies of a team's hooks: the handles of its first agent, and the runtime that drives the segments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from orchestrator.kernel.fact import ToolError
from orchestrator.kernel.outcome import Ending
from orchestrator.kernel.run import Run
from orchestrator.llm.message import FinishReason, Message
from orchestrator.machines.llm_loop.model import RunUsage
from orchestrator.machines.team.model import HandoffRecord, TeamContext
from orchestrator_callbacks.llm_loop.deps import LoopDeps
from orchestrator_guards import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnd:
    """The end of a segment, read from its records."""

    run_id: str
    ending: Ending
    messages: Sequence[Message]
    """The whole conversation after the segment."""
    iterations: int
    spent: RunUsage
    output: Any
    handoff: HandoffRecord | None
    """The handoff that it ended with."""
    verdict: Verdict | None
    error: Exception | None
    tool_errors: tuple[ToolError, ...]
    finish_reason: FinishReason | None
    vendor_finish_reason: str | None


@dataclass(slots=True, kw_only=True)
class TeamDeps(LoopDeps):
    """Handles of a team. Its memory and its account are those of the whole run."""

    segment: Callable[[TeamRun], Awaitable[SegmentEnd]]
    """Starts, resumes or reads the present segment, and returns its end."""
    last_segment: Callable[[TeamRun], Awaitable[SegmentEnd | None]]
    """Returns the end of the present segment; None if it has not ended."""
    history: Callable[[TeamRun, HandoffRecord], list[dict[str, Any]] | None]
    """Returns the messages with which the next segment begins: the result of the handoff's filter; None for all."""


TeamRun: TypeAlias = Run[TeamContext, TeamDeps]
