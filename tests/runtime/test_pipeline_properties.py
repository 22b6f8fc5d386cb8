"""Whatever stages give and wherever limits are: the path is one of the table, and every count equals the history."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.kernel.outcome import REASONS
from orchestrator.machines.pipeline.graph import EVENT_OF
from orchestrator.machines.pipeline.model import (
    Evaluation,
    Implementation,
    Issue,
    OrchestrationState,
    PipelineLimits,
    Plan,
    Rubric,
    Severity,
    Validation,
)
from orchestrator.machines.pipeline.progress import tokens_of
from orchestrator.runtime.pipeline.pipeline import PipelineResult
from tests.runtime.pipeline_stage import Purse, Stages, weighted
from tests.runtime.stage import path

used = st.integers(0, 3_000)
severities = st.sampled_from(Severity)
names = st.sampled_from((*Rubric().plan, *Rubric().implementation, "other"))
scores = st.floats(0, 10)

plans = st.builds(Plan, st.text(max_size=5), used)
issues = st.lists(st.builds(Issue, severities, st.text(max_size=200)), min_size=1, max_size=3).map(tuple)
validations = weighted(st.builds(Validation, st.just(()), used), st.builds(Validation, issues, used), of=2)
implementations = st.builds(Implementation, st.text(max_size=5), used)
judged = weighted(st.floats(5, 6.9), st.floats(0, 4.9), st.floats(7, 10), scores, of=6)
evaluations = st.builds(
    Evaluation, judged, st.dictionaries(names, scores, max_size=2), st.text(max_size=300), used
)
faults = st.sampled_from((None, 3.5, KeyError("k"), {"score": "x"}, object()))


def stages_of(good: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(weighted(good, faults, of=14), min_size=2, max_size=8)


limits = st.builds(
    PipelineLimits,
    max_iterations=st.integers(1, 5),
    max_refinements=st.integers(1, 5),
    token_budget=weighted(st.just(0), st.integers(6_000, 40_000), of=4),
    feedback_tokens=weighted(st.integers(1, 60), st.just(0), of=4),
)
runs = st.fixed_dictionaries(
    {
        "plan": stages_of(plans),
        "valid": stages_of(validations),
        "made": stages_of(implementations),
        "judged": stages_of(evaluations),
    }
)


@pytest.mark.campaign
def test_whatever_stages_give_a_run_keeps_to_its_table_its_limits_and_its_best_implementation() -> None:
    reached: Counter[Any] = Counter()
    kept_to_the_table(reached)
    # The run itself cannot fail before it began: 16 of the 17 edges can be taken.
    edges = {(source.value, dest.value) for source, dest in EVENT_OF}
    assert len(edges & set(reached)) >= 15, f"never taken: {edges - set(reached)}"
    for what in (
        *("approved", "soft_failure", "hard_failure", "plan_invalid", "max_iterations", "stage_error"),
        *("planner told", "implementer told", "dropped", "kept"),
        *((OrchestrationState.FAILED, best) for best in (True, False)),
        (OrchestrationState.SUCCEEDED, True),
    ):
        assert reached[what] >= 3, f"{what} was reached {reached[what]} times"
    assert reached[OrchestrationState.SUCCEEDED, False] == 0


@given(scripts=runs, limit=limits, purse=st.sampled_from((0,) * 12 + tuple(range(1, 13))))
@settings(max_examples=250)  # together they take every edge
def kept_to_the_table(
    reached: Counter[Any], scripts: dict[str, list[Any]], limit: PipelineLimits, purse: int
) -> None:
    stages = Stages(**scripts)

    result = stages.pipeline(limits=limit, budget=Purse(purse)).run_sync("x")

    along_the_table(result)
    counts_equal_the_history(result, stages, limit)
    output_and_best(result)
    told_no_more_than_allowed(result, stages, limit)
    moves = result.transitions
    reached.update({(move.source, move.dest) for move in moves} | set(path(moves)) | {result.reason})
    reached[result.state, result.best is not None] += 1
    events = given_back(result)
    reached["planner told"] += any(one.feedback for one in stages.planner.requests)
    reached["implementer told"] += any(one.feedback for one in stages.implementer.requests)
    reached["dropped"] += len(result.feedback) < events
    reached["kept"] += len(result.feedback) == events > 1


def along_the_table(result: PipelineResult) -> None:
    """No answer of a stage leads anywhere but along the table to an end."""
    moves = result.transitions
    assert moves[0].source == "initialized"
    assert [move.seq for move in moves] == list(range(1, len(moves) + 1))
    assert all(before.dest == after.source for before, after in itertools.pairwise(moves))
    for move in moves:
        assert EVENT_OF[OrchestrationState(move.source), OrchestrationState(move.dest)] == move.event
    assert moves[-1].dest == result.state
    assert result.state in {
        OrchestrationState.SUCCEEDED,
        OrchestrationState.FAILED,
        OrchestrationState.BUDGET_EXHAUSTED,
    }
    assert result.reason in REASONS[result.outcome]


def counts_equal_the_history(result: PipelineResult, stages: Stages, limit: PipelineLimits) -> None:
    events = path(result.transitions)
    assert result.iterations == events.count("plan_ready") <= limit.max_iterations
    assert result.refinements == events.count("soft_failure") <= limit.max_refinements
    assert result.tokens == sum(move.tokens for move in result.transitions)
    visits = [move.source for move in result.transitions]
    for stage, calls in stages.calls.items():
        assert calls <= visits.count(stage.value)
        assert visits.count(stage.value) - calls <= (events[-1] == "budget_exhausted")
    iterations = 0
    for move in result.transitions:
        iterations += move.event == "plan_ready"
        assert move.iteration == iterations


def output_and_best(result: PipelineResult) -> None:
    """Only an approved implementation is an output, and the best one has the highest score."""
    if result.state == OrchestrationState.SUCCEEDED:
        assert result.evaluation is not None
        assert result.evaluation.score >= Rubric().approve
        assert result.best is not None
        assert result.best.score == result.evaluation.score
        assert result.implementation is not None
        assert result.output == result.implementation.content
    else:
        assert result.output is None
        assert result.best is None or result.best.score < Rubric().approve
    assert (result.best is None) == ("soft_failure" not in path(result.transitions) and result.evaluation is None
                                     and "hard_failure" not in path(result.transitions))  # fmt: skip


def told_no_more_than_allowed(result: PipelineResult, stages: Stages, limit: PipelineLimits) -> None:
    """What stages are told is of their kind, the newest, and no longer than allowed."""
    assert not limit.feedback_tokens or sum(tokens_of(one.text) for one in result.feedback) <= max(
        limit.feedback_tokens, 1
    )
    for request in stages.planner.requests:
        kinds = [one.kind.value for one in request.feedback]
        assert set(kinds) <= {"validation_failure", "judge_hard_failure"}
        assert [one.iteration for one in request.feedback] == sorted(
            one.iteration for one in request.feedback
        )
    for request in stages.implementer.requests:
        assert {one.kind.value for one in request.feedback} <= {"judge_soft_failure"}
    assert not stages.validator.requests or stages.validator.requests[0].feedback == ()
    assert limit.feedback_tokens or len(result.feedback) == given_back(result)


def given_back(result: PipelineResult) -> int:
    """How many times the work of a stage was given back with feedback."""
    return sum(
        event in {"plan_invalid", "soft_failure", "hard_failure"} for event in path(result.transitions)
    )
