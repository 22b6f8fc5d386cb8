"""Outcome and reason of a pipeline run, from terminal state and error.

A limit on plans or refinements ends a run as failed, with the limit as reason; the token budget has its own state and
outcome. An attempt that no judge approved is not an answer and does not make a run `partial`.
"""

from __future__ import annotations

from typing import Any

from orchestrator.errors import (
    CancelRequested,
    DeadlineExceeded,
    Refused,
    RejectRequested,
)
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.failing import reason_of
from orchestrator.machines.pipeline.model import OrchestrationState, PipelineContext
from orchestrator_guards import Verdict

LIMITS = ("iterations", "refinements")
"""Guards whose refusal ends a run as failed with reason max_iterations."""


def ending(run: Run[PipelineContext, Any]) -> Ending:
    """Return outcome and reason of a run in a terminal state."""
    error = run.error
    if run.state == OrchestrationState.SUCCEEDED:
        return Ending(Outcome.COMPLETED, "none")
    if run.state == OrchestrationState.BUDGET_EXHAUSTED:
        return Ending(Outcome.BUDGET_EXCEEDED, "tokens")
    if isinstance(error, RejectRequested):
        return Ending(Outcome.REJECTED, "operator")
    if isinstance(error, CancelRequested):
        return Ending(Outcome.CANCELLED, error.reason)
    if isinstance(error, DeadlineExceeded):
        return Ending(Outcome.BUDGET_EXCEEDED, "time")
    return Ending(Outcome.FAILED, _reason(run, error))


def limit_of(error: Exception | None) -> Verdict | None:
    """Return the refusal of one of the pipeline's guards in an error, or None."""
    verdict = error.verdict if isinstance(error, Refused) else None
    return verdict if isinstance(verdict, Verdict) and verdict.guard in LIMITS else None


def _reason(run: Run[PipelineContext, Any], error: Exception | None) -> str:
    if limit_of(error) is not None:
        return "max_iterations"
    return reason_of(run, error)
