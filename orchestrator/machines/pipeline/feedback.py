"""Feedback for the stages: which is kept, which stage reads it, and how findings become text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.llm.usage import CHARACTERS_PER_TOKEN, approximate_tokens
from orchestrator.machines.pipeline.model import (
    Evaluation,
    Feedback,
    FeedbackKind,
    OrchestrationState,
    Validation,
)
from orchestrator_guards import Analysis

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
        return (Feedback(last.kind, _cut(last.text, limit * CHARACTERS_PER_TOKEN), last.iteration),)
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


def _cut(text: str, length: int) -> str:
    return text[:length] if length <= len(_CUT) else text[: length - len(_CUT)] + _CUT
