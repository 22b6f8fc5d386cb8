"""What a typed machine is compiled to: a Graph of names, and a Machine that calls its guards, actions and hooks."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, NamedTuple, cast

from orchestrator.errors import EventError, GraphError, InvalidEvent, UnknownEvent
from orchestrator.kernel.graph import Edge, Graph, guard_name
from orchestrator.kernel.hooks import Hook, Hooks, is_async
from orchestrator.kernel.lint import LintProblem, LintRule
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.kernel.table import CompiledTransition, MachineTransition


class Row(NamedTuple):
    """One `transition()`."""

    source: Hashable
    event: type
    dest: Hashable
    guard: Callable[..., Any] | None
    action: Callable[..., Any] | None


class Place(NamedTuple):
    """One `state()`."""

    on_enter: Callable[..., Any] | None = None
    on_exit: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """All that was registered."""

    name: str
    places: Mapping[Hashable, Place]
    terminal: frozenset[Hashable]
    rows: Sequence[Row]


# ---- names ----


def state_name(state: Hashable) -> str:
    """Return the name of a state in tables, logs and metrics: a text value, else the member's name.

    Example:
        >>> import enum
        >>> state_name(enum.Enum("S", "INIT DONE").INIT)
        'INIT'
    """
    if isinstance(state, str):
        return str(state.value if isinstance(state, Enum) else state)
    if isinstance(state, Enum):
        return state.value if isinstance(state.value, str) else state.name
    return str(state)


def event_names(rows: Iterable[Row]) -> dict[type, str]:
    """Return the name of each event: that of its class; with the module in front where two share it."""
    kinds = list(dict.fromkeys(row.event for row in rows))
    names = [kind.__name__ for kind in kinds]
    return {
        kind: name if names.count(name) == 1 else f"{kind.__module__}.{kind.__qualname__}"
        for kind, name in zip(kinds, names, strict=True)
    }


_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|\W+")


def _enum(name: str, values: Iterable[str]) -> type[StrEnum]:
    """Return an enum whose members are named as hooks name them: LLMResponseReceived is LLM_RESPONSE_RECEIVED."""
    members = {_BORDER.sub("_", value).strip("_").upper(): value for value in values}
    functional: Any = StrEnum  # mypy wants a literal name
    return cast("type[StrEnum]", functional(name, members))


# ---- the graph ----


def graph_of(parts: Parts, *, declared: Hashable | None, asked: Hashable | None) -> Graph:
    """Return the table as a Graph. Raises GraphError with every structural fault.

    Begins in `declared`; without one in the first state, `asked` before all others, that leads to every state: in
    which order states are registered, and where one run begins, changes nothing.
    """
    names = {state: state_name(state) for state in parts.places}
    problems = list(_clashes(names.values()))
    for role, state in (("initial", declared), ("initial state", asked)):
        if state is not None and state not in names:
            known = ", ".join(sorted(map(repr, names.values())))
            text = f"{role} {state_name(state)!r} is not registered; registered: {known or 'none'}"
            problems.append(LintProblem(LintRule.UNKNOWN_NAME, text))
    if not names:
        problems.append(LintProblem(LintRule.NO_END, "no state is registered"))
    if problems:
        raise GraphError(parts.name, problems)
    root = declared if declared is not None else _root(parts, asked)
    events = event_names(parts.rows)
    edges = tuple(
        Edge(events[row.event], (state_name(row.source),), state_name(row.dest), row.guard, reenter=True)
        for row in parts.rows
    )
    states = _enum("State", names.values())
    ends = cast("frozenset[StrEnum]", frozenset(map(state_name, parts.terminal)))
    return Graph(
        name=parts.name,
        states=states,
        events=_enum("Event", events.values()),
        initial=states(names[root]),
        terminal=ends,
        rest=frozenset() if ends else frozenset(states),  # without a terminal state the source ends the run
        edges=edges,
        strict=False,
    )


def _clashes(names: Iterable[str]) -> Iterator[LintProblem]:
    seen: dict[str, str] = {}
    for name in names:
        folded = _BORDER.sub("_", name).strip("_").upper()
        if folded in seen:
            yield LintProblem(LintRule.TAKEN_NAME, f"two states are named {name!r}")
        seen[folded] = name


def _root(parts: Parts, asked: Hashable | None) -> Hashable:
    """Return the state that a run begins in when nobody says: one from which every state can be reached."""
    first = next(iter(parts.places)) if asked is None else asked
    onward: dict[Hashable, set[Hashable]] = {}
    for row in parts.rows:
        onward.setdefault(row.source, set()).add(row.dest)
    candidates = [first, *(state for state in parts.places if state != first)]
    wanted = set(parts.places)
    return next((state for state in candidates if _reached(state, onward) >= wanted), first)


def _reached(start: Hashable, onward: Mapping[Hashable, set[Hashable]]) -> set[Hashable]:
    found, todo = {start}, [start]
    while todo:
        fresh = onward.get(todo.pop(), set()) - found
        found |= fresh
        todo += fresh
    return found


def gaps(graph: Graph) -> Iterator[LintProblem]:
    """Yield a problem for each lone guarded edge: where its guard says no the event is unhandled (L4 of the seed)."""
    groups: dict[tuple[StrEnum, StrEnum], list[Edge]] = {}
    for source, event, _, edge in graph.rows:
        groups.setdefault((source, event), []).append(edge)
    for (source, event), edges in groups.items():
        if len(edges) == 1 and edges[0].when is not None:
            message = (
                f"{event.value!r} in {source.value!r}: its only edge is guarded; add one without a guard"
            )
            yield LintProblem(LintRule.GUARD_GAP, message, source, event)


# ---- the machine ----

_ANSWERS: ContextVar[dict[int, Any]] = ContextVar("orchestrator_typed_answers")


class _Asked:
    """A guard that is asked beforehand, because it is async or stands beside one that is; the kernel's ask nothing."""

    def __init__(self, guard: Callable[..., Any]) -> None:
        self.guard = guard
        self.__name__ = guard_name(guard)

    def __call__(self, _event: object, _context: object) -> Any:
        """Return what was answered. Raises what was raised."""
        answer = _ANSWERS.get()[id(self)]
        if isinstance(answer, Exception):
            raise answer
        return answer


