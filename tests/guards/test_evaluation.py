"""Rows of evaluations: what a journal keeps of a guard is enough to evaluate it again."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orchestrator_guards as guards
from orchestrator_guards import ObservedCall, Verdict, fingerprint
from orchestrator_guards.evaluation import (
    FUNCTIONS,
    evaluate,
    foreign_row,
    read_row,
    row_of,
)
from orchestrator_guards.evaluation import given as row_given
from tests.guards.package import guard_functions
from tests.tiers import examples

COUNT = st.integers(0, 60)
TURN = st.builds(
    lambda tool, result, failed: fingerprint([ObservedCall(tool, "{}", result, failed)]),
    st.sampled_from(["read", "pay"]),
    st.sampled_from(["a", "b"]),
    st.booleans(),
)
INPUTS: dict[str, st.SearchStrategy[Any]] = {
    "window": st.lists(TURN, max_size=9),
    "tool": st.sampled_from(["search", "PAY"]),
    "model": st.just("m"),
    "policy": st.sampled_from(["strict", "poll", "cumulative"]),
    "factor": st.sampled_from([1.0, 1.2]),
}


def as_stored(row: Any) -> Any:
    """Return a row as the journal gives it back."""
    return json.loads(json.dumps(row, default=sorted))


def test_every_guard_of_the_package_can_be_evaluated_again() -> None:
    assert set(FUNCTIONS) == {guard.function for guard in guard_functions()}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@settings(max_examples=examples(40))
@given(data=st.data())
def test_the_inputs_of_a_row_give_its_verdict_and_others_do_not(name: str, data: st.DataObject) -> None:
    guard = FUNCTIONS[name]
    names = [one for one in inspect.signature(guard).parameters if one != "model"]
    inputs = {one: data.draw(INPUTS.get(one, COUNT), label=one) for one in names}
    verdict = guard(**inputs)
    derived = name not in {"progress", "repeated_success", "affordable", "request_cost"}
    row = as_stored(row_of(verdict) if derived else row_given(verdict, guard, *inputs.values()))

    found = read_row(row)
    assert (found.function, found.verdict[:4]) == (name, verdict[:4])
    assert found.holds()
    assert all(isinstance(one, int | float | str | list) for one in found.inputs)
    if "tool" in inputs:
        assert inputs["tool"] not in row, "the name of a tool can come from the model"
    others = {one: value for one, value in found.named.items() if one not in {"window", "policy", "tool"}}
    for one, value in others.items():
        spoilt = found._replace(inputs=tuple({**found.named, one: value + 1_000_000}.values()))
        changes = evaluate(name, spoilt.inputs)[:4] != found.verdict[:4]
        assert spoilt.holds() is not changes
    if others and name not in {"affordable", "progress", "repeated_success"}:
        spoilt = found._replace(inputs=(*found.inputs[:-1], found.inputs[-1] + 1_000_000))
        assert not spoilt.holds(), "the verdict names its limit"


def test_inputs_may_be_given_by_name() -> None:
    assert evaluate("tool_cap", {"tool": "x", "calls_so_far": 2, "limit": 2}) == guards.tool_cap("x", 2, 2)


def test_a_window_is_evaluated_from_its_stored_form() -> None:
    window = [fingerprint([ObservedCall("read", '{"a": 1}', "same")])] * 4
    turns = ((sorted(part) if isinstance(part, frozenset) else part for part in turn) for turn in window)
    stored = as_stored([[*turn] for turn in turns])
    assert evaluate("progress", [stored, 3])[:4] == (False, "no_progress", 3, 3)


@pytest.mark.parametrize(
    ("function", "inputs", "why"),
    [
        ("novel", (1, 2), "guard 'novel' is unknown; known: affordable, "),
        ("iterations", {"observed": 1, "most": 2}, "the inputs of guard 'iterations' do not fit: "),
        ("iterations", (), "the inputs of guard 'iterations' do not fit: "),
    ],
)
def test_an_unknown_guard_and_inputs_that_do_not_fit_are_refused(
    function: str, inputs: Any, why: str
) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        evaluate(function, inputs)


@pytest.mark.parametrize("row", [[], [True], [True, "iterations", 1], [True, 7, 1, 2]])
def test_a_row_of_another_form_is_refused(row: list[Any]) -> None:
    with pytest.raises(ValueError, match="a row of an evaluation starts with"):
        read_row(row)


@pytest.mark.parametrize(
    ("answer", "row"),
    [
        (Verdict(ok=False, guard="own", observed=3, limit=2, detail="secret"), (False, "own", 3, 2)),
        (Verdict(ok=True, guard="own", observed=float("inf")), (True, "may_pay")),
        (Verdict(ok=True, guard="own", observed=2**63), (True, "may_pay")),
        (True, (True, "may_pay")),
        ([], (False, "may_pay")),
    ],
)
def test_the_answer_of_a_guard_of_a_host_is_recorded_as_far_as_json_can(
    answer: Any, row: tuple[Any, ...]
) -> None:
    assert foreign_row("may_pay", answer) == row
    found = read_row(row)
    assert not found.is_known()

    def own(observed: float, limit: float) -> Verdict:
        return Verdict(observed < limit, "own", observed, limit)

    functions: dict[str, Callable[..., Verdict]] = {**FUNCTIONS, "own": own}
    if len(row) > 2:
        assert found.holds(functions), "the guard of a host can be given"
