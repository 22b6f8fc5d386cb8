"""`before_<event>`: what is counted, and what the next stage is told, on the way to it.

Durable together with the transition, so a count can never differ from the history. They work on what the context has:
whoever moves the machine without stages has the same counts and no feedback.
"""

from __future__ import annotations

from orchestrator.machines.pipeline import ending, feedback
from orchestrator.machines.pipeline.model import Feedback, FeedbackKind, PipelineContext
from orchestrator_callbacks.pipeline.deps import PipelineRun


async def before_plan_ready(run: PipelineRun) -> None:
    """Count an iteration: a plan was made. One that failed or ran out of budget is none."""
    run.ctx.iteration += 1


async def before_plan_invalid(run: PipelineRun) -> None:
    """Tell the planner what was found."""
    ctx = run.ctx
    if ctx.validation is not None:
        _add(ctx, FeedbackKind.VALIDATION_FAILURE, feedback.of_validation(ctx.validation))


async def before_soft_failure(run: PipelineRun) -> None:
    """Count a refinement, and tell the implementer what the judge said."""
    run.ctx.refinements += 1
    _tell(run.ctx, FeedbackKind.JUDGE_SOFT_FAILURE)


async def before_hard_failure(run: PipelineRun) -> None:
    """Tell the planner what the judge said."""
    _tell(run.ctx, FeedbackKind.JUDGE_HARD_FAILURE)


async def before_failure(run: PipelineRun) -> None:
    """Keep the limit that was reached, if it was one."""
    run.ctx.verdict = ending.limit_of(run.error)


def _tell(ctx: PipelineContext, kind: FeedbackKind) -> None:
    if ctx.evaluation is not None:
        _add(ctx, kind, feedback.of_evaluation(ctx.evaluation, ctx.evaluation.against(ctx.rubric)))


def _add(ctx: PipelineContext, kind: FeedbackKind, text: str) -> None:
    said = (*ctx.feedback, Feedback(kind, text, ctx.iteration))
    ctx.feedback = feedback.kept(said, ctx.limits.feedback_tokens)
