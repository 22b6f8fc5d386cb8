from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import GraphError
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.graph import Edge, Graph, bounding, guard_name, recorded_as
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.machine import Machine
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from tests.kernel.toy import TOY, E, S, ToyRun, hooks, new_run

if TYPE_CHECKING:
    from collections.abc import Hashable


def test_names_given_as_text_become_the_graphs_own_members() -> None:
    graph = TOY.extend(
        waiting={"ask"}, dwell={"ask": (5.0, "late"), "work": None}, failure={s.value: "fail" for s in S}
    )
    members = [*graph.waiting, *graph.terminal, *(graph.dwell or {}), graph.initial, *graph.pure]
    assert all(type(member) is graph.states for member in members)
    assert graph.dwell_of(graph.states("ask")) == (5.0, graph.events("late"))
    assert type(graph.failure_event(graph.states("work"))) is graph.events


def test_failure_may_depend_on_the_state() -> None:
    graph = replace(TOY, failure={S.WORK: E.FAIL, S.ASK: E.LATE}, strict=False)
    assert [graph.failure_event(state) for state in (S.WORK, S.ASK, S.CHECK)] == [E.FAIL, E.LATE, None]


def test_a_guard_is_named_by_its_function() -> None:
    class Asked:
        def __call__(self, ctx: object) -> bool:
            return True

    @bounding
    def fits(ctx: object) -> bool:
        return True

    assert [guard_name(guard) for guard in (None, fits, Asked())] == [None, "fits", "Asked"]


def test_description_is_plain_data() -> None:
    described = LLM_LOOP.describe()
    assert json.loads(json.dumps(described)) == described
    assert all(type(event) is str for event in described["failure"].values())


# ---- fingerprint ----


def fingerprint(graph: Graph = TOY, **changes: Any) -> str:
    return graph.extend(**changes).fingerprint


def test_the_same_table_has_the_same_fingerprint() -> None:
    assert fingerprint() == TOY.fingerprint == replace(TOY).fingerprint
    assert len(TOY.fingerprint) == 64
    assert fingerprint(LLM_LOOP) == LLM_LOOP.fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"states": ["more"], "edges": [Edge(E.START, (S.ASK,), "more"), Edge(E.FINISH, ("more",), S.DONE)]},
        {"edges": [Edge(E.ANSWER, (S.WORK,), S.CHECK)]},
        {"without": [("ask", "note")]},
        {"waiting": (), "rest": (S.ASK,)},
        {"failure": None},
        {"edges": [Edge(E.NOTE, (S.ASK,), S.ASK, reenter=True)], "without": [("ask", "note")]},
        {"edges": [Edge(E.ASKED, (S.CHECK,), S.ASK, len)], "without": [("check", "asked")]},
    ],
    ids=["name", "state", "edge", "row", "roles", "failure", "reenter", "guard"],
)
def test_it_changes_with_the_topology(changes: dict[str, Any]) -> None:
    assert fingerprint(strict=False, **changes) != TOY.fingerprint


def test_it_does_not_change_with_time_limits_or_with_how_records_are_written() -> None:
    assert fingerprint(dwell={S.ASK: None}) == TOY.fingerprint
    assert fingerprint(pure=()) == TOY.fingerprint


@dataclass
class Inner:
    number: int = 0


@dataclass
class Item:
    number: int = 0


@dataclass
class Outer:
    iteration: int = 0
    inner: Inner = field(default_factory=Inner)
    many: list[Item] = field(default_factory=list)


