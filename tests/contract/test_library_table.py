"""The table that `transitions` holds is the graph: events, transitions, conditions, callbacks and final states."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli.shipped import HOOKS, SHIPPED
from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.hooks import GENERAL, Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.typed import TypedTransition
from tests.tiers import examples


def declared(graph: Graph) -> Counter[tuple[Any, ...]]:
    """Each row of a declaration: event, source, destination (None is internal), guard."""
    return Counter(
        (event.value, source.value, None if edge.internal_in(source) else dest.value, edge.when)
        for source, event, dest, edge in graph.rows
    )


def held(machine: Machine) -> Counter[tuple[Any, ...]]:
    """Each transition of the library's table, in the same form."""
    rows = Counter[tuple[Any, ...]]()
    for name, event in machine.events.items():
        for source, transitions in event.transitions.items():
            for row in transitions:
                assert (row.source, len(row.conditions) < 2) == (source, True)
                rows[name, source, row.dest, row.conditions[0].func if row.conditions else None] += 1
    return rows


class MachineOfTypedGraph(Machine):
    """The guards of a typed graph take the event, too."""

    transition_cls = TypedTransition


def check(graph: Graph, hooks: Hooks) -> None:
    kind = MachineOfTypedGraph if graph.name in {"code_mode", "tools_mode"} else Machine
    machine = kind(graph, hooks)
    assert held(machine) == declared(graph)
    assert set(machine.events) == {edge.event for edge in graph.edges}
    assert list(machine.states) == [state.value for state in graph.states]
    assert {name for name, state in machine.states.items() if state.final} == graph.terminal
    assert machine.initial == graph.initial
    assert callbacks(machine) == hooks.by_name
    assert machine.graph is graph
    machine.table_changed()
    assert machine.graph is graph, "what is derived from an unchanged table is the declaration"


def callbacks(machine: Machine) -> dict[str, tuple[Any, ...]]:
    """Every list of callbacks of the library that is not empty, under the name of its hooks."""
    graph = machine.graph
    found: dict[str, list[Any]] = dict(
        zip(
            ("before_event", "leave_state", "enter_state", "after_event"),
            (
                machine.before_state_change,
                machine.leave_state,
                machine.enter_state,
                machine.after_state_change,
            ),
            strict=True,
        )
    )
    assert found.keys() == set(GENERAL)
    for state in graph.states:
        found[f"enter_{state.name.lower()}"] = machine.get_state(state).on_enter
        found[f"leave_{state.name.lower()}"] = machine.get_state(state).on_exit
    for event in graph.events:
        for kind in ("before", "after"):
            lists = [tuple(getattr(row, kind)) for row in machine.get_transitions(event)]
            assert len(set(lists)) <= 1, "every transition of an event has the same hooks"
            found[f"{kind}_{event.name.lower()}"] = list(lists[0]) if lists else []
    return {name: tuple(listed) for name, listed in found.items() if listed}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_librarys_table_of_a_shipped_graph_is_its_declaration(name: str) -> None:
    check(SHIPPED[name], HOOKS[name]())


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, Hooks]:
    """Graphs whose lint may find anything that does not keep them from being read, with hooks at random."""
    size = draw(st.integers(2, 6))
    states = cast("type[StrEnum]", StrEnum("S", [f"S{n}" for n in range(size)]))
    events = cast("type[StrEnum]", StrEnum("E", [f"E{n}" for n in range(4)]))
    guards = [None, *(_guard(n) for n in range(3))]
    place, event = st.sampled_from(list(states)), st.sampled_from(list(events))
    row = st.builds(
        Edge, event, st.lists(place, min_size=1, unique=True).map(tuple), place, st.sampled_from(guards)
    )
    chain = [
        Edge(next(iter(events)), (one,), other) for one, other in zip(states, list(states)[1:], strict=False)
    ]
    edges = (*chain, *draw(st.lists(row, max_size=6)))
    last = list(states)[-1]
    edges = tuple(edge for edge in edges if last not in edge.sources)
    graph = Graph("made", states, events, next(iter(states)), edges, terminal=frozenset({last}), strict=False)
    names = [f"{kind}_s{n}" for kind in ("enter", "leave") for n in range(size)]
    used = sorted({edge.event for edge in edges})
    names += [*GENERAL, *(f"{kind}_{name}" for kind in ("before", "after") for name in used)]
    chosen = draw(st.sets(st.sampled_from(names)))
    return graph, Hooks({name: (_hook(name),) for name in chosen})


def _guard(number: int) -> Any:
    def guard(ctx: object) -> bool:
        return True

    guard.__name__ = f"guard_{number}"
    return guard


def _hook(name: str) -> Any:
    async def hook(run: object) -> None: ...

    hook.__name__ = name
    return hook


@settings(deadline=None, max_examples=examples(60))
@given(graphs())
def test_the_librarys_table_of_any_graph_is_its_declaration(made: tuple[Graph, Hooks]) -> None:
    check(*made)
