"""States, events, tasks and context of the ralph loop. Plain data: it can be stored, and a run can go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

from orchestrator.machines.ralph.contract import PlannerMode, QuestionerMode, Role
from orchestrator.machines.ralph.limits import RalphLimits
from orchestrator.machines.ralph.marker import SETTLED, Marker
from orchestrator_guards import Verdict


class RalphState(StrEnum):
    """Seed 002's six states, and the exit: Complete has work of its own, the holistic check (R1, R2)."""

    INITIALIZING = "Initializing"
    PLANNING = "Planning"
    EXECUTING = "Executing"
    REVIEWING = "Reviewing"
    COMPLETE = "Complete"
    FAILED = "Failed"
    DONE = "Done"


class RalphEvent(StrEnum):
    """What leads from one state to another. The seed's triggers say less: one of them leads to several states.

    Two ways from Reviewing to Executing are two events here, so that rework can be told from success in every metric.
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
"""Event -> the seed's `event.type`, as `transitions.jsonl` has it; see `trigger` for the one that it depends on."""


def trigger(event: RalphEvent, source: RalphState) -> str:
    """Return the seed's name for what led out of `source`."""
    if event is RalphEvent.ATTEMPTS_EXHAUSTED:
        return "reviewer_completed" if source is RalphState.REVIEWING else "executor_completed"
    return TRIGGERS[event]


# ---- tasks ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task as tasks.md describes it, with its marker of progress.md."""

    id: str
    title: str
    marker: Marker = Marker.OPEN
    planning: bool = False
    """It is an item of planning: only planning works on it."""
    type: str = "Sequential"
    """`Sequential` or `Parallelizable`."""
    files: tuple[str, ...] = ()
    objective: str = ""
    criteria: tuple[str, ...] = ()
    inherits_from: tuple[str, ...] = ()
    """Ids of tasks that must be done first."""


Found: TypeAlias = tuple[str, str, str]
"""A task that an agent found to be missing: id, description, rationale."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an agent gave in a stay."""

    seq: int
    """Number of the transition that led into the state: no two stays have the same."""
    role: Role
    body: Mapping[str, Any]
    """Its output as plain data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorState:
    """Seed 002's record of where a session stands; `replans` is ours."""

    current_state: RalphState = RalphState.INITIALIZING
    session_id: str = ""
    session_path: str = ""
    current_task_id: str | None = None
    current_attempt_number: int = 0
    blockers: tuple[str, ...] = ()
    qa_cycle_count: int = 0
    replans: int = 0


@dataclass(slots=True)
class RalphContext:
    """Everything a run knows that is not in the files of its session: these are the truth for the status of tasks."""

    conversation_id: ClassVar[str | None] = None
    """A run is part of no conversation."""

    request: str = ""
    """What the person asked for."""
    session_id: str = ""
    session_path: str = ""
    is_new: bool = True
    """The session began with this run."""
    limits: RalphLimits = field(default_factory=RalphLimits)
    fail_on_open_questions: bool = False
    """Where the rounds of questions are used up: True fails the run, False plans with the questions open (R8)."""
    log_offset: int = 0
    """Size of transitions.jsonl when the run began."""

    iteration: int = 0
    """Executions begun."""
    current_task_id: str | None = None
    attempt: int = 0
    """Of the current task, from 1; 0 without one."""
    selected: bool = False
    """The current task is to be executed now."""
    about: tuple[str | None, int] = (None, 0)
    """Task and attempt that the last transition was about."""
    blockers: tuple[str, ...] = ()
    qa_cycle_count: int = 0
    replans: int = 0
    reworks: int = 0
    qualified: int = 0

    mode: PlannerMode = PlannerMode.INITIALIZE
    """What the planner is asked to do next."""
    asking: bool = False
    """A round of questions comes before that."""
    qa_modes: tuple[QuestionerMode, ...] = ()
    """What the questioner is to do in that round."""
    cycle: int = 0
    """Number of that round among all of the session, from 1."""
    feedback: str = ""
    """What was wrong with the last attempt at the current task."""
    found: tuple[Found, ...] = ()
    """Tasks found that are not in the files yet."""
    requirements: tuple[str, ...] = ()
    """What people asked for since, and no plan has in it."""
    told: int = 0
    """How many of these the planner of this stay was told."""
    notes: tuple[str, ...] = ()
    """What people said for everybody to know, oldest first."""
    answers: tuple[Answer, ...] = ()
    """What the agents gave in the present stay, in order."""
    summary: str = ""
    """What was said last of the whole."""
    verdict: Verdict | None = None
    """The refusal that ended the run."""
    fault: str | None = None
    """Reason of a failure where the place it happened in knows better than the error's type."""
    deadline: float = 0.0
    """Seconds after its start by which the caller wants the run to have ended; 0 is none."""


# ---- where a session stands ----


@dataclass(frozen=True, slots=True)
class Standing:
    """How many tasks a session has, by what is to be done with them."""

    planning: int = 0
    """Items of planning that are not settled."""
    open: int = 0
    active: int = 0
    review: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def complete(self) -> bool:
        """Every task is done or cancelled, and there is one that is done."""
        return not (self.open or self.active or self.review or self.failed) and self.done > 0


def standing(tasks: tuple[Task, ...]) -> Standing:
    """Count tasks."""
    work = [task.marker for task in tasks if not task.planning]
    return Standing(
        planning=sum(1 for task in tasks if task.planning and task.marker not in SETTLED),
        open=work.count(Marker.OPEN),
        active=work.count(Marker.ACTIVE),
        review=work.count(Marker.REVIEW),
        done=work.count(Marker.DONE),
        failed=work.count(Marker.FAILED),
        cancelled=work.count(Marker.CANCELLED),
    )


def next_task(tasks: tuple[Task, ...]) -> Task | None:
    """Return what to execute next: a task that was begun, else the first open one whose forerunners are settled."""
    work = [task for task in tasks if not task.planning]
    settled = {task.id for task in work if task.marker in SETTLED}
    begun = (task for task in work if task.marker is Marker.ACTIVE)
    free = (task for task in work if task.marker is Marker.OPEN and settled.issuperset(task.inherits_from))
    return next(begun, None) or next(free, None)
