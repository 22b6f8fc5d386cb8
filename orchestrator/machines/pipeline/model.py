"""Limits, rubric, states, events, context and ports of the pipeline: plain data, so that a run can be resumed.

A port is any callable that takes a StageRequest; a synchronous one runs in its own thread. It returns a typed result
or equivalent plain data. If it raises or returns anything else, the run fails: a missing score is never replaced.

    planner      Plan, or plain data: the plan itself
    validator    Validation, a list of Issue, or {"issues": [{"severity", "message", "where"}, ...]}
    implementer  Implementation, or plain data: the implementation itself
    judge        Evaluation, or {"score", "categories", "comments"}

A finished stage is never run again. A stage that a crash interrupted is repeated with the same `request.key`. The
attribute `effect` of a port states whether that is safe: `pure` and `idempotent` (the default) stages may be
repeated; for an `irreversible` one a person has to allow it with `resume(run_id, again=True)`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import recorded_as
from orchestrator.machines.bound import by_name, out_of_range
from orchestrator_guards import Analysis, Verdict, analysis

# ---- limits ----


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLimits:
    """Limits of one pipeline run. A limit of N allows exactly N; 0 means unlimited or off.

    Raises:
        ConfigError: A name is unknown, or a number is below 0.
    """

    max_iterations: int = 3
    """Plans: how often planning may lead to validating. Counted only there."""
    max_refinements: int = 3
    """Soft failures of the whole run that may be followed by another implementation of the same plan."""
    token_budget: int = 75_000
    """Input and output tokens of all stages together."""
    headroom: float = 1.2
    """A stage starts if the remaining budget is at least this multiple of its estimate."""
    plan_tokens: int = 5_500
    """Estimated tokens of one plan; with 0 planning always fits. The other estimates work alike."""
    validate_tokens: int = 0
    implement_tokens: int = 8_500
    refine_tokens: int = 7_000
    """Estimated tokens of an implementation after a soft failure."""
    judge_tokens: int = 6_500
    feedback_tokens: int = 2_000
    """Tokens of feedback that is kept for the stages, newest first, estimated at four characters per token."""
    max_seconds: float = 0.0
    """Wall time of the run; a stage in flight is interrupted."""

    def __post_init__(self) -> None:
        for item in fields(self):
            whole = isinstance(item.default, int)
            if fault := out_of_range(item.name, getattr(self, item.name), whole=whole):
                raise ConfigError(f"limit {fault}")


OFF = PipelineLimits(max_iterations=0, max_refinements=0, token_budget=0, feedback_tokens=0)
"""No limits: for code that drives the machine itself and has its own limits."""


# ---- rubric ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """Thresholds for scores, and the categories of plan and implementation.

    Raises:
        ConfigError: The thresholds contradict each other, or a category belongs to both plan and implementation.
    """

    top: float = 10.0
    """The best score; the worst is 0. A judge that returns a score outside this range fails."""
    approve: float = 7.0
    """Minimum score for approval."""
    hard: float = 5.0
    """Minimum score for refinement; below it a new plan is made."""
    category: float = 6.0
    """A category fails below this score."""
    plan: tuple[str, ...] = ("template_variety", "energy_matching")
    """Categories about the plan."""
    implementation: tuple[str, ...] = ("musical_alignment", "timing_coverage", "transition_quality")
    """Categories about the implementation. Categories in neither list do not influence the decision."""

    def __post_init__(self) -> None:
        if not 0 <= self.hard <= self.approve <= self.top < math.inf:
            raise ConfigError(
                f"a rubric needs 0 <= hard <= approve <= top, not {self.hard}, {self.approve}, {self.top}"
            )
        if not 0 <= self.category <= self.top:
            raise ConfigError(f"category is {self.category}; it must be from 0 to top, {self.top}")
        object.__setattr__(self, "plan", tuple(self.plan))
        object.__setattr__(self, "implementation", tuple(self.implementation))
        if both := set(self.plan) & set(self.implementation):
            raise ConfigError(
                f"category {min(both)!r} is in both plan and implementation; put it into one of them"
            )


# ---- states and events ----


class OrchestrationState(StrEnum):
    """The eight states."""

    INITIALIZED = "initialized"
    PLANNING = "planning"
    VALIDATING = "validating"
    IMPLEMENTING = "implementing"
    JUDGING = "judging"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    BUDGET_EXHAUSTED = "budget_exhausted"


class PipelineEvent(StrEnum):
    """The events. From each state, each event leads to one state, and no two events lead to the same state."""

    START = "start"
    PLAN_READY = "plan_ready"
    PLAN_VALID = "plan_valid"
    PLAN_INVALID = "plan_invalid"
    IMPLEMENTED = "implemented"
    APPROVED = "approved"
    SOFT_FAILURE = "soft_failure"
    HARD_FAILURE = "hard_failure"
    BUDGET_EXHAUSTED = "budget_exhausted"
    FAILURE = "failure"


# ---- results of the stages ----


class Severity(StrEnum):
    """Severity of an issue in a plan. Only an error prevents its implementation."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue that a validator found in a plan."""

    severity: Severity
    message: str
    where: str = ""
    """The part of the plan that has the issue, in the validator's own words."""

    def __str__(self) -> str:
        return f"{self.severity}: {f'{self.where}: ' if self.where else ''}{self.message}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. `content` is plain data (JSON types), as in the other results."""

    content: Any
    tokens: int = 0
    """Tokens that the stage used, as in the other results."""


@dataclass(frozen=True, slots=True)
class Validation:
    """The issues of a plan."""

    issues: tuple[Issue, ...] = ()
    tokens: int = 0

    @property
    def ok(self) -> bool:
        """Whether no issue is an error."""
        return all(issue.severity is not Severity.ERROR for issue in self.issues)


