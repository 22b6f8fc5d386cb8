"""What agents are given and give: every member of the seed's contracts (systems 6.3), and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from orchestrator.machines.ralph.contract import (
    OUTPUTS,
    AgentOutputInvalid,
    CheckerInput,
    ExecutorInput,
    NextAction,
    OrchestratorOutput,
    PlannerInput,
    PlannerMode,
    QuestionerInput,
    ReviewerInput,
    ReviewVerdict,
    Role,
    read,
)

INPUTS: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (PlannerInput, {"SESSION_PATH": "s", "MODE": "INITIALIZE", "USER_REQUEST": "r", "CONTEXT": {"a": 1}}),
    (PlannerInput, {"SESSION_PATH": "s", "MODE": "UPDATE", "USER_REQUEST": "r", "CONTEXT": {}}),
    (PlannerInput, {"SESSION_PATH": "s", "MODE": "TASK_BREAKDOWN", "USER_REQUEST": "r", "CONTEXT": {}}),
    (PlannerInput, {"SESSION_PATH": "s", "MODE": "DISCOVERY", "USER_REQUEST": "r", "CONTEXT": {}}),
    (QuestionerInput, {"SESSION_PATH": "s", "MODE": "BRAINSTORM", "CYCLE_NUMBER": 1, "CONTEXT": {}}),
    (QuestionerInput, {"SESSION_PATH": "s", "MODE": "RESEARCH", "CYCLE_NUMBER": 3, "CONTEXT": {}}),
    (ExecutorInput, {"SESSION_PATH": "s", "TASK_ID": "task-2.1", "ATTEMPT_NUMBER": 2, "CONTEXT": {}}),
    (ReviewerInput, {"SESSION_PATH": "s", "TASK_ID": "task-1", "REPORT_PATH": "p", "CONTEXT": {}}),
    (CheckerInput, {"SESSION_PATH": "s", "USER_REQUEST": "r", "CONTEXT": {}}),
]

WHOLE: dict[Role, dict[str, Any]] = {
    Role.PLANNER: {
        "status": "needs_qa_cycle",
        "artifacts_created": ["plan.md"],
        "artifacts_updated": ["tasks.md"],
        "task_count": {"planning": 1, "implementation": 2, "total": 3},
        "next_actions": ["qa_brainstorm", "qa_research", "execute", "review", "complete"],
        "blockers": ["no key"],
    },
    Role.QUESTIONER: {
        "status": "completed",
        "questions_generated": 3,
        "questions_answered": 2,
        "priority_breakdown": {"high": 1, "medium": 1, "low": 1},
        "confidence_distribution": {"high": 1, "medium": 0, "low": 0, "unknown": 1},
        "new_questions_emerged": 1,
        "invalidated_assumptions": 1,
        "critical_findings": ["f"],
        "recommendations": ["r"],
    },
    Role.EXECUTOR: {
        "status": "failed",
        "report_path": "tasks.task-1-report.md",
        "success_criteria_met": True,
        "discovered_tasks": [{"id": "task-9", "description": "d", "rationale": "r"}],
        "blockers": ["b"],
    },
    Role.REVIEWER: {
        "status": "completed",
        "verdict": "Failed",
        "criteria_results": [{"criterion": "c", "met": False, "evidence": "e", "finding": "f"}],
        "quality_assessment": "q",
        "issues": ["i"],
        "feedback": "f",
        "discovered_tasks": [],
    },
    Role.CHECKER: {
        "passed": False,
        "missing_tasks": [{"id": "task-9", "description": "d", "rationale": ""}],
        "summary": "s",
    },
}
"""Every member of each output, with a value of its own."""

STATUSES = {
    Role.PLANNER: ["completed", "blocked", "needs_clarification", "needs_qa_cycle"],
    Role.QUESTIONER: ["completed", "blocked"],
    Role.EXECUTOR: ["completed", "failed", "blocked"],
    Role.REVIEWER: ["error"],
}


@pytest.mark.parametrize(("kind", "given_"), INPUTS, ids=str)
def test_an_input_is_json_under_the_seeds_names_and_nothing_else(kind: Any, given_: dict[str, Any]) -> None:
    assert kind.model_validate(given_).as_json() == given_
    for name in given_.keys() - {"CONTEXT", "CYCLE_NUMBER", "ATTEMPT_NUMBER"}:
        with pytest.raises(ValidationError):
            kind.model_validate({key: value for key, value in given_.items() if key != name})
    with pytest.raises(ValidationError):
        kind.model_validate({**given_, "MORE": 1})


def test_a_mode_of_the_pseudocode_is_read_as_the_one_it_stands_for() -> None:
    asked = PlannerInput.model_validate({"SESSION_PATH": "s", "MODE": "QA_COORDINATE", "USER_REQUEST": ""})
    assert asked.mode is PlannerMode.DISCOVERY
    with pytest.raises(ValidationError):
        PlannerInput.model_validate({"SESSION_PATH": "s", "MODE": "QA", "USER_REQUEST": ""})


@pytest.mark.parametrize("role", Role)
def test_an_output_keeps_every_member_of_its_contract(role: Role) -> None:
    assert WHOLE[role].keys() == OUTPUTS[role].model_fields.keys()
    assert read(role, WHOLE[role]).as_json() == WHOLE[role]
    assert (
        read(role, json.dumps(WHOLE[role])) == read(role, read(role, WHOLE[role])) == read(role, WHOLE[role])
    )
    assert read(role, {**WHOLE[role], "a_new_one": 1}) == read(role, WHOLE[role])


@pytest.mark.parametrize(("role", "status"), [(role, one) for role, all_ in STATUSES.items() for one in all_])
def test_a_status_alone_is_an_output(role: Role, status: str) -> None:
    assert read(role, {"status": status}).as_json()["status"] == status


def test_what_the_orchestrator_says_has_the_members_of_its_contract() -> None:
    assert list(OrchestratorOutput.model_fields) == [
        "status",
        "session_id",
        "current_state",
        "last_action",
        "next_action",
        "summary",
    ]
    assert [one.value for one in NextAction] == [
        "qa_brainstorm",
        "qa_research",
        "execute",
        "review",
        "complete",
    ]


@pytest.mark.parametrize(
    ("role", "given_", "why"),
    [
        (Role.REVIEWER, {"status": "completed"}, "a completed review needs a verdict: Qualified or Failed"),
        (
            Role.CHECKER,
            {"passed": True, "missing_tasks": [{"id": "task-3", "description": "d"}]},
            "passed is true although a task is missing: task-3",
        ),
        (Role.REVIEWER, '{"status": "error", "feedback": "\\ud800"}', "half a character"),
        (Role.EXECUTOR, {"status": "blocked", "blockers": ["\ud800"]}, "half a character"),
        (
            Role.REVIEWER,
            {
                "status": "completed",
                "verdict": "Qualified",
                "criteria_results": [{"criterion": "c", "met": False}],
            },
            "the verdict is Qualified although a criterion is not met: c",
        ),
        (
            Role.REVIEWER,
            {"status": "completed", "verdict": "qualified"},
            "verdict: Input should be 'Qualified' or",
        ),
        (Role.PLANNER, {"status": "completed", "task_count": {"total": -1}}, "task_count.total"),
        (Role.PLANNER, {"status": "completed", "next_actions": ["rest"]}, "next_actions.0"),
        (Role.QUESTIONER, {"status": "completed", "questions_generated": "many"}, "questions_generated"),
        (
            Role.EXECUTOR,
            {"status": "completed", "discovered_tasks": [{"id": "a b", "description": "d"}]},
            "String",
        ),
        (
            Role.EXECUTOR,
            {"status": "completed", "discovered_tasks": [{"id": "a", "description": ""}]},
            "description",
        ),
        (Role.CHECKER, {"passed": None}, "passed"),
        (Role.CHECKER, None, "valid dictionary"),
    ],
)
def test_an_output_that_breaks_its_contract_is_refused_with_the_member(
    role: Role, given_: Any, why: str
) -> None:
    with pytest.raises(AgentOutputInvalid) as raised:
        read(role, given_)
    assert why in raised.value.why
    assert raised.value.role == role.value
    assert str(raised.value).startswith(f"the answer of the {role.value} is invalid: ")


def test_a_review_that_qualifies_has_every_criterion_met() -> None:
    met = [{"criterion": "c", "met": True}]
    found = read(Role.REVIEWER, {"status": "completed", "verdict": "Qualified", "criteria_results": met})
    assert found.as_json()["verdict"] == ReviewVerdict.QUALIFIED


@given(
    st.sampled_from(Role),
    st.one_of(st.text(), st.binary(), st.recursive(st.none() | st.integers(), st.lists)),
)
def test_whatever_an_agent_gives_is_an_output_or_a_sentence(role: Role, said: Any) -> None:
    try:
        found = read(role, said)
    except AgentOutputInvalid:
        return
    assert isinstance(found, OUTPUTS[role])
