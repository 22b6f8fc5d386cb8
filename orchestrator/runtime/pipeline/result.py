"""The result of a pipeline run. Outcomes are values; `raise_for_outcome` converts them to exceptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.record import Transition
from orchestrator.kernel.run import Run
from orchestrator.machines.pipeline.graph import PIPELINE
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
from orchestrator.runtime.service.notebook import result_bundle
from orchestrator_guards import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """The end of a run, with the last results of its stages."""

    run_id: str
    state: StrEnum
    """The terminal state: State.SUCCEEDED, FAILED or BUDGET_EXHAUSTED, or a state of the host."""
    outcome: Outcome
    reason: str
    """One of REASONS[outcome]."""
    output: Any
    """The content of the approved implementation; None without approval."""
    best: Attempt | None
    """The attempt with the highest score, approved or not; None if nothing was judged."""
    plan: Plan | None
    validation: Validation | None
    implementation: Implementation | None
    evaluation: Evaluation | None
    feedback: tuple[Feedback, ...]
    iterations: int
    """Plans that were passed to validation."""
    refinements: int
    tokens: int
    """Tokens of all stages, including their child runs."""
    transitions: tuple[Transition, ...]
    """The path of the run with tokens and reasons: the last 10,000 transitions."""
    verdict: Verdict | None = None
    """The refusal that ended the run, if any."""
    error: Exception | None = None
    """The first error."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return result_bundle(self, PIPELINE)

    def raise_for_outcome(self) -> PipelineResult:
        """Return self if the run completed; else raise the RunStopped of its outcome, caused by the first error."""
        if self.outcome is Outcome.COMPLETED:
            return self
        raise stopped(self) from self.error


def result_of(run: Run[PipelineContext, Any], path: Iterable[Transition], end: Ending) -> PipelineResult:
    """Return the result of a run with this end."""
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