@dataclass(frozen=True, slots=True)
class Implementation:
    """The implementation of a plan."""

    content: Any
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scores of a judge. The rubric derives the verdict from them."""

    score: float
    categories: Mapping[str, float] = field(default_factory=dict)
    """Scores by category, on the same scale."""
    comments: str = ""
    tokens: int = 0

    def against(self, rubric: Rubric) -> Analysis:
        """Return the analysis of the scores under a rubric."""
        return analysis(
            self.score,
            self.categories,
            rubric.approve,
            rubric.hard,
            rubric.category,
            rubric.plan,
            rubric.implementation,
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """An implementation with its score."""

    score: float
    plan: Any
    implementation: Any
    iteration: int
    refinement: int
    evaluation: Evaluation


# ---- feedback ----


class FeedbackKind(StrEnum):
    """The source of feedback, which decides who reads it: see `progress.READERS`."""

    VALIDATION_FAILURE = "validation_failure"
    JUDGE_SOFT_FAILURE = "judge_soft_failure"
    JUDGE_HARD_FAILURE = "judge_hard_failure"


@dataclass(frozen=True, slots=True)
class Feedback:
    """Text for a stage about an earlier attempt."""

    kind: FeedbackKind
    text: str
    iteration: int


# ---- the run ----


@recorded_as("Done")
@dataclass(frozen=True, slots=True)
class StageResult:
    """The end of the work in one visit of a state."""

    seq: int
    """Number of the transition that led into the state; unique for each visit."""
    tokens: int = 0
    error: str = ""
    """Type of the stage's error if it raised one; there is no result then."""


@dataclass(slots=True)
class PipelineContext:
    """The data of a pipeline run.

    The results of the stages are not stored with it: they are rebuilt from the records of the stages (see
    `progress.take`).
    """

    conversation_id: ClassVar[str | None] = None
    """A pipeline run belongs to no conversation."""

    spec: Any = None
    """The specification: plain data."""
    limits: PipelineLimits = field(default_factory=PipelineLimits)
    rubric: Rubric = field(default_factory=Rubric)
    iteration: int = 0
    """Plans that were passed to validation."""
    refinements: int = 0
    feedback: tuple[Feedback, ...] = ()
    """Oldest first."""
    verdict: Verdict | None = None
    """The refusal that ended the run."""
    fault: str | None = None
    """Reason of a failure, set at the place of the error if that is more specific than the error's type."""
    deadline: float = 0.0
    """Seconds after the start by which the caller wants the run to end; 0 means none."""

    tokens: int = 0
    """Tokens used by all stages so far."""
    plan: Plan | None = None
    validation: Validation | None = None
    implementation: Implementation | None = None
    evaluation: Evaluation | None = None
    best: Attempt | None = None
    """The attempt with the highest score; of equal ones the first."""
    done: StageResult | None = None
    """The last finished stage."""
    recorded: tuple[Any, ...] = (None, None, None, None)
    """Plan, validation, implementation and evaluation according to the records; a different value was set by a hook."""

    @property
    def remaining(self) -> int | None:
        """Remaining tokens of the budget, at least 0; None if it is unlimited."""
        return max(0, self.limits.token_budget - self.tokens) if self.limits.token_budget else None

    @property
    def refining(self) -> bool:
        """Whether the current implementation was judged, so that the next one refines it."""
        return self.evaluation is not None


MADE = ("plan", "validation", "implementation", "evaluation")
"""Fields with the results of the stages, in order. Frozen: a hook that changes one replaces it."""
APART = ("tokens", *MADE, "best", "done", "recorded")
"""Fields that are rebuilt from the records of the stages."""


# ---- ports ----


EFFECTS = ("pure", "idempotent", "irreversible")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """The request to a stage, with all known data."""

    stage: OrchestrationState
    spec: Any
    iteration: int
    """Plans that were validated so far: 0 for the first plan, 1 for all work on it."""
    refinement: int
    """Soft failures of the run so far."""
    feedback: tuple[Feedback, ...] = ()
    """Feedback for this stage, oldest first."""
    plan: Plan | None = None
    """The current plan; during replanning, the previous one."""
    validation: Validation | None = None
    implementation: Implementation | None = None
    evaluation: Evaluation | None = None
    remaining_tokens: int | None = None
    """Remaining tokens of the run's budget; None if it is unlimited."""
    key: str = ""
    """Idempotency key: the same for this visit of this state in every process."""
    run_id: str = ""
    deps: Any = None
    """Handles of the host."""
    used: list[int] = field(default_factory=list)
    """See `spend`."""

    def spend(self, tokens: int) -> None:
        """Record tokens that were used in addition to the `tokens` of the result, even if the stage then raises.

        Raises ConfigError for an invalid number of tokens.
        """
        if type(tokens) is not int or tokens < 0:
            raise ConfigError(f"a stage spent {tokens!r} tokens; it must be a whole number, 0 or more")
        self.used.append(tokens)


Port: TypeAlias = Callable[[StageRequest], Any]
"""One of the four ports, as the hooks see it."""


class Planner(Protocol):
    """Makes a plan from the spec and the faults of the previous plan."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class Validator(Protocol):
    """Checks a plan before resources are spent on it."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class Implementer(Protocol):
    """Implements a plan; after a soft failure, improves the implementation."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class Judge(Protocol):
    """Scores an implementation."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class BudgetManager(Protocol):
    """The host's own budget, checked before and after each stage."""

    def is_exhausted(self) -> bool | Awaitable[bool]:
        """Return whether nothing more may be spent."""
        ...
