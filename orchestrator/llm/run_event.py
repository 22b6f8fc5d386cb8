"""Events of a run, for a user interface: what the stream of a run and a reader of its journal receive.

An event that was read from the journal has an `id`, which continues the events after it in any process. Deltas,
progress and retries exist only in the process that owns the run and have no id. Events have content: prompts,
arguments, results. So they are no facts, and no observer receives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.kernel.fact import ToolError
from orchestrator.llm import live_event
from orchestrator.llm.live_event import (
    RunEvent,
)

# ---- the run ----


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCreated(RunEvent):
    """A run was created."""

    machine: str = ""
    """Name of the graph."""
    agent: str = ""
    parent_run_id: str | None = None
    conversation_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSuspended(RunEvent):
    """A run was parked: it waits for a person, was paused, or its process left it."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(RunEvent):
    """A parked or left run continues. If it waits for a person again, its open questions follow as QuestionAsked."""

    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged(RunEvent):
    """A transition was committed. `source` and `dest` are equal for an edge that stays in its state."""

    event: str
    source: str
    dest: str
    transition: int = 0
    """Number of the transition, from 1."""
    error: str = ""
    """Class of the error that caused the transition, if one did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWarning(RunEvent):
    """A run has used 80 % of a budget. Sent once for each budget."""

    guard: str
    observed: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(RunEvent):
    """A run ended; no event follows. `output` is JSON."""

    outcome: str
    reason: str
    output: Any = None


# ---- the model ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequestStarted(RunEvent):
    """The model is asked for answer number `iteration`."""

    iteration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequestFinished(RunEvent):
    """The model answered. Its tool calls follow as ToolStarted or QuestionAsked."""

    iteration: int
    model: str = ""
    text: str = ""
    reasoning: str = ""
    tool_calls: int = 0
    finish_reason: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0


# ---- tools and people ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(RunEvent):
    """A tool call was admitted and starts, or is queued for a slot."""

    key: str
    """`TURN:POSITION` of the call, as in `Question.key`."""
    tool: str
    arguments: str = ""
    """JSON text in canonical form; empty if the journal does not have it."""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished(RunEvent):
    """A tool call has its result, also if it was refused and no tool ran."""

    key: str
    tool: str
    outcome: str
    """As in the fact ToolExecution: `ok`, `result_unreadable`, `error`, `denied` …"""
    result: str = ""
    """The text that the model reads."""
    seconds: float = 0.0
    error: ToolError | None = None
    """The exception of the tool, if the outcome is `error`: type, message, file and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAsked(RunEvent):
    """A call waits for a person: answer with `Runs.approve`, `reject` or `respond`."""

    key: str
    tool: str
    arguments: str = ""
    why: str = ""
    digest: str = ""
    """Pass it with the answer, so that the answer counts for exactly these arguments."""
    expires_at: float = 0.0
    """Epoch seconds; 0: never."""
    input: Mapping[str, Any] | None = None
    """The request for input as JSON data (`message`, `schema`, `url`), if `why` is `input`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswered(RunEvent):
    """A person answered a question."""

    key: str
    decision: str
    """`approve`, `reject` or `respond`."""
    by: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRunStarted(RunEvent):
    """A tool call starts the run of another agent. The child run has its own events."""

    child_run_id: str
    key: str
    agent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRunFinished(RunEvent):
    """The tool call of a child run has its result. `outcome` is that of the call."""

    child_run_id: str
    key: str
    outcome: str


# ---- all ----


RUN_EVENTS: tuple[type[RunEvent], ...] = tuple(
    one
    for one in (*vars(live_event).values(), *globals().values())
    if isinstance(one, type) and issubclass(one, RunEvent) and one is not RunEvent
)
"""The classes of events, those of `live_event` first."""
