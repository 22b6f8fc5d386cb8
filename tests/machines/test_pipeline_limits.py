"""Limits and rubric of the pipeline: the defaults are the seed's, and what makes no sense is refused in a sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.machines.pipeline.model import OFF, PipelineLimits, Rubric


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
