"""Each rule, proven by one change to a shipped graph, or to its hooks, that breaks it and no other."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import ConfigError, GraphError
from orchestrator.kernel.branch import Fan
from orchestrator.kernel.graph import Edge, Graph, bounding
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.lint import LintProblem, LintRule
from orchestrator.kernel.typed import StateMachine
from orchestrator.machines.llm_loop.graph import LLM_LOOP, may_continue
from orchestrator.machines.llm_loop.model import LoopEvent, LoopState
from tests.kernel.toy import TOY, E, S, machine


@bounding
def bounded(ctx: Any) -> bool:
    return True


async def coroutine(ctx: Any) -> bool:
    return False


def row(event: str, source: str, dest: str, when: Any = None, *, reenter: bool = False) -> Edge:
    """An edge that may name what the graph does not have yet."""
    return Edge(event, (source,), dest, when, reenter)


Change = Callable[[], Graph]

GRAPH_CHANGES: dict[LintRule, Change] = {
    LintRule.UNKNOWN_NAME: lambda: LLM_LOOP.extend(terminal={*LLM_LOOP.terminal, "heaven"}),
    LintRule.TAKEN_NAME: lambda: LLM_LOOP.extend(states=["init"]),
    LintRule.RESERVED_NAME: lambda: LLM_LOOP.extend(
        events=["event"], edges=[row("event", "init", "finalize")]
    ),
    LintRule.ROLE_CONFLICT: lambda: LLM_LOOP.extend(waiting={LoopState.TERMINATE_ERROR}),
    LintRule.NO_END: lambda: LLM_LOOP.extend(terminal=()),
    LintRule.UNREACHABLE: lambda: LLM_LOOP.extend(states=["attic"]),
    LintRule.TRAP: lambda: LLM_LOOP.extend(
        states=["cellar"],
        events=["descend"],
        edges=[row("descend", "init", "cellar"), row("failure", "cellar", "terminate_error")],
    ),
    LintRule.NO_WAY_OUT: lambda: LLM_LOOP.extend(
        states=["cellar", "vault"],
        events=["descend"],
        edges=[
            row("descend", "init", "cellar"),
            row("descend", "cellar", "vault"),
            row("descend", "vault", "cellar", bounded),
            row("failure", "cellar", "terminate_error"),
            row("failure", "vault", "terminate_error"),
        ],
    ),
    LintRule.TERMINAL_EXIT: lambda: LLM_LOOP.extend(edges=[row("start_loop", "finalize", "await_llm")]),
    LintRule.GUARD_OVERLAP: lambda: LLM_LOOP.extend(
        edges=[row("llm_response", "await_llm", "process_tools")]
    ),
    LintRule.GUARD_GAP: lambda: LLM_LOOP.extend(
        edges=[row("budget_ok", "update_budgets", "await_llm", bounded)]
    ),
    LintRule.ASYNC_GUARD: lambda: LLM_LOOP.extend(
        without=[("update_budgets", "budget_exceeded")],
        edges=[row("budget_exceeded", "update_budgets", "terminate_error", coroutine)],
    ),
    LintRule.UNBOUNDED_CYCLE: lambda: LLM_LOOP.extend(
        without=[("update_budgets", "budget_ok")], edges=[row("budget_ok", "update_budgets", "await_llm")]
    ),
    LintRule.WAITING_WITHOUT_LIMIT: lambda: LLM_LOOP.extend(waiting={LoopState.PROCESS_TOOLS}, dwell={}),
    LintRule.BAD_DWELL: lambda: LLM_LOOP.extend(dwell={LoopState.INIT: (0.0, LoopEvent.FAILURE)}),
    LintRule.MISSING_FAILURE: lambda: LLM_LOOP.extend(without=[("await_llm", "failure")], dwell={}),
    LintRule.INTERNAL_IN_WORKING_STATE: lambda: LLM_LOOP.extend(
        events=["note"], edges=[row("note", "process_tools", "process_tools")]
    ),
    LintRule.BAD_BRANCHES: lambda: LLM_LOOP.extend(branches={"process_tools": Fan(max=0)}),
    LintRule.UNUSED_EVENT: lambda: LLM_LOOP.extend(events=["pause"]),
}


def module(name: str = "enter", **changes: Any) -> types.ModuleType:
    """A module with an enter hook for each working state of the loop; None takes one out."""

    async def hook(run: Any) -> None: ...

    made = types.ModuleType(name)
    wanted = {f"enter_{state}": hook for state in LLM_LOOP.states if LLM_LOOP.is_working(state)}
    for key, value in {**wanted, **changes}.items():
        if value is not None:
            value.__module__ = name
            setattr(made, key, value)
    return made


def _async() -> Any:
    async def hook(run: Any) -> None: ...

    return hook


def _async_alone() -> Any:
    async def hook() -> None: ...

    return hook


def _second(**hooks: Any) -> types.ModuleType:
    made = types.ModuleType("second")
    for name, hook in hooks.items():
        hook.__module__ = "second"
        setattr(made, name, hook)
    return made


HOOK_CHANGES: dict[LintRule, Callable[[], list[types.ModuleType]]] = {
    LintRule.STRAY_HOOK: lambda: [module(enter_awiat_llm=_async())],
    LintRule.SYNC_HOOK: lambda: [module(leave_init=lambda run: None)],
    LintRule.HOOK_ARGUMENTS: lambda: [module(leave_init=_async_alone())],
    LintRule.DUPLICATE_HOOK: lambda: [module(), _second(enter_init=_async())],
    LintRule.MISSING_ENTER: lambda: [module(enter_await_llm=None)],
    LintRule.TERMINAL_WITHOUT_FAILURE: lambda: [module(enter_terminate_error=_async())],
}


def problems_of(build: Callable[[], object]) -> tuple[LintProblem, ...]:
    with pytest.raises(GraphError) as caught:
        build()
    assert all(isinstance(problem, LintProblem) for problem in caught.value.problems)
    return caught.value.problems  # type: ignore[return-value]


def test_the_shipped_graph_and_its_hooks_are_clean() -> None:
    assert LLM_LOOP.lint() == []
    collect(LLM_LOOP, module())


def test_every_rule_is_proven_here() -> None:
    # below, in test_library_interface.py, in test_guard_answers.py
    elsewhere = {LintRule.NO_HOOK, LintRule.UNKNOWN_CALLBACK, LintRule.GUARD_ARGUMENTS}
    assert {*GRAPH_CHANGES, *HOOK_CHANGES, *elsewhere} == set(LintRule)


@pytest.mark.parametrize("rule", GRAPH_CHANGES, ids=str)
def test_a_change_to_the_graph_breaks_exactly_that_rule(rule: LintRule) -> None:
    assert {problem.rule for problem in problems_of(GRAPH_CHANGES[rule])} == {rule}


@pytest.mark.parametrize("rule", HOOK_CHANGES, ids=str)
def test_a_change_to_the_hooks_breaks_exactly_that_rule(rule: LintRule) -> None:
    found = problems_of(lambda: collect(LLM_LOOP, *HOOK_CHANGES[rule]()))
    assert {problem.rule for problem in found} == {rule}


def test_something_of_the_hosts_without_any_hook_breaks_exactly_that_rule() -> None:
    found = problems_of(lambda: collect(LLM_LOOP, module(), extra=[object()]))
    assert {problem.rule for problem in found} == {LintRule.NO_HOOK}


# ---- the finer points of a rule ----


def broken(**changes: Any) -> list[tuple[LintRule, str | None, str | None]]:
    return [(p.rule, p.state, p.event) for p in problems_of(lambda: LLM_LOOP.extend(**changes))]


@pytest.mark.parametrize(
    "changes",
    [
        {"initial": "nowhere"},
        {"edges": [row("fly", "init", "finalize")]},
        {"edges": [row("failure", "nowhere", "finalize")]},
        {"edges": [row("failure", "init", "nowhere")]},
        {"rest": {"nowhere"}},
        {"waiting": {"nowhere"}},
        {"pure": {"nowhere"}},
        {"dwell": {"nowhere": None}},
        {"dwell": {"init": (1.0, "fly")}},
        {"failure": "fly"},
        {"failure": {"nowhere": "failure"}},
        {"failure": {"init": "fly"}},
        {"without": [("init", "fly")]},
    ],
    ids=str,
)
def test_a_name_that_is_not_declared_is_found_wherever_it_stands(changes: dict[str, Any]) -> None:
    found = problems_of(lambda: LLM_LOOP.extend(**changes))
    assert [problem.rule for problem in found] == [LintRule.UNKNOWN_NAME]
    assert "nowhere" in str(found[0]) or "fly" in str(found[0])


def test_a_rest_state_is_an_end_too_but_something_must_lead_out_of_it() -> None:
    changes: Any = {"terminal": {"terminate_error"}, "rest": {"finalize"}}
    assert broken(**changes) == [(LintRule.TRAP, "finalize", None)]
    assert LLM_LOOP.extend(**changes, edges=[row("start_loop", "finalize", "init")]).lint() == []


@pytest.mark.parametrize(
    "limit",
    [(-1.0, "failure"), (float("nan"), "failure"), (5.0, "budget_ok"), (5.0, "note"), (5.0, "maybe")],
    ids=["negative", "no number", "no edge", "internal", "guarded"],
)
def test_a_time_limit_must_be_positive_and_fire_what_surely_leaves_the_state(limit: Any) -> None:
    extra = {
        "note": [row("note", "process_tools", "process_tools")],
        "maybe": [row("maybe", "process_tools", "terminate_error", bounded)],
    }.get(limit[1], [])
    found = broken(
        events=[edge.event for edge in extra],
        edges=extra,
        dwell={"process_tools": limit},
        waiting={"process_tools"},
    )
    assert {rule for rule, _, _ in found} == {LintRule.BAD_DWELL}
    assert {state for _, state, _ in found} == {"process_tools"}


def test_a_failure_edge_that_a_guard_can_bar_is_missing() -> None:
    found = broken(
        without=[("await_llm", "failure")],
        edges=[row("failure", "await_llm", "terminate_error", bounded)],
        dwell={},
    )
    assert found == [(LintRule.MISSING_FAILURE, "await_llm", None)]


def test_a_failure_edge_that_stays_is_missing() -> None:
    found = broken(
        without=[("await_llm", "failure")], edges=[row("failure", "await_llm", "await_llm")], dwell={}
    )
    assert (LintRule.MISSING_FAILURE, "await_llm", None) in found


def test_choices_between_guards_that_end_in_an_open_edge_are_fine() -> None:
    graph = LLM_LOOP.extend(
        without=[("update_budgets", "budget_ok")],
        edges=[
            row("budget_ok", "update_budgets", "await_llm", may_continue),
            row("budget_ok", "update_budgets", "terminate_error"),
        ],
    )
    assert graph.lint() == []


def test_a_cycle_through_a_waiting_state_is_paced_by_somebody_outside() -> None:
    graph = LLM_LOOP.extend(
        states=["asking"],
        events=["ask", "answer"],
        edges=[row("ask", "process_tools", "asking"), row("answer", "asking", "process_tools")],
        waiting={"asking"},
        dwell={"asking": None},
    )
    assert graph.lint() == []


def test_a_working_state_that_reenters_itself_needs_a_bound() -> None:
    found = broken(events=["more"], edges=[row("more", "process_tools", "process_tools", reenter=True)])
    assert found == [(LintRule.UNBOUNDED_CYCLE, "process_tools", None)]
    bound = row("more", "process_tools", "process_tools", bounded, reenter=True)
    assert LLM_LOOP.extend(events=["more"], edges=[bound]).lint() == []


def test_all_problems_stand_in_one_error() -> None:
    with pytest.raises(GraphError) as caught:
        LLM_LOOP.extend(
            name="broken",
            events=["pause", "stop"],
            without=[("update_budgets", "budget_ok")],
            edges=[row("budget_ok", "update_budgets", "await_llm")],
            dwell={"init": (0.0, "failure")},
        )
    error = caught.value
    rules = {str(problem).partition(":")[0] for problem in error.problems}
    assert rules == {LintRule.UNBOUNDED_CYCLE, LintRule.UNUSED_EVENT, LintRule.BAD_DWELL}
    number = len(error.problems)
    assert str(error).startswith(f"broken: {number} problems\n  - unbounded_cycle: ")
    assert str(error).count("\n  - ") == number


def test_a_graph_that_is_not_strict_raises_structural_faults_only_and_lists_the_rest() -> None:
    graph = LLM_LOOP.extend(events=["pause"], strict=False)
    assert [problem.rule for problem in graph.lint()] == [LintRule.UNUSED_EVENT]
    assert broken(states=["attic"], strict=False) == [(LintRule.UNREACHABLE, "attic", None)]


def test_structural_faults_hide_the_others() -> None:
    assert {rule for rule, _, _ in broken(states=["attic"], events=["pause"])} == {LintRule.UNREACHABLE}


# ---- names ----


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "printable text without spaces around it, and not empty"),
        (" ", "printable text without spaces around it"),
        (" a", "printable text without spaces around it"),
        ("a\nb", "printable text without spaces around it"),
        ("\x00", "printable text without spaces around it"),
        ("\ud800", "printable text without spaces around it"),
        ("*", "transitions uses it for every state"),
        ("=", "transitions uses it for every state, or for the same state"),
        ("_", "at least one letter or digit"),
        ("_x_", "Python keeps names between underscores for itself"),
        ("__init__", "Python keeps names between underscores for itself"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_by_one_sentence_in_every_way(name: str, why: str) -> None:
    by_library = machine()
    by_library.add_states(name)
    of_event = machine()
    of_event.add_transition(name, "ask", "done")

    ways: list[Callable[[], object]] = [
        lambda: TOY.extend(states=(name,)),
        lambda: TOY.extend(events=(name,), edges=[Edge(name, ("ask",), "done")]),
        lambda: by_library.graph,
        lambda: of_event.graph,
    ]
    for way in ways:
        with pytest.raises(GraphError) as caught:
            way()
        (problem,) = caught.value.problems
        assert re.fullmatch(r"reserved_name: the (state|event) .* cannot be used: .*", str(problem))
        assert why in str(problem)


@pytest.mark.parametrize("name", ["", " a", "*", "-"])
def test_a_typed_machine_refuses_such_a_name_too(name: str) -> None:
    made: StateMachine[str, int, None] = StateMachine("door")
    made.state(name).state("b").terminal("b").transition(name, int, "b")
    with pytest.raises(GraphError, match=f"the state {re.escape(repr(name))} cannot be used"):
        _ = made.graph


def test_the_event_state_is_refused_by_one_sentence_where_it_is_given() -> None:
    with pytest.raises(GraphError, match="the event 'state' cannot be used: transitions uses it"):
        TOY.extend(events=("state",), edges=[Edge("state", ("ask",), "done")])
    with pytest.raises(GraphError, match="the event 'state' cannot be used: transitions uses it"):
        machine().add_transition("state", "ask", "done")


def test_states_that_are_equal_and_have_other_names_are_refused() -> None:
    made: StateMachine[Any, int, None] = StateMachine("door")
    with pytest.raises(ConfigError, match="state True is equal to state 1, which is registered"):
        made.state(1).state(True)
    made.state(2).terminal(2).transition(True, int, 2)
    with pytest.raises(GraphError, match="state True is equal to the registered state 1"):
        _ = made.graph


@pytest.mark.parametrize("name", ["", " \t", "a\nb", None])
def test_a_graph_has_a_name_that_can_be_shown(name: Any) -> None:
    with pytest.raises(GraphError, match=r"the name of the graph is .*; give printable text"):
        Graph(name, S, E, S.INIT, TOY.edges, TOY.terminal, strict=False)
