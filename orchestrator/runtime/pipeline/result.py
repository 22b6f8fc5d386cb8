"""What a run of the pipeline gives back. Outcomes are values; `raise_for_outcome` makes exceptions of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.record import Transition
from orchestrator.kernel.run import Run
from orchestrator.machines.pipeline.model import (
    Attempt,
    Evaluation,
    Feedback,
    Implementation,
    OrchestrationState,
    PipelineContext,
    Plan,
    Validation,
)
from orchestrator.runtime.llm_loop.result import stopped
from orchestrator_guards import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """The end of a run, with everything that its stages gave last."""

    run_id: str
    state: StrEnum
    """The terminal state: State.SUCCEEDED, FAILED or BUDGET_EXHAUSTED, or one that a host added."""
    outcome: Outcome
    reason: str
    """One of REASONS[outcome]."""
    output: Any
    """The content of the approved implementation; None where none was approved."""
    best: Attempt | None
    """The attempt with the highest score, approved or not; None where nothing was judged."""
    plan: Plan | None
    validation: Validation | None
    implementation: Implementation | None
    evaluation: Evaluation | None
    feedback: tuple[Feedback, ...]
    iterations: int
    """Plans that were handed on to validation."""
    refinements: int
    tokens: int
    """What all stages used, the runs below them included."""
    transitions: tuple[Transition, ...]
    """The path taken, with the tokens and the reason of each: the last 10,000 transitions."""
    verdict: Verdict | None = None
    """The refusal that ended the run, where one did."""
    error: Exception | None = None
    """The first error."""

    def raise_for_outcome(self) -> PipelineResult:
        """Return self when completed; else raise the RunStopped of this outcome, caused by the first error."""
        if self.outcome is Outcome.COMPLETED:
            return self
        raise stopped(self) from self.error


def result_of(run: Run[PipelineContext, Any], path: Iterable[Transition], end: Ending) -> PipelineResult:
    """Return the result of a run that ended so."""
    ctx = run.ctx
    approved = ctx.implementation if end.outcome is Outcome.COMPLETED else None
    return PipelineResult(
        run_id=run.run_id,
        state=OrchestrationState(run.cursor.state)
        if run.cursor.state in set(OrchestrationState)
        else run.state,
        outcome=end.outcome,
        reason=end.reason,
        output=approved.content if approved else None,
        best=ctx.best,
        plan=ctx.plan,
        validation=ctx.validation,
        implementation=ctx.implementation,
        evaluation=ctx.evaluation,
        feedback=ctx.feedback,
        iterations=ctx.iteration,
        refinements=ctx.refinements,
        tokens=ctx.tokens,
        transitions=tuple(path),
        verdict=ctx.verdict,
        error=run.error,
    )