class TypedMachine(Machine):
    """A compiled typed machine. `candidates` says which steps an event may take, in the order of registration."""

    def __init__(self, graph: Graph, parts: Parts, hooks: Hooks | None = None) -> None:
        self._parts = parts
        self._from: dict[str, list[tuple[type, MachineTransition]]] = {}
        self.awaited = {
            state_name(row.source) for row in parts.rows if row.guard is not None and is_async(row.guard)
        }
        """States from which an async guard leads."""
        self.known: dict[tuple[str, type], tuple[CompiledTransition, ...]] = {}
        """What `candidates` has found."""
        super().__init__(graph, hooks or Hooks({}))
        self.objects = {state_name(state): state for state in parts.places}
        """Name -> the state as it was registered."""

    def table_changed(self) -> None:
        """Drop every cache."""
        super().table_changed()
        self.known = {}

    def _build(self, graph: Graph, hooks: Hooks) -> None:
        """Add the callables of the typed machine: on_exit and action come before all hooks, as in its contract."""
        super()._build(graph, hooks)
        places = {state_name(state): place for state, place in self._parts.places.items()}
        for name, place in places.items():
            if place.on_enter is not None:
                self.get_state(name).on_enter.insert(0, _of_context("on_enter", place.on_enter))
        rows = sorted(self.get_transitions(), key=lambda transition: transition.number)
        for number, transition in enumerate(rows):
            own: list[Hook] = []
            leaving = places.get(transition.source, Place()).on_exit
            if leaving is not None and transition.dest is not None:
                own.append(_of_context("on_exit", leaving))
            if number < len(self._parts.rows):  # else an edge that was added to the graph
                own += self._typed(transition, self._parts.rows[number])
            transition.before[:0] = own

    def _typed(self, transition: MachineTransition, row: Row) -> list[Hook]:
        """Give a transition the guard of its row; return the row's action as a hook."""
        if row.guard is not None and transition.source in self.awaited:
            transition.conditions = [self.transition_cls.condition_cls(_Asked(row.guard))]
        self._from.setdefault(transition.source, []).append((row.event, transition))
        return [] if row.action is None else [_of_event("action", row.action)]

    def candidates(self, state: str, kind: type) -> tuple[CompiledTransition, ...]:
        """Return the steps for an event of this class, in the order of registration; none where it leads nowhere."""
        found = self.known.get((state, kind))
        if found is None:
            listed = [row for event_type, row in self._from.get(state, ()) if issubclass(kind, event_type)]
            found = tuple(
                step
                for transition in listed
                for step in self.steps(state, transition.event.name)
                if step.transition is transition
            )
            self.known[state, kind] = found
        return found

    def strange(self, state: str, kind: type) -> EventError:
        """Return why an event of this class leads nowhere from a state."""
        names = event_names(self._parts.rows)
        name = next((names[base] for base in names if issubclass(kind, base)), None)
        graph = self.graph.name
        if name is None:
            return UnknownEvent(
                graph=graph, state=state, event=kind.__name__, known=sorted(set(names.values()))
            )
        return InvalidEvent(graph=graph, state=state, event=name, allowed=self.events_from(state))

    async def judge(self, run: Run[Any, Any], steps: Iterable[CompiledTransition]) -> None:
        """Ask the guards of a state that has async ones, until one allows its edge; the kernel hears the answers."""
        answers: dict[int, Any] = {}
        _ANSWERS.set(answers)
        for step in steps:
            asked = step.conditions[0].func if step.conditions else None
            if not isinstance(asked, _Asked):
                return
            run.cursor.hook = step.conditions[0].label
            try:
                answer = asked.guard(run.cursor.event_object, run.ctx)
                if hasattr(answer, "__await__"):
                    answer = await answer
            except Exception as error:  # noqa: BLE001 - raised again where the kernel asks, and told there
                answers[id(asked)] = error
                return
            answers[id(asked)] = answer
            if answer:
                return


def asyncs(parts: Parts) -> Iterator[str]:
    """Name what of a typed machine is async."""
    for state, place in parts.places.items():
        for kind, hook in (("on_enter", place.on_enter), ("on_exit", place.on_exit)):
            if is_async(hook):
                yield f"{kind} of {state_name(state)!r}"
    for row in parts.rows:
        for kind, part in (("guard", row.guard), ("action", row.action)):
            if is_async(part):
                yield f"the {kind} of {row.event.__name__!r} in {state_name(row.source)!r}"


def _of_context(name: str, function: Callable[[Any], Any]) -> Hook:
    async def hook(run: Run[Any, Any]) -> None:
        done = function(run.ctx)
        if done is not None and hasattr(done, "__await__"):
            await cast("Awaitable[Any]", done)

    hook.__name__ = name
    return hook


def _of_event(name: str, function: Callable[[Any, Any], Any]) -> Hook:
    async def hook(run: Run[Any, Any]) -> None:
        done = function(run.cursor.event_object, run.ctx)
        if done is not None and hasattr(done, "__await__"):
            await cast("Awaitable[Any]", done)

    hook.__name__ = name
    return hook
