"""Branches in a graph: what is refused, what its texts show, and that other graphs stay as they are."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from orchestrator.errors import GraphError
from orchestrator.kernel.branch import ANY, BranchResult, Fan, ended, first, joined, quorum
from orchestrator.kernel.graph import FORMATS
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.llm_loop.graph import LLM_LOOP


@pytest.mark.parametrize(
    ("state", "fan", "why"),
    [
        ("process_tools", Fan(max=0), "max is 0; give the most branches that one visit may have, 1 or more"),
        ("process_tools", Fan(max=-1), "max is -1; give the most branches"),
        ("process_tools", Fan(max=2, join=first(3)), "the join needs 3 branches and there are at most 2"),
        ("process_tools", Fan(max=2, join=quorum(3)), "the join needs 3 branches and there are at most 2"),
        ("process_tools", Fan(max=2, join=ended(3)), "the join needs 3 branches and there are at most 2"),
        ("process_tools", Fan(max=2, join=first(0)), "the join needs 0 branches; give 1 or more"),
        ("process_tools", Fan(max=2, join=ended(-1)), "the join needs -1 branches; give 0 or more"),
        ("process_tools", Fan(max=2, concurrency=-1), "concurrency is -1; it must be 0 (unlimited) or more"),
        ("finalize", Fan(max=2), "only a working state that is not pure has branches"),
        ("evaluate_response", Fan(max=2), "only a working state that is not pure has branches"),
        ("nowhere", Fan(max=2), "nowhere"),
    ],
)
def test_branches_that_cannot_work_are_refused_when_the_graph_is_made(state: str, fan: Fan, why: str) -> None:
    with pytest.raises(GraphError) as caught:
        LLM_LOOP.extend(branches={state: fan})
    assert why in str(caught.value)


def test_every_text_of_a_graph_shows_its_branches() -> None:
    graph = LLM_LOOP.extend(branches={"process_tools": Fan(max=9, join=ANY)})
    for name, draw in FORMATS.items():
        if name != "json":
            assert "up to 9 branches, join any" in draw(graph, None), name
            assert "branches" not in draw(LLM_LOOP, None), name
    assert graph.describe()["branches"] == {
        "process_tools": {"max": 9, "concurrency": 8, "join": "any"},
    }


def test_only_the_join_is_part_of_the_fingerprint_and_a_graph_without_branches_keeps_its_own() -> None:
    assert LLM_LOOP.extend(branches={}).fingerprint == LLM_LOOP.fingerprint
    one = LLM_LOOP.extend(branches={"process_tools": Fan(max=9)})
    assert one.fingerprint != LLM_LOOP.fingerprint
    assert (
        LLM_LOOP.extend(branches={"process_tools": Fan(max=5, concurrency=1)}).fingerprint == one.fingerprint
    )
    assert LLM_LOOP.extend(branches={"process_tools": Fan(max=9, join=ANY)}).fingerprint != one.fingerprint


@dataclass(frozen=True)
class Vote:
    word: str


class VoteModel(BaseModel):
    word: str


def test_another_join_is_evaluated_on_all_results() -> None:
    results = [
        BranchResult(0, "r:s.1:0", Outcome.COMPLETED, value={"vote": 1}),
        BranchResult(1, "r:s.1:1", Outcome.FAILED, "tool_error"),
        BranchResult(2, "r:s.1:2", Outcome.COMPLETED, value={"vote": 1}),
    ]
    assert [joined(results, join).ok for join in (ANY, first(2), first(3), quorum(2), ended(3))] == [
        True,
        True,
        False,
        True,
        False,
    ]
    for vote in (Vote("yes"), VoteModel(word="yes")):
        both = [BranchResult(number, "r", Outcome.COMPLETED, value=vote) for number in range(2)]
        assert joined(both, quorum(2)).ok
    assert not joined(results).ok
    with pytest.raises(TypeError, match="a object has no JSON form; give quorum"):
        joined([BranchResult(0, "r", Outcome.COMPLETED, value=object())], quorum(1))
