"""A graph from the table of a machine, for lint, diagrams, coverage and fingerprints after a change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from orchestrator.kernel.graph import Edge, Graph, enum_of
from orchestrator.kernel.table import MachineCondition, MachineState, MachineTransition, conditions_name


def derive(
    declared: Graph,
    initial: Any,
    states: Mapping[str, MachineState],
    transitions: Iterable[MachineTransition],
    callbacks: Mapping[str, tuple[str, ...]],
) -> Graph:
    """Return a declared graph with the states and transitions of a table. Raises GraphError for lint problems.

    `callbacks` are those that differ from the bound hooks; they change the fingerprint.
    """
    rows = sorted(transitions, key=lambda transition: transition.number)
    used = {edge.event for edge in declared.edges}
    unused = [event.value for event in declared.events if event not in used]
    return replace(
        declared,
        initial=initial,
        states=_same_or_new(declared.states, states),
        events=_same_or_new(declared.events, [*unused, *(row.event.name for row in rows)]),
        edges=tuple(_edge(row) for row in rows),
        terminal=frozenset(name for name, state in states.items() if state.final),  # type: ignore[misc]  # names
        callbacks=callbacks,
    )


def _same_or_new(enum: type[StrEnum], names: Iterable[str]) -> type[StrEnum]:
    found = dict.fromkeys(names)
    members = {member.value: member.name for member in enum}
    if found.keys() == members.keys():
        return enum
    kept = {members[name]: name for name in members if name in found}
    return enum_of(enum.__name__, kept | {name.upper(): name for name in found if name not in members})


def _edge(row: MachineTransition) -> Edge:
    source = row.source
    dest = source if row.dest is None else row.dest
    return Edge(row.event.name, (source,), dest, _guard(row.conditions), reenter=row.dest == source)


class _AllOf:
    """Several conditions of one transition as one guard."""

    def __init__(self, conditions: tuple[MachineCondition, ...]) -> None:
        self.conditions = conditions
        self.__name__ = conditions_name(conditions) or ""
        self.bounding = any(c.target and getattr(c.func, "bounding", False) for c in conditions)

    def __call__(self, *given: Any) -> bool:
        return all(condition.allows(condition.function(*given)) for condition in self.conditions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _AllOf):
            return NotImplemented
        mine, theirs = ([(c.func, c.target) for c in one.conditions] for one in (self, other))
        return mine == theirs

    def __hash__(self) -> int:
        return hash(self.__name__)


def _guard(conditions: Iterable[MachineCondition]) -> Any:
    """Return the guard for the conditions of a transition: None, the single guard, or all of them."""
    listed = tuple(conditions)
    if not listed:
        return None
    if len(listed) == 1 and listed[0].target and callable(listed[0].func):
        return listed[0].func
    return _AllOf(listed)
