"""Changes of the context by a finished stage, both when it finishes and when its record is restored. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from orchestrator.machines.pipeline.model import (
    MADE,
    Attempt,
    Evaluation,
    Implementation,
    Issue,
    OrchestrationState,
    PipelineContext,
    Plan,
    Severity,
    StageResult,
    Validation,
)

Made: TypeAlias = Plan | Validation | Implementation | Evaluation
"""The result of a stage."""


def take(ctx: PipelineContext, done: StageResult, made: Made | None) -> None:
    """Apply the result of a stage, None if it raised. A new plan invalidates the results for the previous one."""
    ctx.done = done
    ctx.tokens += done.tokens
    match made:
        case Plan():
            ctx.plan, ctx.validation, ctx.implementation, ctx.evaluation = made, None, None, None
        case Validation():
            ctx.validation = made
        case Implementation():
            ctx.implementation = made
        case Evaluation():
            ctx.evaluation = made
            _compare(ctx, made)
    ctx.recorded = _present(ctx)


def amended(ctx: PipelineContext) -> dict[str, Any]:
    """Return the results that hooks replaced, as plain data, and count them as recorded."""
    present = _present(ctx)
    changed = zip(MADE, present, ctx.recorded, strict=True)
    found = {name: now and plain(now) for name, now, before in changed if now is not before}
    ctx.recorded = present
    return found


def amend(ctx: PipelineContext, body: Mapping[str, Any]) -> None:
    """Apply the result of `amended`."""
    for name, made in body.items():
        tokens = getattr(getattr(ctx, name), "tokens", 0)
        setattr(ctx, name, made and _made(_STAGE_OF[name], made, tokens))
    ctx.recorded = _present(ctx)


def _present(ctx: PipelineContext) -> tuple[Made | None, ...]:
    return ctx.plan, ctx.validation, ctx.implementation, ctx.evaluation


def _compare(ctx: PipelineContext, judged: Evaluation) -> None:
    if ctx.best is not None and judged.score <= ctx.best.score:
        return
    plan = ctx.plan.content if ctx.plan else None
    content = ctx.implementation.content if ctx.implementation else None
    ctx.best = Attempt(judged.score, plan, content, ctx.iteration, ctx.refinements, judged)


def record(stage: OrchestrationState, ctx: PipelineContext, made: Made | None) -> dict[str, Any]:
    """Return the body of the `stage` record for the last result of a stage: plain data."""
    done = ctx.done or StageResult(0)
    body: dict[str, Any] = {"seq": done.seq, "state": stage.value, "tokens": done.tokens}
    if made is None:
        return body | {"error": done.error}
    return body | {"counts": [ctx.iteration, ctx.refinements], "made": plain(made)}


def replay(ctx: PipelineContext, body: Mapping[str, Any]) -> None:
    """Apply a `stage` record with the counters of that time."""
    now = ctx.iteration, ctx.refinements
    ctx.iteration, ctx.refinements = body.get("counts", now)
    made = (
        None if "made" not in body else _made(OrchestrationState(body["state"]), body["made"], body["tokens"])
    )
    take(ctx, StageResult(body["seq"], body["tokens"], body.get("error", "")), made)
    ctx.iteration, ctx.refinements = now


def plain(made: Made) -> dict[str, Any]:
    """Return the result of a stage as JSON types."""
    match made:
        case Validation():
            return {"issues": [[issue.severity.value, issue.message, issue.where] for issue in made.issues]}
        case Evaluation():
            return {"score": made.score, "categories": dict(made.categories), "comments": made.comments}
        case _:
            return {"content": made.content}


def _made(stage: OrchestrationState, body: Mapping[str, Any], tokens: int) -> Made:
    match stage:
        case OrchestrationState.PLANNING:
            return Plan(body["content"], tokens)
        case OrchestrationState.VALIDATING:
            return Validation(tuple(Issue(Severity(level), *rest) for level, *rest in body["issues"]), tokens)
        case OrchestrationState.IMPLEMENTING:
            return Implementation(body["content"], tokens)
        case _:
            return Evaluation(body["score"], body["categories"], body["comments"], tokens)


_STAGE_OF = dict(
    zip(
        MADE,
        (
            OrchestrationState.PLANNING,
            OrchestrationState.VALIDATING,
            OrchestrationState.IMPLEMENTING,
            OrchestrationState.JUDGING,
        ),
        strict=True,
    )
)
