from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrator.errors import Refused
from orchestrator.kernel.fact import RunStarted, Transition
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.testing.coverage import (
    CoverageShare,
    CoverageTally,
    GraphCoverage,
    GuardItem,
    StateItem,
    TransitionItem,
    report,
)
from orchestrator.testing.paths import Path, edge_paths, walk
from tests.testing.gate import GATE, Event, Visitor

TO_OPEN, TO_IDLE, TO_SHUT = (path for path in edge_paths(GATE) if path[-1].event == Event.DECIDE)


async def covered(path: Path, visitor: Visitor) -> GraphCoverage:
    coverage = GraphCoverage(GATE)
    await walk(GATE, path, visitor, observers=[coverage])
    return coverage


def test_nothing_is_covered_before_the_first_run() -> None:
    coverage = GraphCoverage(GATE)
    assert (coverage.states, coverage.transitions, coverage.guards) == ((0, 4), (0, 6), (0, 4))
    assert coverage.total == (0, 14)
    assert set(coverage.missing()) == set(coverage.counts)


async def test_a_run_covers_the_states_it_was_in_and_the_edges_it_took() -> None:
    coverage = await covered(TO_OPEN, Visitor(member=True))
    assert coverage.states == (3, 4)
    assert coverage.transitions == (2, 6)
    assert StateItem("shut") in coverage.missing()
    assert TransitionItem("checking", "decide", "open") not in coverage.missing()


async def test_an_internal_edge_is_a_transition_too() -> None:
    coverage = await covered(edge_paths(GATE)[0], Visitor())
    assert coverage.counts[TransitionItem("idle", "look", "idle")] == 1


@pytest.mark.parametrize(
    ("path", "visitor", "answers"),
    [
        (TO_OPEN, Visitor(member=True), {("open", "allow")}),
        (TO_IDLE, Visitor(known=True), {("open", "deny"), ("idle", "allow")}),
        (TO_SHUT, Visitor(), {("open", "deny"), ("idle", "deny")}),
    ],
)
async def test_rival_guards_of_one_event_are_told_apart(
    path: Path, visitor: Visitor, answers: set[tuple[str, str]]
) -> None:
    coverage = await covered(path, visitor)
    seen = {item for item, count in coverage.counts.items() if count and isinstance(item, GuardItem)}
    assert {(item.dest, item.result) for item in seen} == answers


async def test_a_guard_asked_again_after_a_decision_begins_at_the_first_row() -> None:
    coverage = GraphCoverage(GATE)
    twice = (*TO_IDLE, *TO_IDLE)
    await walk(GATE, twice, Visitor(known=True), observers=[coverage])
    assert coverage.counts[GuardItem("checking", "decide", "open", "is_member", "deny")] == 2
    assert coverage.counts[GuardItem("checking", "decide", "idle", "is_known", "allow")] == 2


async def test_a_guard_counts_under_its_own_name_whatever_its_verdict_is_called() -> None:
    coverage = GraphCoverage(LLM_LOOP)
    path = next(path for path in edge_paths(LLM_LOOP) if path[-1].event == "budget_ok")
    await walk(LLM_LOOP, path, LoopContext([], Limits(max_iterations=2), 0), observers=[coverage])
    spent = LoopContext([], Limits(max_iterations=2), 0, iteration=2)
    with pytest.raises(Refused, match="iterations: 2 of 2 used"):
        await walk(LLM_LOOP, path, spent, observers=[coverage])
    for result in ("allow", "deny"):
        item = GuardItem("update_budgets", "budget_ok", "await_llm", "may_continue", result)
        assert coverage.counts[item] == 1


async def test_facts_of_another_graph_pass_by() -> None:
    coverage = GraphCoverage(LLM_LOOP)
    await walk(GATE, TO_SHUT, Visitor(), observers=[coverage])
    assert coverage.total.taken == 0


