"""Inputs and outputs of the five agents, and the status of a run.

Inputs have their names in capitals as JSON and reject unknown members, because the loop writes them. Outputs are
written by models and programs: unknown members are ignored, and all other violations are rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticSerializationError

from orchestrator.errors import RunError


class AgentFailed(RunError):
    """An agent (planner, executor …) did not complete its work; `retriable` says that another attempt may succeed."""

    def __init__(self, role: str, why: str, *, retriable: bool = False) -> None:
        super().__init__(f"the {role} failed: {why}")
        self.role = role
        self.why = why
        self.retryable = retriable
        self.kind = "connection" if retriable else "other"


class AgentOutputInvalid(RunError):
    """The answer of an agent violates its contract; `why` says where."""

    def __init__(self, role: str, why: str) -> None:
        super().__init__(f"the answer of the {role} is invalid: {why}")
        self.role = role
        self.why = why


class Role(StrEnum):
    """The agents of the loop. Only the machine calls them, for one mode at a time."""

    PLANNER = "planner"
    QUESTIONER = "questioner"
    EXECUTOR = "executor"
    REVIEWER = "reviewer"
    CHECKER = "checker"


class PlannerMode(StrEnum):
    """Task of a planner."""

    INITIALIZE = "INITIALIZE"
    UPDATE = "UPDATE"
    TASK_BREAKDOWN = "TASK_BREAKDOWN"
    DISCOVERY = "DISCOVERY"


MODE_ALIASES: Mapping[str, PlannerMode] = {"QA_COORDINATE": PlannerMode.DISCOVERY}
"""Alternative name of a planner mode -> the mode."""


class QuestionerMode(StrEnum):
    """Task of a questioner."""

    BRAINSTORM = "BRAINSTORM"
    RESEARCH = "RESEARCH"


class PlannerStatus(StrEnum):
    """Result of planning."""

    COMPLETED = "completed"
    BLOCKED = "blocked"
    NEEDS_CLARIFICATION = "needs_clarification"
    NEEDS_QA_CYCLE = "needs_qa_cycle"


class QuestionerStatus(StrEnum):
    """Result of a round of questions."""

    COMPLETED = "completed"
    BLOCKED = "blocked"


class ExecutorStatus(StrEnum):
    """Result of an attempt at a task."""

    COMPLETED = "completed"
    FAILED = "failed"
    BLOCKED = "blocked"


class ReviewerStatus(StrEnum):
    """Whether a review could be made."""

    COMPLETED = "completed"
    ERROR = "error"


class OrchestratorStatus(StrEnum):
    """Status of a run."""

    COMPLETED = "completed"
    IN_PROGRESS = "in_progress"
    BLOCKED = "blocked"


class ReviewVerdict(StrEnum):
    """Verdict of a review."""

    QUALIFIED = "Qualified"
    FAILED = "Failed"


class NextAction(StrEnum):
    """Next action that a planner recommends."""

    QA_BRAINSTORM = "qa_brainstorm"
    QA_RESEARCH = "qa_research"
    EXECUTE = "execute"
    REVIEW = "review"
    COMPLETE = "complete"


def _known_mode(given: object) -> object:
    return MODE_ALIASES.get(given, given) if isinstance(given, str) else given


Count = Annotated[int, Field(ge=0, strict=True)]
Text = Annotated[str, Field(min_length=1)]
TaskId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$")]
"""It becomes part of a file name."""

# ---- inputs ----


class _Input(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=str.upper, validate_by_name=True, validate_by_alias=True
    )

    session_path: Text
    context: dict[str, Any] = {}
    """Additional plain data: notes of people, feedback of the last review, open questions."""

    def as_json(self) -> dict[str, Any]:
        """Return the input as plain data with its names in capitals."""
        return self.model_dump(mode="json", by_alias=True)


class PlannerInput(_Input):
    """Make or change plan.md and tasks.md."""

    mode: Annotated[PlannerMode, BeforeValidator(_known_mode)]
    user_request: str


class QuestionerInput(_Input):
    """Write open questions to plan.questions.md, or find answers to them."""

    mode: QuestionerMode
    cycle_number: Annotated[int, Field(ge=1)] = 1


class ExecutorInput(_Input):
    """Execute one task and write its report."""

    task_id: Text
    attempt_number: Annotated[int, Field(ge=1)] = 1


class ReviewerInput(_Input):
    """Review the work of one task."""

    task_id: Text
    report_path: Text


class CheckerInput(_Input):
    """Check all work against the goal."""

    user_request: str


# ---- outputs ----


class _Output(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    def as_json(self) -> dict[str, Any]:
        """Return the output as plain data."""
        return self.model_dump(mode="json")


class TaskCount(_Output):
    """Number of tasks."""

    planning: Count = 0
    implementation: Count = 0
    total: Count = 0


class PlannerOutput(_Output):
    """Result of planning."""

    status: PlannerStatus
    artifacts_created: tuple[str, ...] = ()
    artifacts_updated: tuple[str, ...] = ()
    task_count: TaskCount = TaskCount()
    next_actions: tuple[NextAction, ...] = ()
    blockers: tuple[str, ...] = ()


class Priorities(_Output):
    """Questions by priority."""

    high: Count = 0
    medium: Count = 0
    low: Count = 0


class Confidences(Priorities):
    """Answers by confidence."""

    unknown: Count = 0


class QuestionerOutput(_Output):
    """Result of a round of questions."""

    status: QuestionerStatus
    questions_generated: Count = 0
    questions_answered: Count = 0
    priority_breakdown: Priorities = Priorities()
    confidence_distribution: Confidences = Confidences()
    new_questions_emerged: Count = 0
    invalidated_assumptions: Count = 0
    critical_findings: tuple[str, ...] = ()
    recommendations: tuple[str, ...] = ()


class DiscoveredTask(_Output):
    """A missing task that an agent discovered."""

    id: TaskId
    description: Text
    rationale: str = ""


class ExecutorOutput(_Output):
    """Result of an attempt at a task."""

    status: ExecutorStatus
    report_path: str = ""
    success_criteria_met: bool = False
    discovered_tasks: tuple[DiscoveredTask, ...] = ()
    blockers: tuple[str, ...] = ()


class CriterionResult(_Output):
    """Finding of a review about one criterion."""

    criterion: Text
    met: bool
    evidence: str = ""
    finding: str = ""


class ReviewerOutput(_Output):
    """Findings of a review, with the tasks that it discovered."""

    status: ReviewerStatus
    verdict: ReviewVerdict | None = None
    criteria_results: tuple[CriterionResult, ...] = ()
    quality_assessment: str = ""
    issues: tuple[str, ...] = ()
    feedback: str = ""
    discovered_tasks: tuple[DiscoveredTask, ...] = ()

    @model_validator(mode="after")
    def _agrees(self) -> ReviewerOutput:
        """Reject a review without a verdict, and one that qualifies work against its own findings."""
        if self.status is ReviewerStatus.COMPLETED and self.verdict is None:
            raise ValueError("a completed review needs a verdict: Qualified or Failed")
        unmet = [one.criterion for one in self.criteria_results if not one.met]
        if self.verdict is ReviewVerdict.QUALIFIED and unmet:
            raise ValueError(f"the verdict is Qualified although a criterion is not met: {unmet[0]}")
        return self


class CheckerOutput(_Output):
    """Whether the goal is met, and the missing tasks."""

    passed: bool
    missing_tasks: tuple[DiscoveredTask, ...] = ()
    summary: str = ""

    @model_validator(mode="after")
    def _agrees(self) -> CheckerOutput:
        """Reject a check that passes against its own findings: the run would end with unfinished work."""
        if self.passed and self.missing_tasks:
            raise ValueError(f"passed is true although a task is missing: {self.missing_tasks[0].id}")
        return self


class OrchestratorOutput(_Output):
    """Status of a run for its caller."""

    status: OrchestratorStatus
    session_id: str
    current_state: str
    last_action: str = ""
    next_action: str = ""
    summary: str = ""


AgentInput: TypeAlias = PlannerInput | QuestionerInput | ExecutorInput | ReviewerInput | CheckerInput
AgentOutput: TypeAlias = PlannerOutput | QuestionerOutput | ExecutorOutput | ReviewerOutput | CheckerOutput

OUTPUTS: Mapping[Role, type[AgentOutput]] = {
    Role.PLANNER: PlannerOutput,
    Role.QUESTIONER: QuestionerOutput,
    Role.EXECUTOR: ExecutorOutput,
    Role.REVIEWER: ReviewerOutput,
    Role.CHECKER: CheckerOutput,
}
"""Role -> output model of its agent."""

_FENCE = re.compile(r"^```(?P<json>json)?[ \t]*\r?$", re.MULTILINE)
_MOST = 200
"""Maximum characters of an answer in an error."""


def read(role: Role | str, given: object) -> AgentOutput:
    """Return an agent's answer as its model. Raises AgentOutputInvalid.

    The answer may be the model itself, plain data, or text: either JSON, or prose whose last fenced block is JSON.
    """
    role = Role(role)
    model = OUTPUTS[role]
    try:
        found = given if isinstance(given, model) else model.model_validate(_data(role, given))
        found.model_dump_json()
    except ValidationError as error:
        # Describe the first three invalid members.
        faults = []
        for one in error.errors(include_url=False)[:3]:
            where = ".".join(str(part) for part in one["loc"])
            faults.append(f"{where}: {one['msg']}" if where else one["msg"])
        raise AgentOutputInvalid(role.value, "; ".join(faults)) from None
    except PydanticSerializationError:  # "\ud800" is valid JSON, but cannot be stored or written
        raise AgentOutputInvalid(role.value, "it contains half a character (a lone surrogate)") from None
    return found


def _data(role: Role, given: object) -> object:
    if isinstance(given, bytes | bytearray):
        given = bytes(given).decode(errors="replace")
    if isinstance(given, BaseModel):
        return given.model_dump(mode="json")
    if not isinstance(given, str):
        return given
    for text in (given, *reversed([*_fenced(given)])):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            continue
    said = " ".join(given.split())
    quoted = f"it starts with {said[:_MOST]!r}" if said else "it is empty"
    raise AgentOutputInvalid(role.value, f"the answer is not JSON: {quoted}")


def _fenced(text: str) -> Iterator[str]:
    """Yield the content of fenced blocks. Reads each line once: an unclosed fence causes no second search."""
    begun: int | None = None
    for fence in _FENCE.finditer(text):
        if begun is None:
            begun = fence.end() + 1
        elif not fence["json"]:
            yield text[begun : fence.start()]
            begun = None
