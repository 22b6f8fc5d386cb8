"""A panel of judges: each is a branch of `judging`, and a quorum of them decides."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

from orchestrator import ConfigError, MemoryJournal, Outcome, Response, Usage
from orchestrator.errors import StoreDown
from orchestrator.llm.message import Request
from orchestrator.pipeline import PIPELINE, JudgePanel, OrchestrationState, Pipeline, PromptStage
from orchestrator.testing import CrashingJournal, FunctionLLM


def judge(*scores: int | None) -> PromptStage:
    """A judge that gives these scores one after another, then the last one again; its model fails for None."""
    left = list(scores)

    def model(_: Request) -> Response:
        score = left.pop(0) if len(left) > 1 else left[0]
        if score is None:
            raise RuntimeError("no model")
        return Response(f'{{"score": {score}, "comments": "I say {score}."}}', usage=Usage(10, 5))

    return PromptStage(FunctionLLM(model), "Judge it.")


def pipeline(panel: JudgePanel, journal: Any = None) -> Pipeline:
    async def plan(_: Any) -> str:
        return "plan"

    async def validate(_: Any) -> list[Any]:
        return []

    async def implement(_: Any) -> str:
        return "work"

    return Pipeline(plan, validate, implement, panel, journal=journal, observers=())


@pytest.mark.parametrize(
    ("scores", "agree", "score", "comments", "tokens"),
    [
        ((9, 8, 1), 2, 8.5, "I say 9. I say 8.", 30),
        ((9, 1, 8), 2, 8.5, "I say 9. I say 8.", 45),
        ((9, None, 8), 2, 8.5, "I say 9. I say 8.", 30),
        ((7, 8, 9), 3, 8.0, "I say 7. I say 8. I say 9.", 45),
        ((9,), 1, 9.0, "I say 9.", 15),
    ],
)
async def test_the_judges_that_agree_give_the_evaluation(
    scores: tuple[int | None, ...], agree: int, score: float, comments: str, tokens: int
) -> None:
    one = pipeline(JudgePanel([judge(number) for number in scores], agree=agree, concurrency=1))
    result = await one.run("spec", run_id="p1")
    assert result.evaluation is not None
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "work")
    assert (result.evaluation.score, result.evaluation.comments.replace("\n\n", " ")) == (score, comments)
    assert result.tokens == tokens


async def test_work_on_which_the_judges_differ_is_not_approved_and_the_next_visit_asks_them_again() -> None:
    one = pipeline(JudgePanel([judge(9, 9), judge(1, 8)]))
    result = await one.run("spec", run_id="p1")
    assert (result.outcome, result.iterations, len(result.feedback)) == (Outcome.COMPLETED, 2, 1)
    heads = [head.run_id async for head in one.runs.journal.runs(parent_run_id="p1")]
    assert sorted(heads) == [f"p1:judging.{visit}:{index}" for visit in (4, 8) for index in (0, 1)]


async def test_a_panel_in_which_no_judge_completes_fails_the_stage() -> None:
    result = await pipeline(JudgePanel([judge(None), judge(None)])).run("spec")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "stage_error")
    assert "no judge of the panel completed" in str(result.error)


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.campaign), "after"])
async def test_a_panel_gives_the_same_evaluation_after_a_crash_at_any_write(when: Any) -> None:
    for at in itertools.count(1):
        inner = MemoryJournal()
        crashing = CrashingJournal(inner, at=at, when=when, on=("create", "append"))
        with contextlib.suppress(StoreDown):
            await pipeline(JudgePanel([judge(9), judge(8)]), crashing).run("spec", run_id="p1")
        if not crashing.crashed:
            break
        if not [head async for head in inner.runs()]:
            continue
        for owner in {head.owner async for head in inner.runs() if head.owner}:
            inner.bury(owner)
        result = await pipeline(JudgePanel([judge(9), judge(8)]), inner).resume("p1")
        assert result.evaluation is not None, at
        assert (result.outcome, result.evaluation.score) == (Outcome.COMPLETED, 8.5), at
        assert result.tokens >= 30, at
    assert at > 10


def test_a_panel_changes_the_graph_of_its_own_pipeline_only() -> None:
    one = pipeline(JudgePanel([judge(9)]))
    assert one.machine.graph.fingerprint != PIPELINE.fingerprint
    assert pipeline(judge(9)).machine.graph.fingerprint == PIPELINE.fingerprint  # type: ignore[arg-type]


def test_what_cannot_be_a_panel_is_refused() -> None:
    with pytest.raises(ConfigError, match="agree is 3 and there are 2 judges; give 1 to 2"):
        JudgePanel([judge(9), judge(9)], agree=3)
    with pytest.raises(ConfigError, match="a judge of a panel is no PromptStage"):
        JudgePanel([print])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="agree is 1 and there are 0 judges"):
        JudgePanel([])
    with pytest.raises(ConfigError, match="a JudgePanel is no planning stage; give it as the judge"):
        JudgePanel([judge(9)]).bound(pipeline(JudgePanel([judge(9)])), OrchestrationState.PLANNING)
