"""`enter_<state>`: the work of each stage of the pipeline. Each hook returns the event that leaves its state."""

from __future__ import annotations

from orchestrator.machines.pipeline.model import Event, PipelineContext
from orchestrator_callbacks.pipeline import stage
from orchestrator_callbacks.pipeline.deps import PipelineRun
from orchestrator_guards import Fix


async def enter_initialized(_run: PipelineRun) -> Event:
    """Start; there is nothing to prepare."""
    return Event.START


async def enter_planning(run: PipelineRun) -> Event:
    """Make a plan."""
    return await stage.work(run, lambda _: Event.PLAN_READY)


async def enter_validating(run: PipelineRun) -> Event:
    """Validate the plan. An error leads back to planning, warnings do not."""
    return await stage.work(run, _validated)


async def enter_implementing(run: PipelineRun) -> Event:
    """Implement the plan, or refine its implementation."""
    return await stage.work(run, lambda _: Event.IMPLEMENTED)


async def enter_judging(run: PipelineRun) -> Event:
    """Judge the implementation; the rubric interprets the scores."""
    return await stage.work(run, _judged)


def _validated(ctx: PipelineContext) -> Event:
    valid = ctx.validation is not None and ctx.validation.ok
    return Event.PLAN_VALID if valid else Event.PLAN_INVALID


def _judged(ctx: PipelineContext) -> Event:
    fix = ctx.evaluation.against(ctx.rubric).fix if ctx.evaluation else Fix.REPLAN
    if fix is None:
        return Event.APPROVED
    return Event.SOFT_FAILURE if fix is Fix.REFINE else Event.HARD_FAILURE
