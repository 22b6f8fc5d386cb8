"""`before_<event>`: counters, and feedback for the next stage.

The changes are durable together with the transition, so a counter always agrees with the history. They use only the
context: code that drives the machine without stages gets the same counters and no feedback.
"""

from __future__ import annotations

from orchestrator.machines.pipeline import progress
from orchestrator.machines.pipeline.graph import limit_of
from orchestrator.machines.pipeline.model import Feedback, FeedbackKind, PipelineContext
from orchestrator_callbacks.pipeline.stage import PipelineRun


async def before_plan_ready(run: PipelineRun) -> None:
    """Count an iteration: a plan was made. A plan that failed or exceeded the budget does not count."""
    run.ctx.iteration += 1


async def before_plan_invalid(run: PipelineRun) -> None:
    """Add the issues as feedback for the planner."""
    ctx = run.ctx
    if ctx.validation is not None:
        _add(ctx, FeedbackKind.VALIDATION_FAILURE, progress.of_validation(ctx.validation))


async def before_soft_failure(run: PipelineRun) -> None:
    """Count a refinement, and add the judge's objections as feedback for the implementer."""
    run.ctx.refinements += 1
    _add_feedback(run.ctx, FeedbackKind.JUDGE_SOFT_FAILURE)


async def before_hard_failure(run: PipelineRun) -> None:
    """Add the judge's objections as feedback for the planner."""
    _add_feedback(run.ctx, FeedbackKind.JUDGE_HARD_FAILURE)


async def before_failure(run: PipelineRun) -> None:
    """Keep the refusal if a limit caused the failure."""
    run.ctx.verdict = limit_of(run.error)


def _add_feedback(ctx: PipelineContext, kind: FeedbackKind) -> None:
    if ctx.evaluation is not None:
        _add(ctx, kind, progress.of_evaluation(ctx.evaluation, ctx.evaluation.against(ctx.rubric)))


def _add(ctx: PipelineContext, kind: FeedbackKind, text: str) -> None:
    said = (*ctx.feedback, Feedback(kind, text, ctx.iteration))
    ctx.feedback = progress.kept(said, ctx.limits.feedback_tokens)
