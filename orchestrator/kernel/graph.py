"""A state machine as a value: a table that can be printed, drawn, linted and fingerprinted."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, get_args, get_type_hints

from orchestrator.errors import GraphError
from orchestrator.kernel import lint

if TYPE_CHECKING:
    from orchestrator.kernel.branch import Fan

Guard: TypeAlias = Callable[[Any], Any]
"""(run.ctx) -> a Verdict, or a value equal to True or False; None is False. Pure: no clock, no I/O, no `await`."""

Dwell: TypeAlias = tuple[float, StrEnum]
"""(seconds, event): the maximum duration of a state, and the event that ends it then."""

G = TypeVar("G", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def bounding(guard: G) -> G:
    """Mark a guard that must refuse eventually: a budget or progress guard. Every cycle of a graph needs one."""
    guard.bounding = True  # type: ignore[attr-defined]
    return guard


def recorded_as(name: str) -> Callable[[C], C]:
    """Name a class of a context in fingerprints as an earlier version named it, so that open runs of it continue.

    Records have the names of fields, not of classes: only the fingerprint would change. A field that was renamed says
    the same with `metadata={"fingerprint": (name, type)}`. A registered migration was rejected: it would refuse the run
    to workers of the version before as long as both are at work.
    """

    def mark(kind: C) -> C:
        setattr(kind, _RECORDED, name)
        return kind

    return mark


_RECORDED = "__recorded_as__"


@dataclass(frozen=True, slots=True)
class Edge:
    """One row of the table: `event` leads from each of `sources` to `dest` if the guard `when` allows it.

    Args:
        event: Member of the graph's events, or its value as text; other names alike.
        sources: One state, or a tuple of states.
        dest: The next state.
        when: Guard of the edge.
        reenter: Whether an edge back to its own state runs leave and enter hooks. By default such an edge is internal
            and runs only before_ and after_ hooks.

    Example:
        Edge("approve", ("waiting",), "executing", when=is_approved)
    """

    event: str
    sources: tuple[str, ...] | str
    dest: str
    when: Guard | None = None
    reenter: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.sources, str):
            object.__setattr__(self, "sources", (self.sources,))

    def internal_in(self, state: StrEnum) -> bool:
        """Return whether this edge, taken from `state`, stays there without leave and enter hooks."""
        return self.dest == state and not self.reenter


@dataclass(frozen=True, eq=False)
class Graph:
    """States, events and edges of a machine.

    Args:
        name: Name of the graph in logs, metrics and the journal.
        states: The states.
        events: The events.
        initial: The first state.
        edges: The rows of the table.
        terminal: States in which a run ends.
        rest: States in which a run of a graph without terminal states may stay.
        failure: The event that any exception fires: one event, a mapping state -> event, or None (exceptions reach
            the caller).
        waiting: States that park the run until an event is posted.
        dwell: State -> (seconds, event), or None for an explicit "no limit".
        pure: States without effects outside `run.ctx`, so that their records may be written together with the next
            one.
        context: The class of `run.ctx`, part of the fingerprint.
        strict: If False, only structural problems raise.
        branches: State -> Fan, for each state whose enter hook calls `fan_out`.

    Raises:
        GraphError: The table has problems; it lists all of them.
    """

    name: str
    states: type[StrEnum]
    events: type[StrEnum]
    initial: StrEnum
    edges: tuple[Edge, ...]
    terminal: frozenset[StrEnum] = frozenset()
    rest: frozenset[StrEnum] = frozenset()
    failure: StrEnum | Mapping[StrEnum, StrEnum] | None = None
    waiting: frozenset[StrEnum] = frozenset()
    dwell: Mapping[StrEnum, Dwell | None] | None = None
    pure: frozenset[StrEnum] = frozenset()
    context: type | None = None
    strict: bool = True
    branches: Mapping[StrEnum, Fan] = field(default_factory=dict)
    callbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Callbacks of a machine that differ from its bound hooks, by list: changes through `transitions`."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "edges", tuple(self.edges))
        if misfits := list(_misfits(self)):
            raise GraphError(str(self.name), misfits)
        states = {state.value: state for state in self.states}
        events = {event.value: event for event in self.events}
        put(self, "initial", _member(states, self.initial))
        for name in ("terminal", "rest", "waiting", "pure"):
            put(self, name, frozenset(_member(states, state) for state in getattr(self, name)))
        edges = (
            replace(
                edge,
                event=_member(events, edge.event),
                sources=tuple(_member(states, source) for source in edge.sources),
                dest=_member(states, edge.dest),
            )
            for edge in self.edges
        )
        put(self, "edges", tuple(edges))
        limits = (self.dwell or {}).items()
        put(
            self,
            "dwell",
            {_member(states, s): limit and (limit[0], _member(events, limit[1])) for s, limit in limits},
        )
        put(self, "branches", {_member(states, state): fan for state, fan in self.branches.items()})
        if isinstance(self.failure, Mapping):
            put(self, "failure", {_member(states, s): _member(events, e) for s, e in self.failure.items()})
        elif self.failure is not None:
            put(self, "failure", _member(events, self.failure))
        problems = lint.structure(self) or (lint.behaviour(self) if self.strict else [])
        if problems:
            raise GraphError(self.name, problems)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        from orchestrator.kernel.graph import mimebundle  # which imports this module

        return mimebundle(self)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.states)} states)"

    def lint(self) -> list[lint.LintProblem]:
        """Return every problem of the table, the worst first; empty for a valid graph."""
        return lint.structure(self) or lint.behaviour(self)

    def extend(
        self,
        *,
        name: str | None = None,
        states: Iterable[str] = (),
        events: Iterable[str] = (),
        edges: Iterable[Edge] = (),
        without: Iterable[tuple[str, str]] = (),
        **changes: Any,
    ) -> Graph:
        """Return a graph with further states, events and edges; `without` removes (source, event) rows first.

        States and events may be given as plain text. `changes` replaces any other field. Raises GraphError for every
        problem, including an unknown row to remove and an existing state or event to add.
        """
        states, events, dropped = tuple(states), tuple(events), set(without)
        problems = [*taken_names("state", self.states, states), *taken_names("event", self.events, events)]
        for kind, names in (("state", states), ("event", events)):
            problems += lint.unusable_names(kind, {one.upper(): one for one in names})
        if missing := dropped - {(source, event) for source, event, _, _ in self.rows}:
            told = (f"no row {event!r} from {source!r} to remove" for source, event in sorted(missing))
            problems += [lint.LintProblem(lint.LintRule.UNKNOWN_NAME, text) for text in told]
        if problems:
            raise GraphError(self.name, problems)
        kept = [
            Edge(e.event, (s,), e.dest, e.when, e.reenter)
            for s, _, _, e in self.rows
            if (s, e.event) not in dropped
        ]
        return replace(
            self,
            name=name or self.name,
            states=_grown(self.states, states),
            events=_grown(self.events, events),
            edges=(*kept, *edges),
            **changes,
        )

    @cached_property
    def rows(self) -> tuple[tuple[StrEnum, StrEnum, StrEnum, Edge], ...]:
        """Every (source, event, dest, edge), in the order of the table."""
        states, events = self.states, self.events
        return tuple(
            (states(source), events(edge.event), states(edge.dest), edge)
            for edge in self.edges
            for source in edge.sources
        )

    def edges_from(self, state: StrEnum) -> Iterable[Edge]:
        """Yield the edges that leave or stay in `state`, in the order of the table."""
        return (edge for edge in self.edges if state in edge.sources)

    def failure_event(self, state: StrEnum) -> StrEnum | None:
        """Return the event that an error in `state` fires, if its edges are certain to leave the state.

        Its last edge must have no guard, and none may be internal: a failure event that can be refused would be fired
        again and again.
        """
        event = self.failure.get(state) if isinstance(self.failure, Mapping) else self.failure
        edges = [edge for edge in self.edges_from(state) if edge.event == event]
        sure = any(edge.when is None for edge in edges) and not any(edge.internal_in(state) for edge in edges)
        return event if sure else None

    def dwell_of(self, state: StrEnum) -> Dwell | None:
        """Return (seconds, event) of a state, or None without a limit."""
        return (self.dwell or {}).get(state)

    def is_working(self, state: StrEnum) -> bool:
        """Return whether a state does work, so that it needs an `enter_` hook."""
        return state not in self.terminal and state not in self.waiting and state not in self.rest

    @cached_property
    def failure_events(self) -> dict[str, StrEnum | None]:
        """The failure event of each state."""
        return {state.value: self.failure_event(state) for state in self.states}

    @cached_property
    def time_limits(self) -> dict[str, float]:
        """State -> maximum seconds that a run may stay in it, for each state with a limit."""
        return {state.value: limit[0] for state in self.states if (limit := self.dwell_of(state))}

    def describe(self) -> dict[str, Any]:
        """Return the whole table as plain data, as `graph --format json` prints it."""
        changed = {"callbacks": {slot: list(names) for slot, names in sorted(self.callbacks.items())}}
        return {
            "name": self.name,
            "initial": self.initial.value,
            "states": [state.value for state in self.states],
            "events": [event.value for event in self.events],
            "edges": [
                {
                    "event": event.value,
                    "source": source.value,
                    "dest": dest.value,
                    "guard": guard_name(edge.when),
                    "internal": edge.internal_in(source),
                }
                for source, event, dest, edge in self.rows
            ],
            "terminal": sorted(self.terminal),
            "rest": sorted(self.rest),
            "waiting": sorted(self.waiting),
            "pure": sorted(self.pure),
            "failure": {
                state.value: event.value for state in self.states if (event := self.failure_event(state))
            },
            "dwell": {
                state.value: None if limit is None else [limit[0], limit[1].value]
                for state, limit in sorted((self.dwell or {}).items())
            },
            **({"branches": fans} if (fans := self._described_branches()) else {}),
            **(changed if self.callbacks else {}),
        }

    def _described_branches(self) -> dict[str, Any]:
        return {
            state.value: {"max": fan.max, "concurrency": fan.concurrency, "join": str(fan.join)}
            for state, fan in sorted(self.branches.items())
        }

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of table and context schema.

        A run with another fingerprint is not resumed without a migration.
        """
        table = self.describe()
        del table["dwell"], table["pure"]  # these fields do not change the meaning of records
        if self.branches:
            table["branches"] = {state: fan["join"] for state, fan in table["branches"].items()}
        text = json.dumps({"table": table, "context": _schema(self.context)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _member(members: Mapping[str, StrEnum], name: str) -> str:
    """Return the graph's own member with that value; an unknown name is returned unchanged, for the lint."""
    return members.get(name, name)


def _misfits(graph: Graph) -> Iterator[object]:
    """Yield the faults that make the table unreadable, before any lint."""
    for name in ("states", "events"):
        names: object = getattr(graph, name)
        if not (isinstance(names, type) and issubclass(names, StrEnum)):
            yield f"{name} is {names!r:.60}; give a class of StrEnum"
        else:
            yield from lint.unusable_names(name[:-1], {member.name: member.value for member in names})
    given: object = graph.name
    if not isinstance(given, str) or not given.isprintable() or not given.strip():
        yield f"the name of the graph is {given!r:.60}; give printable text"
    rows: tuple[object, ...] = graph.edges
    for row in rows:
        if not isinstance(row, Edge):
            yield f"an edge is {row!r:.60}; give Edge(event, sources, dest)"
            continue
        guard: object = row.when
        if guard is not None and not callable(guard):
            yield f"the guard of edge {row.event!r} is {guard!r:.60}; give a function of run.ctx"


def guard_name(guard: Guard | None) -> str | None:
    """Return the name of a guard in tables, logs and metrics."""
    return None if guard is None else str(getattr(guard, "__name__", type(guard).__name__))


def taken_names(kind: str, enum: type[StrEnum], names: Iterable[str]) -> Iterator[lint.LintProblem]:
    """Yield a problem for each new name that exists already; names are compared case-insensitively."""
    known = {member.name: member.value for member in enum} | {
        member.value.upper(): member.value for member in enum
    }
    for name in names:
        before = known.get(name.upper())
        if before is not None:
            message = f"{kind} {name!r} exists already, as {before!r}; choose another name"
            yield lint.LintProblem(lint.LintRule.TAKEN_NAME, message)
        known[name.upper()] = name


def _grown(enum: type[StrEnum], names: Iterable[str]) -> type[StrEnum]:
    members = {member.name: member.value for member in enum}
    return enum_of(enum.__name__, members | {name.upper(): name for name in names})


def enum_of(name: str, members: Mapping[str, str]) -> type[StrEnum]:
    """Return an enum with these members: name -> value."""
    functional: Any = StrEnum  # mypy wants a literal name
    return cast("type[StrEnum]", functional(name, members))


def _schema(context: object) -> dict[str, dict[str, str]]:
    """Return class -> field -> type as written, for a dataclass and every dataclass in its fields."""
    names: dict[str, str] = {}
    found: dict[str, type] = {}
    todo: list[object] = [context]
    while todo:
        kind = todo.pop()
        todo += get_args(kind)
        if not isinstance(kind, type):
            continue
        name = kind.__dict__.get(_RECORDED)
        if name is not None:
            names[kind.__name__] = name
        if is_dataclass(kind) and (name or kind.__qualname__) not in found:
            found[name or kind.__qualname__] = kind
            hints = _hints(kind)
            todo += (hints[item.name] for item in fields(kind) if _has_part(item) and item.name in hints)
    return {
        name: dict(_written_field(item, names) for item in fields(cast("Any", kind)) if _has_part(item))
        for name, kind in found.items()
    }


def _has_part(item: Field[Any]) -> bool:
    """Return whether a field is part of fingerprints. Its metadata excludes it if older records may lack it."""
    return item.metadata.get("fingerprint", item.name) is not None


def _written_field(item: Field[Any], names: Mapping[str, str]) -> tuple[str, str]:
    """Return name and type of a field, with recorded names of classes.

    If its metadata has the name and type of an earlier form that is still read, return those.
    """
    known: tuple[str, str] | None = item.metadata.get("fingerprint")
    kind: object = item.type
    written = kind.__name__ if isinstance(kind, type) else str(kind)
    return known or (item.name, re.sub(r"\w+", lambda word: names.get(word[0], word[0]), written))


def _hints(kind: type) -> dict[str, object]:
    try:
        return get_type_hints(kind)
    except NameError:  # a type that only type checkers import: its parts are unknown
        return {}


_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TAKEN = (
    *(
        "acc",
        "class",
        "click",
        "default",
        "direction",
        "divider",
        "hide",
        "href",
        "note",
        "root",
        "scale",
        "state",
    ),
    *("style", "constructor", "hasown", "isprototype", "propertyis", "tolocale", "tostring", "valueof"),
)
"""Beginnings of words that Mermaid reads as its own, also within a longer word, and those of JavaScript's objects."""
_MARKUP = re.compile(r"(?<= ) |(?<![^\W_])_|_(?![^\W_])|[^\w ,]|d(?=irection )", re.IGNORECASE)
"""Characters of a label that are written as entities. `direction LR` in any place of a line is a statement."""


def mermaid(graph: Graph, current: str | None = None) -> str:
    """Return a mermaid state diagram; `current` is drawn filled.

    A state whose name is no word, or a word of Mermaid's own, has another id there and its name as the label.
    """
    ids = _mermaid_ids([state.value for state in graph.states])
    lines = ["stateDiagram-v2"]
    lines += (f'    state "{_mermaid_text(name)}" as {key}' for name, key in ids.items() if key != name)
    lines.append(f"    [*] --> {ids[graph.initial.value]}")
    arrows: dict[tuple[str, str, int], list[str]] = {}
    for number, (source, event, dest, edge) in enumerate(graph.rows):
        guard = f" [{_mermaid_text(guard_name(edge.when) or '')}]" if edge.when else ""
        # Mermaid shows the last one of several arrows from a state to itself.
        arrow = (ids[source.value], ids[dest.value], -1 if source == dest else number)
        arrows.setdefault(arrow, []).append(f"{_mermaid_text(event.value)}{guard}")
    lines += (f"    {source} --> {dest}: {', '.join(labels)}" for (source, dest, _), labels in arrows.items())
    lines += [f"    {ids[state]} --> [*]" for state in sorted(graph.terminal)]
    lines += [
        f"    note right of {ids[state]}: {_mermaid_text(str(fan))}" for state, fan in graph.branches.items()
    ]
    if current is not None:
        lines += ["    classDef current fill:#2a9d4a,color:#fff", f"    class {ids[current]} current"]
    return "\n".join(lines) + "\n"


def _mermaid_ids(names: Sequence[str]) -> dict[str, str]:
    """Return name -> the id of its state: the name itself if Mermaid reads it as one."""
    known = {name: name for name in names if _WORD.fullmatch(name) and not name.lower().startswith(_TAKEN)}
    ids: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        key = known.get(name, f"q{number}")
        while name not in known and key in known:
            key += "_"
        ids[name] = key
    return ids


def _mermaid_text(text: str) -> str:
    """Return a label that Mermaid shows as this text: characters of its syntax, HTML and Markdown become entities."""
    return _MARKUP.sub(lambda found: f"#{160 if found[0] == ' ' else ord(found[0])};", text)


def dot(graph: Graph, current: str | None = None) -> str:
    """Return a graphviz digraph; terminal states have a double border, `current` is filled."""
    lines = [
        f"digraph {_dot_text(graph.name)} {{",
        "    rankdir=LR;",
        '    node [shape=box, style="rounded"];',
    ]
    for state in graph.states:
        name = _dot_text(state.value)
        looks = [f"label={name}"] if "%" in name else []  # without it, Graphviz shows a number in its place
        if state in graph.branches:
            looks = [f"label={_dot_text(state.value, str(graph.branches[state]))}"]
        looks += ["peripheries=2"] if state in graph.terminal else []
        looks += ['style="rounded,filled"', 'fillcolor="#9be3b0"'] if state.value == current else []
        suffix = f" [{', '.join(looks)}]" if looks else ""
        lines.append(f"    {name}{suffix};")
    for source, event, dest, edge in graph.rows:
        guard = (f"[{guard_name(edge.when)}]",) if edge.when else ()
        label = _dot_text(event.value, *guard)
        lines.append(f"    {_dot_text(source.value)} -> {_dot_text(dest.value)} [label={label}];")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_text(*lines: str) -> str:
    """Return lines as a quoted string of Graphviz."""
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines)
    return '"' + "\\n".join(escaped) + '"'


def table(graph: Graph, current: str | None = None) -> str:
    """Return the rows as aligned text: source, event, destination, guard; `current` is marked with a star."""

    def marked(state: str) -> str:
        return f"* {state}" if state == current else state

    head = ("from", "event", "to", "only when")
    rows = [
        (
            marked(source.value),
            event.value,
            marked(dest.value),
            guard_name(edge.when) or "",
        )
        for source, event, dest, edge in graph.rows
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(4)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, tuple("-" * width for width in widths), *rows]
    ]
    lines += [f"{state}: {fan}" for state, fan in graph.branches.items()]
    return "\n".join(lines) + "\n"


def as_json(graph: Graph, current: str | None = None) -> str:
    """Return the whole table and its fingerprint as JSON."""
    described = {**graph.describe(), "fingerprint": graph.fingerprint}
    if current is not None:
        described["current"] = current
    return json.dumps(described, indent=2) + "\n"


FORMATS: Mapping[str, Callable[[Graph, str | None], str]] = {
    "mermaid": mermaid,
    "dot": dot,
    "table": table,
    "json": as_json,
}
"""Format name -> renderer, as offered by `orchestrator graph --format`."""

DRAWINGS: dict[str, Callable[[Graph], str]] = {}
"""MIME type -> renderer for notebooks. The kernel draws nothing: `orchestrator.drawing.notebook` adds SVG."""


def mimebundle(graph: Graph) -> dict[str, str]:
    """Return the representations of a graph in a notebook: its table as text, and its drawings."""
    return {"text/plain": table(graph), **{mime: draw(graph) for mime, draw in DRAWINGS.items()}}
