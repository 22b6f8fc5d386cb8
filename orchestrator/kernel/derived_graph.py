"""A graph from the table of a machine, for lint, diagrams, coverage and fingerprints after a change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from orchestrator.errors import GraphError
from orchestrator.kernel.graph import Edge, Graph, enum_of, taken_names
from orchestrator.kernel.lint import unusable_names
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
        states=_same_or_new(declared, "state", states),
        events=_same_or_new(declared, "event", [*unused, *(row.event.name for row in rows)]),
        edges=tuple(_edge(row) for row in rows),
        terminal=frozenset(name for name, state in states.items() if state.final),  # type: ignore[misc]  # names
        callbacks=callbacks,
    )


def table_changes(before: Graph, after: Graph) -> tuple[str, ...]:
    """Return the differences of two tables: a line for each part that was added or removed."""
    if before is after:
        return ()
    old, new = _parts(before), _parts(after)
    changes = [f"removed {part}" for part in old if part not in new]
    changes += (f"added {part}" for part in new if part not in old)
    if not changes and before.fingerprint != after.fingerprint:
        changes.append("other order of edges")
    return tuple(changes)


def missing_changes(recorded: Sequence[str], here: Sequence[str]) -> str:
    """Return how the table of a stored run and the table here differ by their changes; "" if they do not."""
    parts = {
        "its table has changes that are missing here": [one for one in recorded if one not in here],
        "its table lacks changes that were made here": [one for one in here if one not in recorded],
    }
    return "; ".join(f"{text}: {', '.join(changes)}" for text, changes in parts.items() if changes)


def _parts(graph: Graph) -> dict[str, None]:
    """Return a line for each part of a table, in its order."""
    table = graph.describe()
    parts = [f"initial state {table['initial']!r}"]
    for kind in ("state", "event"):
        parts += (f"{kind} {name!r}" for name in table[f"{kind}s"])
    for edge in table["edges"]:
        guard = f" if {edge['guard']}" if edge["guard"] else ""
        stays = ", internal" if edge["internal"] else ""
        parts.append(f"edge {edge['event']!r} from {edge['source']!r} to {edge['dest']!r}{guard}{stays}")
    for kind in ("terminal", "rest", "waiting"):
        parts += (f"{kind} state {name!r}" for name in table[kind])
    parts += (f"failure event {event!r} of {state!r}" for state, event in table["failure"].items())
    parts += (f"callbacks {', '.join(names)} in {slot}" for slot, names in table.get("callbacks", {}).items())
    return dict.fromkeys(parts)


def _same_or_new(declared: Graph, kind: str, names: Iterable[str]) -> type[StrEnum]:
    """Return the states or events of the declared graph if these are the same, else new ones.

    Raises GraphError for names that cannot be used.
    """
    enum = declared.states if kind == "state" else declared.events
    found = dict.fromkeys(names)
    members = {member.value: member.name for member in enum}
    if found.keys() == members.keys():
        return enum
    kept = {members[name]: name for name in members if name in found}
    added = [name for name in found if name not in members]
    problems = [
        *unusable_names(kind, {name.upper(): name for name in added}),
        *taken_names(kind, enum, added),
    ]
    if problems:
        raise GraphError(declared.name, problems)
    return enum_of(enum.__name__, kept | {name.upper(): name for name in added})


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
