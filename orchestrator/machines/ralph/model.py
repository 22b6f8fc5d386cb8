"""Limits, states, events, tasks, context and ports of the ralph loop: plain data, so that a run can be resumed.

An agent is any callable that takes an AgentRequest; a synchronous one runs in its own thread. It returns a mapping,
JSON text, or a model of `contract`; `contract.read` converts it to the output of its role. Only the hooks call
agents, for one role and mode at a time. An agent that a crash interrupted is called again with the same `key`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import recorded_as
from orchestrator.llm.usage import NO_USAGE, Usage
from orchestrator.machines.bound import ON_UNKNOWN_COST, by_name, out_of_range, unknown_word
from orchestrator.machines.ralph.contract import PlannerMode, QuestionerMode, Role
from orchestrator.machines.ralph.tasklist import SETTLED, Marker, SessionFileError, TaskEntry, TaskList
from orchestrator_guards import Verdict, qa_cycles, task_attempts
from orchestrator_guards.money import limit_micros

# ---- limits ----


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class RalphLimits:
    """Limits of one run of the loop. A limit of N allows exactly N; 0 means unlimited.

    Raises:
        ConfigError: A name is unknown, or a number is below 0.
    """

    max_task_attempts: int = 3
    """Executions of one task in total, including the first; after that many without success the run fails."""
    max_qa_cycles: int = 3
    """Rounds of questions and answers in a run."""
    max_planning_retries: int = 2
    """Repeated requests to a planner after an invalid answer, in one visit of the state."""
    max_replans: int = 3
    """Returns to planning after blocked work or a failed holistic check. New requests of people do not count."""
    max_agent_retries: int = 2
    """Repeated requests to any other agent after an invalid answer or a reported error."""
    max_executions: int = 100
    """Executions of all tasks of a run together. Bounds a run whose agents discover more and more tasks."""
    max_seconds: float = 0.0
    """Wall time of the run; an agent in flight is interrupted."""
    max_tokens: int = field(default=0, metadata={"fingerprint": None})
    """Input and output tokens of all agents together, with estimates. Checked before each call of an agent."""
    max_cost: float = field(default=0.0, metadata={"fingerprint": None})
    """Cost of all agents together, in the currency of the price table; coding agents report US dollars.

    Checked before each call of an agent. A coding agent that enforces a maximum cost gets the rest of the limit;
    another one may exceed the limit by the cost of one call.
    """
    on_unknown_cost: Literal["stop", "ignore"] = field(default="stop", metadata={"fingerprint": None})
    """Handling of a call of unknown cost under `max_cost`: `stop` calls no further agent, `ignore` counts it as 0."""

    def __post_init__(self) -> None:
        if fault := unknown_word("on_unknown_cost", self.on_unknown_cost, ON_UNKNOWN_COST):
            raise ConfigError(f"limit {fault}")
        for item in fields(self):
            if item.name == "on_unknown_cost":
                continue
            whole = isinstance(item.default, int)
            if fault := out_of_range(item.name, getattr(self, item.name), whole=whole):
                raise ConfigError(f"limit {fault}")

    @property
    def max_cost_micros(self) -> int:
        """`max_cost` in millionths of the currency."""
        return limit_micros(self.max_cost)

    def should_retry_task(self, attempt_number: int) -> bool:
        """Return whether a task gets another attempt after the unsuccessful attempt `attempt_number` (from 1)."""
        return task_attempts(attempt_number, self.max_task_attempts).ok

    def should_continue_qa(self, cycle_number: int) -> bool:
        """Return whether another round of questions is allowed after `cycle_number` rounds."""
        return qa_cycles(cycle_number, self.max_qa_cycles).ok


# ---- states and events ----


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


_TASK_ID = re.compile(r"task-[\w.-]+")


def together(tasks: TaskList, progress: TaskList, where: str) -> tuple[Task, ...]:
    """Return the tasks in the order of tasks.md. Raises SessionFileError for impossible predecessors."""
    described = {entry.id for entry in tasks.entries}
    known = {entry.id for entry in (*tasks.entries, *progress.entries) if not entry.planning}
    lines_of = {entry.id: entry for entry in progress.entries}
    merged = [
        *(_task(entry, lines_of.get(entry.id), known) for entry in tasks.entries),
        *(_task(entry, entry, known) for entry in progress.entries if entry.id not in described),
    ]
    lines = {entry.id: entry.node.line + 1 for entry in tasks.entries}
    for task in merged:
        for forerunner in task.inherits_from:
            if forerunner not in known:
                raise SessionFileError(
                    where, lines.get(task.id, 0), f"{task.id} depends on {forerunner}, which is not a task"
                )
    try:
        TopologicalSorter({task.id: task.inherits_from for task in merged}).prepare()
    except CycleError as error:  # none of these tasks could ever start
        circle = sorted(set(error.args[1]))
        raise SessionFileError(
            where, lines.get(circle[0], 0), f"these tasks depend on each other: {', '.join(circle)}"
        ) from None
    return tuple(merged)


def _task(entry: TaskEntry, line: TaskEntry | None, known: set[str]) -> Task:
    status = entry.mark if line is None else line.mark
    given = entry.fields
    # Text that neither is nor looks like a task ("plan.md, section 2") is prose, and a task does not depend on
    # prose. It does not depend on planning either, which is complete before any task starts.
    forerunners = [one for one in given.get("inherits_from", ()) if one in known or _TASK_ID.fullmatch(one)]
    kind, *_ = given.get("type") or ("",)
    return Task(
        id=entry.id,
        title=entry.title,
        marker=status or Marker.OPEN,
        planning=entry.planning or (line is not None and line.planning),
        type="Parallelizable" if kind.lower().startswith("parallel") else "Sequential",
        files=tuple(given.get("files", ())),
        objective=" ".join(given.get("objective", ())),
        criteria=tuple(given.get("criteria", ())),
        inherits_from=tuple(one for one in forerunners if one != entry.id),
    )


# ---- ports ----


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
