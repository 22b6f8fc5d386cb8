"""The graph of the pipeline and its endings. The token budget can end a run in every stage.

The budget is checked before and after each stage, so validating and judging, which use most tokens, also have an edge
to budget_exhausted.

A limit on plans or refinements ends a run as failed, with the limit as reason; the token budget has its own state and
outcome. An attempt that no judge approved is not an answer and does not make a run `partial`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import (
    CancelRequested,
    DeadlineExceeded,
    Refused,
    RejectRequested,
)
from orchestrator.kernel.graph import Edge, Graph, bounding
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.failing import reason_of
from orchestrator.machines.pipeline.model import OrchestrationState, PipelineContext, PipelineEvent
from orchestrator_guards import Verdict, iterations, refinements

E = PipelineEvent
S = OrchestrationState


@bounding
def may_replan(ctx: PipelineContext) -> Verdict:
    """Return the verdict on another plan. Evaluated whenever planning is entered again."""
    return iterations(ctx.iteration, ctx.limits.max_iterations)


@bounding
def may_refine(ctx: PipelineContext) -> Verdict:
    """Return the verdict on another implementation of the same plan. Evaluated after a soft failure."""
    return refinements(ctx.refinements, ctx.limits.max_refinements)


_STAGES = (S.PLANNING, S.VALIDATING, S.IMPLEMENTING, S.JUDGING)

PIPELINE = Graph(
    name="pipeline",
    states=OrchestrationState,
    events=PipelineEvent,
    initial=S.INITIALIZED,
    terminal=frozenset((S.SUCCEEDED, S.FAILED, S.BUDGET_EXHAUSTED)),
    failure=E.FAILURE,
    context=PipelineContext,
    dwell={
        S.INITIALIZED: (60.0, E.FAILURE),
        S.PLANNING: (1800.0, E.FAILURE),
        S.VALIDATING: (1800.0, E.FAILURE),
        S.IMPLEMENTING: (3600.0, E.FAILURE),
        S.JUDGING: (1800.0, E.FAILURE),
    },
    edges=(
        #    event               from                        to                  only when
        Edge(E.START,            (S.INITIALIZED,),           S.PLANNING),
        Edge(E.PLAN_READY,       (S.PLANNING,),              S.VALIDATING),
        Edge(E.PLAN_VALID,       (S.VALIDATING,),            S.IMPLEMENTING),
        Edge(E.PLAN_INVALID,     (S.VALIDATING,),            S.PLANNING,         may_replan),
        Edge(E.IMPLEMENTED,      (S.IMPLEMENTING,),          S.JUDGING),
        Edge(E.APPROVED,         (S.JUDGING,),               S.SUCCEEDED),
        Edge(E.SOFT_FAILURE,     (S.JUDGING,),               S.IMPLEMENTING,     may_refine),
        Edge(E.HARD_FAILURE,     (S.JUDGING,),               S.PLANNING,         may_replan),
        Edge(E.BUDGET_EXHAUSTED, _STAGES,                    S.BUDGET_EXHAUSTED),
        Edge(E.FAILURE,          (S.INITIALIZED, *_STAGES),  S.FAILED),
    ),
)  # fmt: skip
"""The graph of the pipeline. If a guard refuses, the driver fires the failure event and the run ends as failed."""

EVENT_OF: Mapping[tuple[OrchestrationState, OrchestrationState], PipelineEvent] = {
    (OrchestrationState(source), OrchestrationState(dest)): PipelineEvent(event)
    for source, event, dest, _ in PIPELINE.rows
}
"""(from, to) -> the one event of that edge."""


# ---- endings ----


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
    reason = reason_of(run, error) if limit_of(error) is None else "max_iterations"
    return Ending(Outcome.FAILED, reason)


def limit_of(error: Exception | None) -> Verdict | None:
    """Return the refusal of one of the pipeline's guards in an error, or None."""
    verdict = error.verdict if isinstance(error, Refused) else None
    return verdict if isinstance(verdict, Verdict) and verdict.guard in LIMITS else None