@pytest.mark.parametrize("part", [Outer, Inner, Item])
def test_it_changes_with_the_schema_of_the_context_and_of_what_is_in_it(
    part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(context=Outer)
    assert before != TOY.fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(next(iter(part.__dataclass_fields__.values())), "type", "float")
        assert fingerprint(context=Outer) != before
    assert fingerprint(context=Outer) == before
    assert fingerprint(context=None) != before


def test_the_class_of_a_field_outside_of_fingerprints_is_outside_too() -> None:
    @dataclass
    class Without:
        iteration: int = 0

    @dataclass
    class With:
        iteration: int = 0
        memo: Inner | None = field(default=None, metadata={"fingerprint": None})

    With.__qualname__ = Without.__qualname__
    assert fingerprint(context=With) == fingerprint(context=Without)


def test_a_renamed_class_that_says_its_recorded_name_leaves_the_fingerprint_as_it_is() -> None:
    def context(part: type, name: str) -> str:
        whole: type = dataclass(
            type("Whole", (), {"__annotations__": {"parts": f"dict[str, {name}]", "part": name}})
        )
        globals()[name] = part
        try:
            whole.__module__ = __name__
            return fingerprint(context=whole)
        finally:
            del globals()[name]

    def part(name: str) -> type:
        return dataclass(type(name, (), {"__annotations__": {"number": int}, "__qualname__": name}))

    before = context(part("Spent"), "Spent")
    assert context(recorded_as("Spent")(part("RunUsage")), "RunUsage") == before
    assert context(part("RunUsage"), "RunUsage") != before

    @recorded_as("Outer")
    class Base:
        pass

    assert fingerprint(context=dataclass(type("Below", (Base,), {}))) != fingerprint(
        context=dataclass(Base)
    ), "the recorded name of a class is not that of the classes derived from it"


def test_a_context_that_names_what_only_type_checkers_import_has_a_fingerprint() -> None:
    @dataclass
    class Odd:
        iteration: int
        key: Hashable

    assert fingerprint(context=Odd) != fingerprint(context=None)


# ---- extend: add a phase ----


async def test_a_phase_is_added_without_touching_the_table_it_is_added_to() -> None:
    before = TOY.describe()
    graph = TOY.extend(
        name="toy_with_review",
        states=["review"],
        events=["reviewed"],
        without=[("check", "finish")],
        edges=[
            Edge(E.FINISH, (S.CHECK,), "review"),
            Edge("reviewed", ("review",), S.DONE),
            Edge(E.FAIL, ("review",), S.LOST),
        ],
    )

    async def enter_review(run: ToyRun) -> Any:
        return "reviewed"

    machine = Machine(graph, collect(graph, hooks(), SimpleNamespace(enter_review=enter_review)))
    run = new_run(machine)
    await Driver(machine).drive(run)
    assert (run.state, run.seq) == (S.DONE, 4)
    assert TOY.describe() == before
    assert "review" not in [state.value for state in TOY.states]


def test_a_row_is_dropped_from_one_source_only() -> None:
    graph = TOY.extend(without=[("check", "fail")], strict=False)
    assert graph.failure_event(graph.states("check")) is None
    assert graph.failure_event(graph.states("work")) == "fail"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"states": ["ask"]}, "state 'ask' exists already, as 'ask'"),
        ({"states": ["Ask"]}, "state 'Ask' exists already, as 'ask'"),
        ({"events": ["note"]}, "event 'note' exists already, as 'note'"),
        ({"states": ["more", "more"]}, "state 'more' exists already, as 'more'"),
    ],
)
def test_a_name_that_is_there_already_is_refused_not_passed_over(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError) as caught:
        TOY.extend(strict=False, **changes)
    assert [str(problem) for problem in caught.value.problems] == [f"taken_name: {said}; choose another name"]


def test_everything_wrong_with_an_extension_stands_in_one_error() -> None:
    with pytest.raises(GraphError, match="2 problems"):
        TOY.extend(states=["ask"], without=[("ask", "nothing")])


@pytest.mark.parametrize("source", ["check", S.CHECK, ("check",), [S.CHECK]])
def test_a_single_source_may_be_given_alone(source: Any) -> None:
    graph = TOY.extend(without=[("check", "finish")], edges=[Edge("finish", source, "done")])
    assert [(row[0], row[2]) for row in graph.rows if row[1] == "finish"] == [("check", "done")]
    assert graph.edges[-1].sources == (graph.states("check"),)


def test_the_failure_event_may_be_given_by_its_name_for_all_states_or_for_each() -> None:
    by_state: Any = {state.value: "fail" for state in TOY.states if state is not S.LOST}
    name: Any = "fail"
    assert replace(TOY, failure=name).failure is E.FAIL
    assert replace(TOY, failure=by_state).failure == dict.fromkeys(map(S, by_state), E.FAIL)


def test_an_edge_from_a_source_that_is_not_declared_is_one_problem() -> None:
    with pytest.raises(GraphError, match="1 problem\n  - unknown_name: edge source 'nowhere'"):
        LLM_LOOP.extend(edges=[Edge("budget_ok", "nowhere", "init")])


NO_GUARD: Any = True
MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"states": ["a", "b"]}, "1 problem\n  - states is ['a', 'b']; give a class of StrEnum"),
    ({"events": Enum("E", "GO")}, "1 problem\n  - events is <enum 'E'>; give a class of StrEnum"),
    ({"edges": [("go", "a", "b")]}, "an edge is ('go', 'a', 'b'); give Edge(event, sources, dest)"),
    (
        {"edges": [Edge("finish", "check", "done", NO_GUARD)]},
        "the guard of edge 'finish' is True; give a function",
    ),
]


@pytest.mark.parametrize(("given", "said"), MISFITS)
def test_what_is_no_table_is_said_when_it_is_made(given: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError) as caught:
        replace(TOY, **given)
    assert said in str(caught.value)


def test_a_graph_shows_as_one_short_line() -> None:
    assert repr(LLM_LOOP) == f"Graph('llm_loop', {len(LLM_LOOP.states)} states)"
