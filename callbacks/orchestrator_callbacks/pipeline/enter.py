"""`enter_<state>`: the work of each stage of the pipeline. Each hook returns the event that leaves its state."""

from __future__ import annotations

from orchestrator.machines.pipeline.model import PipelineContext, PipelineEvent
from orchestrator_callbacks.pipeline import stage
from orchestrator_callbacks.pipeline.stage import PipelineRun
from orchestrator_guards import Fix


async def enter_initialized(_run: PipelineRun) -> PipelineEvent:
    """Start; there is nothing to prepare."""
    return PipelineEvent.START


async def enter_planning(run: PipelineRun) -> PipelineEvent:
    """Make a plan."""
    return await stage.work(run, lambda _: PipelineEvent.PLAN_READY)


async def enter_validating(run: PipelineRun) -> PipelineEvent:
    """Validate the plan. An error leads back to planning, warnings do not."""
    return await stage.work(run, _validated)


async def enter_implementing(run: PipelineRun) -> PipelineEvent:
    """Implement the plan, or refine its implementation."""
    return await stage.work(run, lambda _: PipelineEvent.IMPLEMENTED)


async def enter_judging(run: PipelineRun) -> PipelineEvent:
    """Judge the implementation; the rubric interprets the scores."""
    return await stage.work(run, _judged)


def _validated(ctx: PipelineContext) -> PipelineEvent:
    valid = ctx.validation is not None and ctx.validation.ok
    return PipelineEvent.PLAN_VALID if valid else PipelineEvent.PLAN_INVALID


def _judged(ctx: PipelineContext) -> PipelineEvent:
    fix = ctx.evaluation.against(ctx.rubric).fix if ctx.evaluation else Fix.REPLAN
    if fix is None:
        return PipelineEvent.APPROVED
    return PipelineEvent.SOFT_FAILURE if fix is Fix.REFINE else PipelineEvent.HARD_FAILURE
