"""Approval: all ordered pairs of states, and the conditions that a person's events stand under."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import EventError, InvalidEvent, Refused
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.machines.approval.graph import APPROVAL
from orchestrator.machines.approval.model import ApprovalContext, ApprovalEvent, ApprovalState, Consent
from orchestrator.machines.approval.plan import ApprovalPlan, PlanStep, StepKind

ACCEPTED = Path(__file__).resolve().parents[1] / "data/golden/graph/approval.txt"
VALID = {
    (source, dest)
    for source, _, dest in (
        line.split() for line in ACCEPTED.read_text().splitlines() if line and not line.startswith("#")
    )
}

PLAN = ApprovalPlan(
    id="plan-1", version=1, goal="g", steps=(PlanStep(id="1", kind=StepKind.RUN, argv=("true",)),)
)


def consenting(plan: ApprovalPlan = PLAN) -> ApprovalContext:
    """A context under which every guard allows its edge."""
    consent = Consent(plan.id, plan.version, plan.digest, "ann", 1.0)
    return ApprovalContext(
        request="x", intent={"summary": "x"}, plan=plan.plain(), consent=consent, shown=True
    )


MACHINE = Machine(APPROVAL, Hooks({}))


def moved(source: ApprovalState, event: ApprovalEvent, ctx: ApprovalContext) -> str:
    """Fire an event in a state of the real graph, guards included, without hooks; return where it led."""
    run: Run[Any, Any] = Run(MACHINE, "r", ctx, None)
    run.cursor.state, run.cursor.entry_pending, run.cursor.started_at = source.value, False, 0.0
    asyncio.run(Driver(run.machine).fire(run, event))
    return run.cursor.state


@functools.cache
def reached_from(source: ApprovalState) -> set[str]:
    """Return the states that any event leads to."""
    reached = set()
    for event in ApprovalEvent:
        try:
            reached.add(moved(source, event, consenting()))
        except InvalidEvent:
            continue
    return reached


@pytest.mark.parametrize(
    ("source", "dest"), list(product(ApprovalState, ApprovalState)), ids=lambda state: state.value
)
def test_of_all_pairs_of_states_exactly_those_of_the_table_can_be_taken(
    source: ApprovalState, dest: ApprovalState
) -> None:
    assert (dest.value in reached_from(source)) == ((source.value, dest.value) in VALID)


REFUSED = [
    pytest.param(ApprovalState.IDLE, ApprovalEvent.SUBMIT, {"request": " \n"}, id="an empty request"),
    pytest.param(
        ApprovalState.AWAITING_APPROVAL, ApprovalEvent.APPROVE, {"consent": None}, id="a plan nobody approved"
    ),
    pytest.param(ApprovalState.AWAITING_APPROVAL, ApprovalEvent.APPROVE, {"plan": None}, id="no plan"),
    pytest.param(
        ApprovalState.AWAITING_APPROVAL,
        ApprovalEvent.APPROVE,
        {"plan": PLAN.model_copy(update={"version": 2}).plain()},
        id="another version",
    ),
    pytest.param(
        ApprovalState.AWAITING_APPROVAL,
        ApprovalEvent.APPROVE,
        {"plan": PLAN.model_copy(update={"goal": "h"}).plain()},
        id="one byte of the plan changed since",
    ),
    pytest.param(
        ApprovalState.PAUSED, ApprovalEvent.RESUME, {"consent": None}, id="a resume of what nobody approved"
    ),
    pytest.param(
        ApprovalState.FAILED, ApprovalEvent.ACKNOWLEDGE, {"shown": False}, id="an error that was not shown"
    ),
    pytest.param(ApprovalState.FAILED, ApprovalEvent.RETRY, {"intent": None}, id="a retry without an intent"),
]


@pytest.mark.parametrize(("source", "event", "changes"), REFUSED)
def test_a_condition_of_the_table_that_does_not_hold_refuses_the_event(
    source: ApprovalState, event: ApprovalEvent, changes: dict[str, Any]
) -> None:
    with pytest.raises(Refused):
        moved(source, event, replace(consenting(), **changes))
    assert moved(source, event, consenting()) != source.value


@pytest.mark.parametrize("state", sorted(ApprovalState), ids=str)
def test_an_error_of_a_working_state_leads_to_failed_whatever_the_guards_say(state: ApprovalState) -> None:
    if not APPROVAL.is_working(state):
        return
    event = APPROVAL.failure_event(state)
    assert event is not None
    assert moved(state, ApprovalEvent(event), ApprovalContext()) == ApprovalState.FAILED.value


def test_an_event_of_no_state_is_refused_by_name() -> None:
    with pytest.raises(EventError):
        moved(ApprovalState.IDLE, ApprovalEvent.ROLLBACK_FINISHED, consenting())
