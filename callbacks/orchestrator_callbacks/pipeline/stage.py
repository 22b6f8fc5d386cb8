"""The work of a stage: check the budget, call the port, make its result durable, check the budget again."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace

from orchestrator.kernel.record import BudgetChecked
from orchestrator.kernel.thread import called
from orchestrator.machines.pipeline import feedback, progress
from orchestrator.machines.pipeline.limits import PipelineLimits
from orchestrator.machines.pipeline.model import (
    OrchestrationState,
    PipelineContext,
    PipelineEvent,
    StageResult,
)
from orchestrator.machines.pipeline.ports import StageRequest
from orchestrator.machines.pipeline.progress import Made
from orchestrator.telemetry.scope import logger_from_context
from orchestrator_callbacks.pipeline import result
from orchestrator_callbacks.pipeline.deps import PipelineRun
from orchestrator_guards import (
    Verdict,
    affordable,
    first_refusal,
    host_budget,
    iterations,
    refinements,
    tokens,
)
from orchestrator_guards.evaluation import given, row_of

_ESTIMATES: Mapping[OrchestrationState, Callable[[PipelineLimits], int]] = {
    OrchestrationState.PLANNING: lambda limits: limits.plan_tokens,
    OrchestrationState.VALIDATING: lambda limits: limits.validate_tokens,
    OrchestrationState.IMPLEMENTING: lambda limits: limits.implement_tokens,
    OrchestrationState.JUDGING: lambda limits: limits.judge_tokens,
}


async def work(run: PipelineRun, decide: Callable[[PipelineContext], PipelineEvent]) -> PipelineEvent:
    """Execute the stage of the current state and return the event that `decide` chooses, or budget_exhausted.

    A stage with a record from before a crash is not executed again. No budget is checked after an approval, because
    approved work causes no further cost.
    """
    ctx = run.ctx
    if not is_done(run):
        if not await _goes_on(run, _ahead(run, OrchestrationState(run.state))):
            return PipelineEvent.BUDGET_EXHAUSTED
        await _run_stage(run)
    event = decide(ctx)
    if event is PipelineEvent.APPROVED or await _goes_on(run, _behind(ctx, event)):
        return event
    return PipelineEvent.BUDGET_EXHAUSTED


def is_done(run: PipelineRun) -> bool:
    """Return whether the stage of this visit has ended with a result."""
    done = done_here(run)
    return done is not None and not done.error


def done_here(run: PipelineRun) -> StageResult | None:
    """Return the end of this visit's stage, also if it raised; None if no stage was executed."""
    done = run.ctx.done
    return done if done is not None and done.seq == run.seq else None


# ---- budgets ----


def _ahead(run: PipelineRun, state: OrchestrationState) -> list[Verdict]:
    """Evaluate the budget before a stage: the rest must cover its estimate with a margin."""
    ctx = run.ctx
    if ctx.remaining is None:
        return []
    limits = ctx.limits
    refines = state is OrchestrationState.IMPLEMENTING and ctx.refining
    estimate = limits.refine_tokens if refines else _ESTIMATES[state](limits)
    if not estimate:
        return []
    inputs = ctx.remaining, estimate, limits.headroom
    verdict = affordable(*inputs)
    run.attach_guards((given(verdict, affordable, *inputs),))
    return [verdict]


def _behind(ctx: PipelineContext, event: PipelineEvent) -> list[Verdict]:
    """Evaluate the budgets after a stage; a limit with a guard on the next edge is only published here."""
    limits = ctx.limits
    verdicts = [tokens(ctx.tokens, limits.token_budget)] if limits.token_budget else []
    if event is PipelineEvent.SOFT_FAILURE:
        verdicts.append(refinements(ctx.refinements, limits.max_refinements))
    elif event in (PipelineEvent.PLAN_INVALID, PipelineEvent.HARD_FAILURE):
        verdicts.append(iterations(ctx.iteration, limits.max_iterations))
    return verdicts


_COUNTS = ("iterations", "refinements")


async def _goes_on(run: PipelineRun, verdicts: list[Verdict]) -> bool:
    """Evaluate the host's budget as well, publish all verdicts, and keep a refusal that ends the run."""
    budget = run.deps.budget
    if budget is not None:
        said = budget.is_exhausted()
        exhausted = await said if inspect.isawaitable(said) else said
        verdicts = [host_budget(int(bool(exhausted))), *verdicts]
    if not verdicts:
        return True
    run.attach_guards([row_of(one) for one in verdicts if one.guard != "affordable"])  # it has its row
    run.emit(BudgetChecked(run.graph.name, run.run_id, run.cursor.state, run.ctx.iteration, verdicts))
    refusal = first_refusal(one for one in verdicts if one.guard not in _COUNTS)
    if refusal is not None:
        run.ctx.verdict = refusal
    return refusal is None


# ---- the port ----


async def _run_stage(run: PipelineRun) -> None:
    """Call the port and apply its result, which is durable before any other call outside."""
    ctx, state = run.ctx, OrchestrationState(run.state)
    request = _request(run, state)
    try:
        made = result.read(state, await called(run.deps.ports[state], request, state.value), ctx.rubric)
    except Exception as error:
        ctx.fault = "stage_error"
        _take(run, None, StageResult(run.seq, sum(request.used), type(error).__name__))
        raise
    except asyncio.CancelledError:
        if request.used and run.control.halted:  # otherwise the process that resumes it counts
            _take(run, None, StageResult(run.seq, sum(request.used), "CancelledError"))
        raise
    if isinstance(getattr(made, "content", None), result.UnreadableContent):
        logger_from_context().warning("stage.result_unreadable", state=state.value, iteration=ctx.iteration)
    used = made.tokens + sum(request.used)
    _take(run, replace(made, tokens=used), StageResult(run.seq, used))
    await run.settle()


def _take(run: PipelineRun, made: Made | None, done: StageResult) -> None:
    progress.take(run.ctx, done, made)
    body = progress.record(OrchestrationState(run.state), run.ctx, made)
    run.note("stage", body | {"at": run.deps.clock.time()})


def _request(run: PipelineRun, state: OrchestrationState) -> StageRequest:
    ctx = run.ctx
    return StageRequest(
        stage=state,
        spec=ctx.spec,
        iteration=ctx.iteration,
        refinement=ctx.refinements,
        feedback=feedback.for_stage(ctx.feedback, state),
        plan=ctx.plan,
        validation=ctx.validation,
        implementation=ctx.implementation,
        evaluation=ctx.evaluation,
        remaining_tokens=ctx.remaining,
        key=f"{run.run_id}:{state.value}:{run.seq}",
        run_id=run.run_id,
        deps=run.deps.host,
    )
