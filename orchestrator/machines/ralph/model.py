"""States, events, tasks and context of the ralph loop. Plain data, so that a run can be stored and resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import recorded_as
from orchestrator.llm.usage import NO_USAGE, Usage
from orchestrator.machines.ralph.contract import PlannerMode, QuestionerMode, Role
from orchestrator.machines.ralph.limits import RalphLimits
from orchestrator.machines.ralph.marker import SETTLED, Marker
from orchestrator_guards import Verdict


class RalphState(StrEnum):
    """The states. Complete does its own work, the holistic check; Done is the exit."""

    INITIALIZING = "Initializing"
    PLANNING = "Planning"
    EXECUTING = "Executing"
    REVIEWING = "Reviewing"
    COMPLETE = "Complete"
    FAILED = "Failed"
    DONE = "Done"


class RalphEvent(StrEnum):
    """The events. Each event leads to one state, while one trigger of the log may lead to several.

    Reviewing leads to Executing by two events, so that metrics can distinguish rework from success.
    """

    SESSION_RESOLVED = "session_resolved"
    EXECUTION_RESUMED = "execution_resumed"
    REVIEW_RESUMED = "review_resumed"
    COMPLETION_RESUMED = "completion_resumed"
    PLANNER_COMPLETED = "planner_completed"
    QA_NEEDED = "qa_needed"
    PLANNER_BLOCKED = "planner_blocked"
    NEW_REQUIREMENTS = "new_requirements"
    TASK_SELECTED = "task_selected"
    EXECUTOR_COMPLETED = "executor_completed"
    EXECUTOR_FAILED = "executor_failed"
    EXECUTOR_BLOCKED = "executor_blocked"
    REVIEW_PENDING = "review_pending"
    NO_TASKS_REMAINING = "no_tasks_remaining"
    QUALIFIED = "qualified"
    REWORK = "rework"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    HOLISTIC_CHECK_PASSED = "holistic_check_passed"
    HOLISTIC_CHECK_FAILED = "holistic_check_failed"
    ERROR = "error"


TRIGGERS: Mapping[RalphEvent, str] = {
    **{event: event.value for event in RalphEvent},
    RalphEvent.EXECUTION_RESUMED: "session_resolved",
    RalphEvent.REVIEW_RESUMED: "session_resolved",
    RalphEvent.COMPLETION_RESUMED: "session_resolved",
    RalphEvent.QA_NEEDED: "planner_completed",
    RalphEvent.PLANNER_BLOCKED: "planner_completed",
    RalphEvent.EXECUTOR_FAILED: "executor_completed",
    RalphEvent.EXECUTOR_BLOCKED: "executor_completed",
    RalphEvent.REVIEW_PENDING: "no_tasks_remaining",
    RalphEvent.QUALIFIED: "reviewer_completed",
    RalphEvent.REWORK: "reviewer_completed",
}
"""Event -> `event.type` in `transitions.jsonl`; see `trigger` for the event that depends on its source."""


def trigger(event: RalphEvent, source: RalphState) -> str:
    """Return the name in `transitions.jsonl` for an event that led out of `source`."""
    if event is RalphEvent.ATTEMPTS_EXHAUSTED:
        return "reviewer_completed" if source is RalphState.REVIEWING else "executor_completed"
    return TRIGGERS[event]


# ---- tasks ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task from tasks.md, with its marker from progress.md."""

    id: str
    title: str
    marker: Marker = Marker.OPEN
    planning: bool = False
    """An item of planning; only planning works on it."""
    type: str = "Sequential"
    """`Sequential` or `Parallelizable`."""
    files: tuple[str, ...] = ()
    objective: str = ""
    criteria: tuple[str, ...] = ()
    inherits_from: tuple[str, ...] = ()
    """Ids of tasks that must be done first."""


MissingTask: TypeAlias = tuple[str, str, str]
"""A missing task that an agent discovered: id, description, rationale."""


@recorded_as("Answer")
@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """The answer of an agent in one visit of a state."""

    seq: int
    """Number of the transition that led into the state; unique for each visit."""
    role: Role
    body: Mapping[str, Any]
    """Its output as plain data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCall:
    """One call of an agent that returned or failed, and its usage."""

    role: Role
    task_id: str | None = None
    agent: str = ""
    """Name of the coding agent, or empty."""
    model: str = ""
    """Name of the model if it is known, else empty."""
    session: str | None = None
    """Session of the coding agent."""
    child_run_id: str | None = None
    """Run of the model, for an agent that is a model."""
    usage: Usage = NO_USAGE
    """Reported by the agent, or marked as an estimate; its cost is None if it is unknown."""
    failed: bool = False
    """Whether the call ended without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorState:
    """The state of a session."""

    current_state: RalphState = RalphState.INITIALIZING
    session_id: str = ""
    session_path: str = ""
    current_task_id: str | None = None
    current_attempt_number: int = 0
    blockers: tuple[str, ...] = ()
    qa_cycle_count: int = 0
    replans: int = 0

    def __post_init__(self) -> None:
        try:
            state = RalphState(self.current_state)  # text, as a state is in JSON
        except ValueError:
            known = ", ".join(repr(one.value) for one in RalphState)
            raise ConfigError(f"current_state is {self.current_state!r}; possible: {known}") from None
        object.__setattr__(self, "current_state", state)


