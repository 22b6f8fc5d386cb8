"""Limits and rubric of the pipeline, what is kept of feedback, who reads it, and how findings become text."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.machines.pipeline.model import (
    OFF,
    Evaluation,
    Feedback,
    FeedbackKind,
    Issue,
    OrchestrationState,
    PipelineLimits,
    Rubric,
    Severity,
    Validation,
)
from orchestrator.machines.pipeline.progress import (
    for_stage,
    kept,
    of_evaluation,
    of_validation,
    tokens_of,
)


def test_the_defaults_are_those_of_the_original() -> None:
    limits = PipelineLimits()

    assert (limits.max_iterations, limits.token_budget, limits.headroom) == (3, 75_000, 1.2)
    assert (limits.plan_tokens, limits.validate_tokens, limits.implement_tokens) == (5_500, 0, 8_500)
    assert (limits.judge_tokens, limits.refine_tokens, limits.feedback_tokens) == (6_500, 7_000, 2_000)
    assert (OFF.max_iterations, OFF.max_refinements, OFF.token_budget, OFF.feedback_tokens) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_iterations": -1}, "max_iterations is -1; it must be 0"),
        ({"max_iterations": 1.5}, "whole number"),
        ({"max_refinements": True}, "whole number"),
        ({"token_budget": "many"}, "whole number"),
        ({"headroom": -0.1}, "headroom is -0.1"),
        ({"headroom": math.nan}, "headroom is nan"),
        ({"max_iteration": 3}, "did you mean 'max_iterations'"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PipelineLimits(**given)


def test_limits_have_names() -> None:
    with pytest.raises(ConfigError, match=r"PipelineLimits\(max_iterations=3\)"):
        PipelineLimits(3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "given",
    [
        {"approve": 4.0, "hard": 5.0},
        {"hard": -1.0},
        {"approve": 11.0},
        {"top": math.inf},
        {"approve": math.nan},
        {"category": 11.0},
        {"plan": ("a",), "implementation": ("a",)},
    ],
)
def test_a_rubric_that_contradicts_itself_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Rubric(**given)


def test_the_older_scale_is_a_rubric_like_any_other() -> None:
    rubric = Rubric(top=100, approve=70, hard=60, category=60, plan=["p"], implementation=["i"])  # type: ignore[arg-type]

    assert (rubric.plan, rubric.implementation) == (("p",), ("i",))


# ---- feedback ----


KINDS = tuple(FeedbackKind)
feedback = st.lists(st.builds(Feedback, st.sampled_from(KINDS), st.text(max_size=60), st.integers(0, 9)))


def said(*texts: str) -> tuple[Feedback, ...]:
    return tuple(Feedback(KINDS[0], text, number) for number, text in enumerate(texts))


def texts(listed: tuple[Feedback, ...]) -> list[str]:
    return [one.text for one in listed]


def test_the_newest_that_fit_are_kept_oldest_first() -> None:
    listed = said("a" * 40, "b" * 40, "c" * 40)

    assert texts(kept(listed, 30)) == texts(listed)
    assert texts(kept(listed, 29)) == ["b" * 40, "c" * 40]
    assert texts(kept(listed, 20)) == ["b" * 40, "c" * 40]
    assert texts(kept(listed, 19)) == ["c" * 40]


def test_an_older_one_that_fits_again_does_not_come_after_one_that_did_not() -> None:
    assert texts(kept(said("a", "b" * 400, "c"), 10)) == ["c"]


def test_a_newest_one_that_is_too_long_by_itself_is_cut() -> None:
    [only] = kept(said("old", "x" * 100), 10)

    assert only.text == "x" * 34 + " [cut]"
    assert tokens_of(only.text) == 10
    assert texts(kept(said("x" * 100), 1)) == ["xxxx"]


def test_no_limit_keeps_all() -> None:
    assert len(kept(said(*"abc" * 1_000), 0)) == 3_000
    assert kept((), 5) == ()


@given(listed=feedback, limit=st.integers(1, 60))
def test_what_is_kept_fits_is_the_end_of_what_was_said_and_never_nothing(
    listed: list[Feedback], limit: int
) -> None:
    found = kept(listed, limit)

    assert sum(tokens_of(one.text) for one in found) <= limit
    assert bool(found) == bool(listed)
    if found and found[-1] == listed[-1]:
        assert list(found) == listed[len(listed) - len(found) :]


def test_each_stage_reads_its_own_kinds() -> None:
    listed = [Feedback(kind, kind.value, 1) for kind in KINDS]

    assert texts(for_stage(listed, OrchestrationState.PLANNING)) == [
        "validation_failure",
        "judge_hard_failure",
    ]
    assert texts(for_stage(listed, OrchestrationState.IMPLEMENTING)) == ["judge_soft_failure"]
    assert (
        for_stage(listed, OrchestrationState.VALIDATING)
        == for_stage(listed, OrchestrationState.JUDGING)
        == ()
    )


def test_issues_are_told_errors_first_and_with_their_place() -> None:
    issues = (
        Issue(Severity.INFO, "i"),
        Issue(Severity.ERROR, "e1", "step 2"),
        Issue(Severity.WARNING, "w"),
        Issue(Severity.ERROR, "e2"),
    )

    assert of_validation(Validation(issues)).splitlines() == [
        "The plan was not valid.",
        "- error: step 2: e1",
        "- error: e2",
        "- warning: w",
        "- info: i",
    ]


def test_an_evaluation_is_told_with_what_failed_and_the_comments() -> None:
    found = Evaluation(5.5, {"timing_coverage": 3.0, "energy_matching": 9.0}, "too thin")

    assert of_evaluation(found, found.against(Rubric())) == (
        "The implementation has to be refined: it scored 5.5.\n- timing_coverage: 3\ntoo thin"
    )
    assert of_evaluation(Evaluation(1.0), Evaluation(1.0).against(Rubric())) == (
        "The plan has to be made anew: it scored 1."
    )
