"""Results of finished stages in the context, also when they are restored, and feedback for later stages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from orchestrator.llm.usage import CHARACTERS_PER_TOKEN, approximate_tokens
from orchestrator.machines.pipeline.model import (
    MADE,
    Attempt,
    Evaluation,
    Feedback,
    FeedbackKind,
    Implementation,
    Issue,
    OrchestrationState,
    PipelineContext,
    Plan,
    Severity,
    StageResult,
    Validation,
)
from orchestrator_guards import Analysis

# ---- feedback ----


READERS: Mapping[OrchestrationState, frozenset[FeedbackKind]] = {
    OrchestrationState.PLANNING: frozenset(
        (FeedbackKind.VALIDATION_FAILURE, FeedbackKind.JUDGE_HARD_FAILURE)
    ),
    OrchestrationState.IMPLEMENTING: frozenset((FeedbackKind.JUDGE_SOFT_FAILURE,)),
}
"""Stage -> the kinds of feedback that it gets."""

_CUT = " [cut]"


def tokens_of(text: str) -> int:
    """Return the approximate number of tokens of a text.

    Example:
        >>> tokens_of(""), tokens_of("four"), tokens_of("fours")
        (0, 1, 2)
    """
    return approximate_tokens(len(text))


def kept(feedback: Iterable[Feedback], limit: int) -> tuple[Feedback, ...]:
    """Return the newest feedback that fits into `limit` tokens, oldest first; 0 keeps all.

    If the newest one alone is too long, it is truncated, so that the latest feedback is never lost completely.
    """
    listed = tuple(feedback)
    if not limit or not listed:
        return listed
    *older, last = listed
    if tokens_of(last.text) > limit:
        length = limit * CHARACTERS_PER_TOKEN
        return (
            Feedback(
                last.kind,
                last.text[:length] if length <= len(_CUT) else last.text[: length - len(_CUT)] + _CUT,
                last.iteration,
            ),
        )
    left, found = limit - tokens_of(last.text), [last]
    for one in reversed(older):
        left -= tokens_of(one.text)
        if left < 0:
            break
        found.append(one)
    return tuple(reversed(found))


def for_stage(feedback: Iterable[Feedback], stage: OrchestrationState) -> tuple[Feedback, ...]:
    """Return the feedback for a stage, oldest first."""
    read = READERS.get(stage, frozenset())
    return tuple(one for one in feedback if one.kind in read)


def of_validation(found: Validation) -> str:
    """Return the issues of an invalid plan as text, errors first, one line each."""
    by_weight = sorted(found.issues, key=lambda issue: _WEIGHT.index(issue.severity.value))
    return "\n".join(["The plan was not valid.", *(f"- {issue}" for issue in by_weight)])


_WEIGHT = ("error", "warning", "info")


def of_evaluation(found: Evaluation, analysis: Analysis) -> str:
    """Return the judge's objections as text: score, failing categories, comments."""
    what = (
        "The plan has to be made anew" if analysis.fix == "replan" else "The implementation has to be refined"
    )
    lines = [f"{what}: it scored {found.score:g}."]
    lines += [f"- {name}: {found.categories[name]:g}" for name in analysis.failing]
    return "\n".join([*lines, found.comments] if found.comments else lines)


# ---- results of stages ----


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
            if ctx.best is None or not made.score <= ctx.best.score:
                plan = ctx.plan.content if ctx.plan else None
                content = ctx.implementation.content if ctx.implementation else None
                ctx.best = Attempt(made.score, plan, content, ctx.iteration, ctx.refinements, made)
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
