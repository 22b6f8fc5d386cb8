"""What ports give, read as what their stages give: typed or plain, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.errors import ConfigError, RunError
from orchestrator.machines.pipeline.model import (
    Evaluation,
    Implementation,
    Issue,
    OrchestrationState,
    Plan,
    Rubric,
    Severity,
    StageRequest,
    Validation,
)
from orchestrator_callbacks.pipeline.stage import read


class Step(BaseModel):
    name: str


def given(stage: OrchestrationState, value: Any) -> Any:
    return read(stage, value, Rubric())


def test_a_plan_is_plain_data_whatever_it_was_made_of() -> None:
    assert given(OrchestrationState.PLANNING, Plan({"a": (1, 2)}, 3)) == Plan({"a": [1, 2]}, 3)
    assert given(OrchestrationState.PLANNING, Step(name="x")) == Plan({"name": "x"})
    assert given(OrchestrationState.PLANNING, [Step(name="x")]) == Plan([{"name": "x"}])
    assert given(OrchestrationState.IMPLEMENTING, "text") == Implementation("text")


def test_what_a_plan_says_is_what_a_journal_would_give_back() -> None:
    assert given(OrchestrationState.PLANNING, {1: (float("nan"), float("inf"))}) == Plan({"1": [None, None]})


@pytest.mark.parametrize("tokens", [-1, 1.5, True, "3"])
def test_a_stage_can_spend_whole_numbers_of_tokens_only(tokens: Any) -> None:
    request = StageRequest(stage=OrchestrationState.PLANNING, spec="x", iteration=0, refinement=0)
    with pytest.raises(ConfigError, match="whole number"):
        request.spend(tokens)


@pytest.mark.parametrize("value", [[], (), {"issues": []}, Validation(), iter([])])
def test_no_issues_are_none_in_every_form(value: Any) -> None:
    assert given(OrchestrationState.VALIDATING, value) == Validation()


def test_issues_may_be_typed_or_plain_and_an_issue_without_severity_is_an_error() -> None:
    listed = [
        Issue(Severity.INFO, "a"),
        {"severity": "warning", "message": "b", "where": "c"},
        {"message": "d"},
    ]

    found = given(OrchestrationState.VALIDATING, {"issues": listed, "tokens": 4})

    assert [str(issue) for issue in found.issues] == ["info: a", "warning: c: b", "error: d"]
    assert (found.ok, found.tokens) == (False, 4)


def test_a_validation_of_any_errors_alone_keeps_a_plan_back() -> None:
    assert Validation((Issue(Severity.WARNING, "w"), Issue(Severity.INFO, "i"))).ok
    assert not Validation((Issue(Severity.INFO, "i"), Issue(Severity.ERROR, "e"))).ok


def test_a_score_may_be_a_whole_number() -> None:
    assert given(OrchestrationState.JUDGING, {"score": 7, "categories": {"a": 1}}) == Evaluation(
        7.0, {"a": 1.0}
    )


@pytest.mark.parametrize(
    ("stage", "value", "said"),
    [
        (OrchestrationState.PLANNING, None, "planning returned nothing; it must return a result"),
        (OrchestrationState.VALIDATING, "ok", "it must give a Validation or a list of issues"),
        (OrchestrationState.VALIDATING, {"ok": True}, "it must give a Validation"),
        (
            OrchestrationState.VALIDATING,
            [{"severity": "fatal", "message": "m"}],
            "allowed: error, warning, info",
        ),
        (OrchestrationState.VALIDATING, ["bad"], "it needs severity and message"),
        (OrchestrationState.JUDGING, 9.0, "must give an Evaluation or a mapping with a score"),
        (OrchestrationState.JUDGING, {"score": None}, "gave score None; it must be a number"),
        (OrchestrationState.JUDGING, {"score": 10.5}, "scores are from 0 to 10"),
        (OrchestrationState.JUDGING, {"score": 9, "categories": {"a": -1}}, "judging gave a -1"),
        (OrchestrationState.JUDGING, {"score": 9, "categories": "none"}, "they must map names to scores"),
        (OrchestrationState.JUDGING, {"score": 9, "tokens": 1.5}, "gave tokens 1.5"),
        (OrchestrationState.PLANNING, Plan("p", -1), "gave tokens -1; it must be 0 or more"),
        (OrchestrationState.IMPLEMENTING, Implementation("p", "few"), "gave tokens 'few'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(
    stage: OrchestrationState, value: Any, said: str
) -> None:
    with pytest.raises(RunError, match=said):
        given(stage, value)


def test_text_that_no_record_can_hold_is_made_encodable() -> None:
    assert given(OrchestrationState.JUDGING, {"score": 9, "comments": "\ud800"}).comments == "?"
    assert given(OrchestrationState.VALIDATING, [Issue(Severity.INFO, "\udfff")]).issues[0].message == "?"
    assert given(OrchestrationState.PLANNING, {"\ud800": ["\udfff"]}).content == {"?": ["?"]}


@pytest.mark.parametrize("stage", [OrchestrationState.PLANNING, OrchestrationState.IMPLEMENTING])
@pytest.mark.parametrize("value", [{1, object()}, {"n": 2**70}, {"pdf": b"\xff"}, (n for n in [1])])
def test_a_stage_whose_content_has_no_json_form_has_run(stage: OrchestrationState, value: Any) -> None:
    content = given(stage, value).content
    assert content["ran"] is True
    assert content["notice"].startswith("the stage ran, but its result cannot be shown: its type ")
    assert content["notice"].endswith("Do not repeat the stage for that reason.")
    assert content["returned"]["type"] == type(value).__name__
