"""The bundled pipeline's stages, each for itself: what they find, and what they do where nothing can be found."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tomllib
from typing import Any

import pytest

from orchestrator import Outcome
from orchestrator.examples.pipeline import SPEC, check, judge, stages
from orchestrator.machines.pipeline.model import FeedbackKind, OrchestrationState
from orchestrator.pipeline import Feedback, Implementation, Pipeline, PipelineLimits, Plan, StageRequest

WANTED: dict[str, Any] = tomllib.loads((SPEC.parent / "requirements.toml").read_text())


def request(stage: OrchestrationState, told: str = "", **made: Any) -> StageRequest:
    feedback = (Feedback(FeedbackKind.JUDGE_SOFT_FAILURE, told, 1),)
    return StageRequest(stage=stage, spec=WANTED, iteration=0, refinement=0, feedback=feedback, **made)


def whole() -> dict[str, Any]:
    """A plan that checks every example."""
    told = "\n".join(
        f"- error: {one['name']}: 1 of 9 examples are not checked" for one in WANTED["functions"]
    )
    return stages.plan(request(OrchestrationState.PLANNING, told))


def test_the_search_finds_the_shortest_chain_and_always_the_same() -> None:
    found = stages.shortest([("A b", "a b"), ("C", "c")])
    assert found is not None
    assert [step.line for step in found] == ["value.lower()"]
    assert stages.shortest([(" b a", "a-b"), ("d c", "c-d")]) == stages.shortest(
        [(" b a", "a-b"), ("d c", "c-d")]
    )
    one = stages.shortest([("level", True), ("Noon", True), ("moon", False)])
    assert one is not None
    assert len(one) == 2


@pytest.mark.parametrize("examples", [[("a", 17)], [("a", "b"), ("a", "c")], [("", {})]])
def test_the_search_says_so_where_there_is_none(examples: list[tuple[Any, Any]]) -> None:
    assert stages.shortest(examples) is None


def test_true_is_not_1() -> None:
    found = stages.shortest([("a", 1)])
    assert found is not None
    assert found[-1].line == "len(value)"


def test_the_first_plan_checks_one_example_each_and_the_validator_asks_for_the_others() -> None:
    first = stages.plan(request(OrchestrationState.PLANNING))
    assert [one["checks"] for one in first["functions"]] == [[0]] * 5
    assert [issue["where"] for issue in check.issues(WANTED, first)] == [
        one["name"] for one in WANTED["functions"]
    ]
    assert list(check.issues(WANTED, whole())) == []


def test_the_validator_is_a_program_of_its_own_that_reads_and_prints_json() -> None:
    given = json.dumps({"spec": WANTED, "plan": {"module": "m", "functions": []}})
    program = [sys.executable, "-I", str(SPEC.parent / "check.py")]
    done = subprocess.run(program, input=given, capture_output=True, text=True, check=True)
    assert {issue["message"] for issue in json.loads(done.stdout)["issues"]} == {"is not planned"}


def test_other_faults_of_a_plan_are_found() -> None:
    spec = {"functions": [{"name": "class", "examples": [{}]}]}
    plan = {"module": "m", "functions": [{"name": "class", "checks": [0, 5]}] * 2}
    assert [issue["message"] for issue in check.issues(spec, plan)] == [
        "a function is planned twice",
        "is no name for a function",
        "has no summary",
    ]


def judged(source: str) -> dict[str, Any]:
    made = Implementation(source)
    return asyncio.run(
        judge.judge(request(OrchestrationState.JUDGING, plan=Plan(whole()), implementation=made))
    )


def test_the_judge_runs_the_tests_and_names_those_that_fail() -> None:
    draft = stages.implement(request(OrchestrationState.IMPLEMENTING, plan=Plan(whole())))
    found = judged(draft)
    assert 3 < found["score"] < 10
    assert "failed: initials: example 1: AssertionError: 'gbh' != 'GBH'" in found["comments"].splitlines()
    better = stages.implement(request(OrchestrationState.IMPLEMENTING, found["comments"], plan=Plan(whole())))
    assert judged(better) == {"score": 10.0, "comments": ""}


@pytest.mark.parametrize(
    ("source", "score", "said"),
    [
        ("def slug(title:", 0, "failed: text_tools: SyntaxError"),
        ("import sys\nsys.exit(3)", 0, "failed: text_tools: SystemExit: 3"),
        ("import os\nos._exit(3)", None, "the tests could not be run"),
        ("raise ValueError('no')", 0, "failed: text_tools: ValueError: no"),
        ("def longest_word(text):\n    return 'quick'", 10 / 12, "failed: slug: example 0: AttributeError"),
    ],
)
def test_a_module_that_is_none_is_no_success(source: str, score: float | None, said: str) -> None:
    if score is None:
        with pytest.raises(RuntimeError, match=said):
            judged(source)
        return
    found = judged(source)
    assert found["score"] == pytest.approx(score)
    assert said in found["comments"]


def test_what_nobody_can_write_fails_the_run_and_says_which() -> None:
    function = {"name": "f", "takes": "x", "summary": "?", "examples": [{"given": "a", "gives": 99}]}
    pipeline = Pipeline(
        stages.plan,
        lambda request: {"issues": list(check.issues(request.spec, request.plan.content))},
        stages.implement,
        judge.judge,
        limits=PipelineLimits(token_budget=0),
        observers=(),
    )
    result = pipeline.run_sync({"module": "m", "functions": [function]})
    assert (result.outcome, result.reason) == (Outcome.FAILED, "stage_error")
    assert "does what the examples of f show" in str(result.error)