def test_an_edge_that_the_table_does_not_have_is_not_counted() -> None:
    coverage = GraphCoverage(GATE)
    coverage.observe(Transition("gate", "r", 1, "fly", "idle", "sky", 0.0, 0.0, 0))
    assert coverage.total.taken == 0


def test_a_resumed_run_does_not_cover_the_initial_state() -> None:
    coverage = GraphCoverage(GATE)
    coverage.observe(RunStarted("gate", "r", 0.0, "resumed"))
    assert coverage.states.taken == 0
    coverage.observe(RunStarted("gate", "r", 0.0))
    assert coverage.states.taken == 1


@pytest.mark.parametrize(
    ("share", "percent", "shown"),
    [
        (CoverageShare(0, 0), 100.0, "0/0 100 %"),
        (CoverageShare(0, 4), 0.0, "0/4 0 %"),
        (CoverageShare(3, 4), 75.0, "3/4 75 %"),
        (CoverageShare(999, 1000), 99.9, "999/1000 99 %"),
        (CoverageShare(4, 4), 100.0, "4/4 100 %"),
    ],
)
def test_a_share_is_shown_rounded_down_so_that_100_means_all(
    share: CoverageShare, percent: float, shown: str
) -> None:
    assert share.percent == pytest.approx(percent)
    assert str(share) == shown


async def test_merged_coverage_is_the_sum() -> None:
    one = await covered(TO_OPEN, Visitor(member=True))
    other = await covered(TO_SHUT, Visitor())
    one.merge(other, other)
    assert one.states == (4, 4)
    assert one.counts[StateItem("checking")] == 3
    assert other.counts[StateItem("checking")] == 1


def test_coverage_of_different_tables_is_not_added_and_nothing_is_half_done() -> None:
    coverage, same = GraphCoverage(GATE), GraphCoverage(GATE)
    same.counts[StateItem("open")] = 1
    with pytest.raises(
        ValueError, match="coverage of 'llm_loop' belongs to another graph than that of 'gate'"
    ):
        coverage.merge(same, GraphCoverage(LLM_LOOP))
    assert coverage.total.taken == 0


async def test_coverage_survives_the_way_to_another_process() -> None:
    coverage = await covered(TO_IDLE, Visitor(known=True))
    arrived = CoverageTally.from_data(json.loads(json.dumps(coverage.to_data())))
    assert arrived.counts == coverage.counts
    assert list(map(str, arrived.missing())) == list(map(str, coverage.missing()))
    arrived.merge(coverage)
    assert arrived.counts[StateItem("checking")] == 2


async def test_the_report_has_a_line_for_each_graph_and_names_what_is_missing() -> None:
    coverage = GraphCoverage(GATE)
    for path, visitor in ((TO_OPEN, Visitor(member=True)), (TO_IDLE, Visitor(known=True))):
        await walk(GATE, path, visitor, observers=[coverage])
    lines = report([GraphCoverage(LLM_LOOP), coverage])
    assert lines[:7] == [
        "graph     states    transitions  guards    total",
        "gate      3/4 75 %  3/6 50 %     3/4 75 %  9/14 64 %",
        "  missing state shut",
        "  missing transition idle --look--> idle",
        "  missing transition checking --decide--> shut",
        "  missing transition open --leave--> shut",
        "  missing guard is_known never says deny: checking --decide--> idle",
    ]
    assert lines[7].startswith(f"llm_loop  0/{len(LLM_LOOP.states)} 0 %")


def test_two_tables_of_one_name_are_told_apart_by_their_fingerprint() -> None:
    smaller = replace(GATE, edges=GATE.edges[1:], strict=False)
    lines = [
        line for line in report([GraphCoverage(GATE), GraphCoverage(smaller)]) if line.startswith("gate ")
    ]
    assert sorted(line.split()[1] for line in lines) == sorted(
        graph.fingerprint[:8] for graph in (GATE, smaller)
    )
