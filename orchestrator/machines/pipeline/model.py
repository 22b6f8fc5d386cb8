"""States, events and context of the pipeline. Plain data: it can be stored, and a run can go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from orchestrator.machines.pipeline.limits import PipelineLimits
from orchestrator.machines.pipeline.rubric import Rubric
from orchestrator_guards import Analysis, Verdict, analysis


class OrchestrationState(StrEnum):
    """Seed 000's eight states."""

    INITIALIZED = "initialized"
    PLANNING = "planning"
    VALIDATING = "validating"
    IMPLEMENTING = "implementing"
    JUDGING = "judging"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    BUDGET_EXHAUSTED = "budget_exhausted"


class PipelineEvent(StrEnum):
    """What leads from one state to another. From each state each event leads to one, and no other leads there."""

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


# ---- what the stages give ----


class Severity(StrEnum):
    """How bad something in a plan is: only an error keeps it from being implemented."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Issue:
    """Something that a validator found in a plan."""

    severity: Severity
    message: str
    where: str = ""
    """The part of the plan it is about, in the validator's own words."""

    def __str__(self) -> str:
        return f"{self.severity}: {f'{self.where}: ' if self.where else ''}{self.message}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done. `content` is plain data (JSON types), here as below."""

    content: Any
    tokens: int = 0
    """What making it used; here as below."""


@dataclass(frozen=True, slots=True)
class Validation:
    """What was found in a plan."""

    issues: tuple[Issue, ...] = ()
    tokens: int = 0

    @property
    def ok(self) -> bool:
        """No issue is an error."""
        return all(issue.severity is not Severity.ERROR for issue in self.issues)


@dataclass(frozen=True, slots=True)
class Implementation:
    """What was made of a plan."""

    content: Any
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a judge thinks. There is no verdict of its own: the rubric says what the score amounts to."""

    score: float
    categories: Mapping[str, float] = field(default_factory=dict)
    """Scores by category, on the same scale."""
    comments: str = ""
    tokens: int = 0

    def against(self, rubric: Rubric) -> Analysis:
        """Return what the scores mean."""
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
    """Where feedback comes from, and so who reads it: see `feedback.READERS`."""

    VALIDATION_FAILURE = "validation_failure"
    JUDGE_SOFT_FAILURE = "judge_soft_failure"
    JUDGE_HARD_FAILURE = "judge_hard_failure"


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a stage is told about an earlier try."""

    kind: FeedbackKind
    text: str
    iteration: int


# ---- the run ----


@dataclass(frozen=True, slots=True)
class Done:
    """What came of the work of one stay in a state."""

    seq: int
    """Number of the transition that led into the state: no two stays have the same."""
    tokens: int = 0
    error: str = ""
    """Type of the error that the stage raised, where it did; then nothing came of it."""


@dataclass(slots=True)
class PipelineContext:
    """Everything a run of the pipeline knows.

    What the stages gave is not written with it: it follows from the records of the stages (see `progress.take`).
    """

    conversation_id: ClassVar[str | None] = None
    """A run of the pipeline is part of no conversation."""

    spec: Any = None
    """What is wanted: plain data."""
    limits: PipelineLimits = field(default_factory=PipelineLimits)
    rubric: Rubric = field(default_factory=Rubric)
    iteration: int = 0
    """Plans that were handed on to validation."""
    refinements: int = 0
    feedback: tuple[Feedback, ...] = ()
    """Oldest first."""
    verdict: Verdict | None = None
    """The refusal that ended the run."""
    fault: str | None = None
    """Reason of a failure where the place it happened in knows better than the error's type."""
    deadline: float = 0.0
    """Seconds after its start by which the caller wants the run to have ended; 0 is none."""

    tokens: int = 0
    """What all stages have used so far."""
    plan: Plan | None = None
    validation: Validation | None = None
    implementation: Implementation | None = None
    evaluation: Evaluation | None = None
    best: Attempt | None = None
    """The attempt with the highest score, the first of several."""
    done: Done | None = None
    """The stage that ended last."""
    recorded: tuple[Any, ...] = (None, None, None, None)
    """Plan, validation, implementation and evaluation as the records have them: others are a hook's."""

    @property
    def remaining(self) -> int | None:
        """Tokens left of the budget, at least 0; None where it is unlimited."""
        return max(0, self.limits.token_budget - self.tokens) if self.limits.token_budget else None

    @property
    def refining(self) -> bool:
        """The present implementation of the plan was judged: the next one refines it."""
        return self.evaluation is not None


MADE = ("plan", "validation", "implementation", "evaluation")
"""Fields that hold what the stages gave, in their order. Frozen: a hook that changes one puts another in its place."""
APART = ("tokens", *MADE, "best", "done", "recorded")
"""Fields that follow from the records of the stages."""
