"""States, events and context of the pipeline. Plain data, so that a run can be stored and resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from orchestrator.kernel.graph import recorded_as
from orchestrator.machines.pipeline.limits import PipelineLimits
from orchestrator.machines.pipeline.rubric import Rubric
from orchestrator_guards import Analysis, Verdict, analysis


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
    """The source of feedback, which decides who reads it: see `feedback.READERS`."""

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