@dataclass(slots=True)
class RalphContext:
    """The data of a run besides the files of its session, which define the status of tasks."""

    conversation_id: ClassVar[str | None] = None
    """A run belongs to no conversation."""

    request: str = ""
    """The person's request."""
    session_id: str = ""
    session_path: str = ""
    is_new: bool = True
    """Whether the session started with this run."""
    limits: RalphLimits = field(default_factory=RalphLimits)
    fail_on_open_questions: bool = False
    """Behaviour when no round of questions is left: True fails the run, False plans with open questions."""
    log_offset: int = 0
    """Size of transitions.jsonl at the start of the run."""

    iteration: int = 0
    """Started executions."""
    current_task_id: str | None = None
    attempt: int = 0
    """Attempt at the current task, from 1; 0 without a task."""
    selected: bool = False
    """The current task is to be executed now."""
    about: tuple[str | None, int] = (None, 0)
    """Task and attempt of the last transition."""
    blockers: tuple[str, ...] = ()
    qa_cycle_count: int = 0
    replans: int = 0
    reworks: int = 0
    qualified: int = 0

    mode: PlannerMode = PlannerMode.INITIALIZE
    """Mode of the next planner call."""
    asking: bool = False
    """A round of questions comes before that call."""
    qa_modes: tuple[QuestionerMode, ...] = ()
    """Modes of the questioner in that round."""
    cycle: int = 0
    """Number of that round in the session, from 1."""
    feedback: str = ""
    """Faults of the last attempt at the current task."""
    found: tuple[MissingTask, ...] = field(
        default=(), metadata={"fingerprint": ("found", "tuple[Found, ...]")}
    )
    """Discovered tasks that are not in the files yet."""
    requirements: tuple[str, ...] = ()
    """New requests of people that are not part of a plan yet."""
    told: int = 0
    """How many of them the planner of this visit got."""
    notes: tuple[str, ...] = ()
    """Notes of people for all agents, oldest first."""
    answers: tuple[AgentAnswer, ...] = ()
    """Answers of the agents in this visit, in order."""
    summary: str = ""
    """Last summary of the whole."""
    usage: Usage = field(default=NO_USAGE, metadata={"fingerprint": None})
    """Sum of `agent_calls`; an unknown cost counts as 0."""
    agent_calls: tuple[RoleCall, ...] = field(default=(), metadata={"fingerprint": None})
    """The calls of agents, oldest first."""
    verdict: Verdict | None = None
    """The refusal that ended the run."""
    fault: str | None = None
    """Reason of a failure, set at the place of the error if that is more specific than the error's type."""
    deadline: float = 0.0
    """Seconds after the start by which the caller wants the run to end; 0 means none."""


# ---- progress of a session ----


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Number of tasks of a session by marker."""

    planning: int = 0
    """Unfinished items of planning."""
    open: int = 0
    active: int = 0
    review: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def complete(self) -> bool:
        """Whether every task is done or cancelled, and at least one is done."""
        return not (self.open or self.active or self.review or self.failed) and self.done > 0


def count_tasks(tasks: tuple[Task, ...]) -> TaskCounts:
    """Count tasks by marker."""
    work = [task.marker for task in tasks if not task.planning]
    return TaskCounts(
        planning=sum(1 for task in tasks if task.planning and task.marker not in SETTLED),
        open=work.count(Marker.OPEN),
        active=work.count(Marker.ACTIVE),
        review=work.count(Marker.REVIEW),
        done=work.count(Marker.DONE),
        failed=work.count(Marker.FAILED),
        cancelled=work.count(Marker.CANCELLED),
    )


def next_task(tasks: tuple[Task, ...]) -> Task | None:
    """Return the next task to execute: a started one, else the first open one whose predecessors are settled."""
    work = [task for task in tasks if not task.planning]
    settled = {task.id for task in work if task.marker in SETTLED}
    begun = (task for task in work if task.marker is Marker.ACTIVE)
    free = (task for task in work if task.marker is Marker.OPEN and settled.issuperset(task.inherits_from))
    return next(begun, None) or next(free, None)
