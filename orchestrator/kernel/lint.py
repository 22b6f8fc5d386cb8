"""The rules for a table and its bound hooks: each rule is a function that yields problems."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from orchestrator.kernel.branch import Fan
    from orchestrator.kernel.graph import Edge, Graph


T = TypeVar("T")


class LintRule(StrEnum):
    """The rules. The first six are structural: a graph with such a problem cannot be read."""

    UNKNOWN_NAME = "unknown_name"
    TAKEN_NAME = "taken_name"
    RESERVED_NAME = "reserved_name"
    ROLE_CONFLICT = "role_conflict"
    NO_END = "no_end"
    UNREACHABLE = "unreachable"
    TRAP = "trap"
    NO_WAY_OUT = "no_way_out"
    TERMINAL_EXIT = "terminal_exit"
    GUARD_OVERLAP = "guard_overlap"
    GUARD_GAP = "guard_gap"
    ASYNC_GUARD = "async_guard"
    UNBOUNDED_CYCLE = "unbounded_cycle"
    WAITING_WITHOUT_LIMIT = "waiting_without_limit"
    BAD_DWELL = "bad_dwell"
    MISSING_FAILURE = "missing_failure"
    INTERNAL_IN_WORKING_STATE = "internal_in_working_state"
    UNUSED_EVENT = "unused_event"
    STRAY_HOOK = "stray_hook"
    NO_HOOK = "no_hook"
    SYNC_HOOK = "sync_hook"
    HOOK_ARGUMENTS = "hook_arguments"
    GUARD_ARGUMENTS = "guard_arguments"
    DUPLICATE_HOOK = "duplicate_hook"
    MISSING_ENTER = "missing_enter"
    BAD_BRANCHES = "bad_branches"
    TERMINAL_WITHOUT_FAILURE = "terminal_without_failure"
    UNKNOWN_CALLBACK = "unknown_callback"


@dataclass(frozen=True, slots=True)
class LintProblem:
    """One problem: rule, place and message."""

    rule: LintRule
    message: str
    state: str | None = None
    event: str | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


Check: TypeAlias = Callable[["Graph"], Iterator[LintProblem]]


def structure(graph: Graph) -> list[LintProblem]:
    """Return the problems that make a table unreadable; the other rules cannot be checked then."""
    unreadable = list(_unknown_names(graph))
    return unreadable or [problem for check in _STRUCTURE for problem in check(graph)]


def behaviour(graph: Graph) -> list[LintProblem]:
    """Return the problems that a run of a readable table would have."""
    return [problem for check in _BEHAVIOUR for problem in check(graph)]


def _unknown_names(graph: Graph) -> Iterator[LintProblem]:
    states, events = set(graph.states), set(graph.events)
    used: list[tuple[str, object, Collection[object]]] = [("initial", graph.initial, states)]
    for edge in graph.edges:
        used += [("edge event", edge.event, events), ("edge dest", edge.dest, states)]
        used += [("edge source", source, states) for source in edge.sources]
    used += _failure_names(graph, states, events)
    for name in ("terminal", "rest", "waiting", "pure", "branches"):
        used += [(name, state, states) for state in getattr(graph, name)]
    for state, limit in (graph.dwell or {}).items():
        used.append(("dwell state", state, states))
        if limit is not None:
            used.append(("dwell event", limit[1], events))
    for role, unknown, known in used:
        if unknown not in known:
            listed = ", ".join(sorted(repr(str(member)) for member in known))
            yield LintProblem(
                LintRule.UNKNOWN_NAME, f"{role} {str(unknown)!r} is not declared; declared: {listed}"
            )


def _failure_names(
    graph: Graph, states: Collection[object], events: Collection[object]
) -> Iterator[tuple[str, object, Collection[object]]]:
    if isinstance(graph.failure, Mapping):
        for state, event in graph.failure.items():
            yield "failure state", state, states
            yield "failure event", event, events
    elif graph.failure is not None:
        yield "failure event", graph.failure, events


def unusable_names(kind: str, members: Mapping[str, str]) -> Iterator[LintProblem]:
    """Yield a problem for each name of a state or an event that cannot be used; `members` is member name -> name."""
    for member, name in members.items():
        if why := _unusable(kind, member, name):
            yield LintProblem(LintRule.RESERVED_NAME, f"the {kind} {name!r:.80} cannot be used: {why}")


def _unusable(kind: str, member: str, name: str) -> str | None:
    """Return why a name cannot be used, or None."""
    reasons = (
        (
            not name.isprintable() or not name or name != name.strip(),
            "a name is printable text without spaces around it, and not empty",
        ),
        (name in {"*", "="}, "transitions uses it for every state, or for the same state"),
        (not member.strip("_"), "a name has at least one letter or digit"),
        (re.fullmatch(r"_.*_", member), "Python keeps names between underscores for itself"),
        (member.upper() == kind.upper(), "hooks of that name are the general ones"),
        (kind == "event" and name == "state", "transitions uses it for the state of a run"),
    )
    return next((why for applies, why in reasons if applies), None)


def _roles(graph: Graph) -> Iterator[LintProblem]:
    for state in graph.states:
        if state in graph.terminal and state in graph.waiting | graph.rest:
            message = f"{state.value!r} is terminal and also a waiting or rest state; it can be only one"
            yield LintProblem(LintRule.ROLE_CONFLICT, message, state)


def _no_end(graph: Graph) -> Iterator[LintProblem]:
    if not graph.terminal and not graph.rest:
        yield LintProblem(LintRule.NO_END, "the graph names neither a terminal nor a rest state")


def _unreachable(graph: Graph) -> Iterator[LintProblem]:
    reached = closure({graph.initial}, ((source, dest) for source, _, dest, _ in graph.rows))
    for state in graph.states:
        if state not in reached:
            yield LintProblem(
                LintRule.UNREACHABLE, f"no path leads from {graph.initial.value!r} to {state.value!r}", state
            )


def closure(start: set[T], arrows: Iterable[tuple[T, T]]) -> set[T]:
    """Return `start` and all that the arrows (source, dest) lead to from there."""
    listed, reached, grew = list(arrows), set(start), True
    while grew:
        fresh = {dest for source, dest in listed if source in reached and dest not in reached}
        reached |= fresh
        grew = bool(fresh)
    return reached


def _is_failure(graph: Graph, edge: Edge, source: StrEnum) -> bool:
    return edge.event == graph.failure_event(source)


def _trap(graph: Graph) -> Iterator[LintProblem]:
    ends = graph.terminal | graph.rest
    onward = [
        (source, dest)
        for source, _, dest, edge in graph.rows
        if dest != source and not _is_failure(graph, edge, source)
    ]
    alive = closure(set(ends), ((dest, source) for source, dest in onward))
    for state in graph.states:
        if state in graph.terminal:
            continue
        if not any(source == state for source, _ in onward):
            yield LintProblem(LintRule.TRAP, f"no edge but failure leaves {state.value!r}", state)
        elif state not in alive:
            yield LintProblem(
                LintRule.NO_WAY_OUT, f"no path but failure leads from {state.value!r} to an end", state
            )


def _terminal_exit(graph: Graph) -> Iterator[LintProblem]:
    for source, event, _, edge in graph.rows:
        if source in graph.terminal and not _is_failure(graph, edge, source):
            message = f"{event.value!r} leaves the terminal state {source.value!r}; only a failure edge may"
            yield LintProblem(LintRule.TERMINAL_EXIT, message, source, event)


def edges_by_event(graph: Graph) -> dict[tuple[StrEnum, StrEnum], list[Edge]]:
    """Return (source, event) -> its edges, in the order of the table."""
    groups: dict[tuple[StrEnum, StrEnum], list[Edge]] = {}
    for source, event, _, edge in graph.rows:
        groups.setdefault((source, event), []).append(edge)
    return groups


def _guards(graph: Graph) -> Iterator[LintProblem]:
    for (source, event), edges in edges_by_event(graph).items():
        where = f"{event.value!r} in {source.value!r}"
        seen: list[object] = []
        for edge in edges:
            if None in seen or edge.when in seen:
                message = f"{where}: an earlier edge with the same guard, or none, hides a later one"
                yield LintProblem(LintRule.GUARD_OVERLAP, message, source, event)
            seen.append(edge.when)
        if len(edges) > 1 and None not in seen:
            message = f"{where}: every edge is guarded; add a last one without a guard"
            yield LintProblem(LintRule.GUARD_GAP, message, source, event)


def _async_guard(graph: Graph) -> Iterator[LintProblem]:
    for source, event, _, edge in graph.rows:
        if (why := async_part(edge.when)) is not None:
            message = f"the guard of {event.value!r} in {source.value!r} {why}"
            yield LintProblem(LintRule.ASYNC_GUARD, message, source, event)


def is_async(value: object) -> bool:
    """Return whether a function or a callable object is async, also as a partial."""
    while isinstance(value, functools.partial):
        value = value.func
    call = getattr(value, "__call__", None)  # noqa: B004 - an object with an async __call__ is a hook too
    return inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(call)


def async_part(guard: object) -> str | None:
    """Return why a guard would answer with a coroutine, or build its answer from one; None for a synchronous guard.

    A guard can combine others: as a closure, as the arguments of a partial, or in a list or tuple of a callable object.
    A guard runs on the event loop, so it cannot run a coroutine to its end; each async function in it is a fault.
    """
    ahead, seen = [guard], set[int]()
    while ahead:
        part = ahead.pop()
        if id(part) in seen or isinstance(part, type):
            continue
        seen.add(id(part))
        if is_async(part) or inspect.isasyncgenfunction(part):
            if part is guard:
                return "is async; a coroutine is always true"
            name = getattr(part, "__name__", type(part).__name__)
            return f"calls {name}, which is async; a coroutine is always true"
        ahead += _parts_of(part)
    return None


def _parts_of(value: object) -> Iterable[object]:
    """Return what a guard is made of, as far as it can be known without a call."""
    if type(value) in {list, tuple}:
        parts: Iterable[object] = value  # type: ignore[assignment]
        return parts
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if inspect.isfunction(value):
        return [part for cell in value.__closure__ or () if (part := _content(cell)) is not None]
    if inspect.isroutine(value) or not callable(value):
        return ()
    return [part for part in getattr(value, "__dict__", {}).values() if type(part) in {list, tuple}]


def _content(cell: Any) -> object:
    """Return the content of a cell of a closure; None for an empty one."""
    try:
        content: object = cell.cell_contents
    except ValueError:
        return None
    return content


def _unbounded_cycle(graph: Graph) -> Iterator[LintProblem]:
    paced = graph.waiting | graph.rest | graph.terminal  # outside events set the pace there
    free = {
        (source, dest)
        for source, _, dest, edge in graph.rows
        if not getattr(edge.when, "bounding", False)
        and not edge.internal_in(source)
        and source not in paced
        and dest not in paced
    }
    for state in graph.states:
        around = closure({dest for source, dest in free if source == state}, free)
        if state in around:
            message = (
                f"a cycle through {state.value!r} has no budget or progress guard (mark one with @bounding)"
            )
            yield LintProblem(LintRule.UNBOUNDED_CYCLE, message, state)


def _waiting(graph: Graph) -> Iterator[LintProblem]:
    dwell = graph.dwell or {}
    for state in sorted(graph.waiting - set(dwell)):
        message = (
            f"waiting state {state.value!r} declares no time limit; give dwell a pair, or None for no limit"
        )
        yield LintProblem(LintRule.WAITING_WITHOUT_LIMIT, message, state)
    for state, limit in dwell.items():
        if limit is None:
            continue
        seconds, event = limit
        if not seconds > 0:
            message = f"the time limit of {state.value!r} is {seconds:g} s; it must be above 0"
            yield LintProblem(LintRule.BAD_DWELL, message, state)
        edges = [edge for edge in graph.edges_from(state) if edge.event == event]
        if not any(edge.when is None for edge in edges) or any(edge.internal_in(state) for edge in edges):
            message = f"the time limit of {state.value!r} fires {event.value!r}, which may not leave it"
            yield LintProblem(LintRule.BAD_DWELL, message, state, event)


def _missing_failure(graph: Graph) -> Iterator[LintProblem]:
    if graph.failure is None:
        return
    for state in graph.states:
        if graph.is_working(state) and graph.failure_event(state) is None:
            message = f"{state.value!r} has no unguarded edge for its failure event that leaves the state"
            yield LintProblem(LintRule.MISSING_FAILURE, message, state)


def _internal(graph: Graph) -> Iterator[LintProblem]:
    for source, event, _, edge in graph.rows:
        if edge.internal_in(source) and graph.is_working(source):
            message = (
                f"{event.value!r} stays in the working state {source.value!r}: no enter hook runs after it, "
                "so nothing would leave the state; use reenter=True"
            )
            yield LintProblem(LintRule.INTERNAL_IN_WORKING_STATE, message, source, event)


def _unused_event(graph: Graph) -> Iterator[LintProblem]:
    used = {edge.event for edge in graph.edges}
    for event in graph.events:
        if event not in used:
            yield LintProblem(LintRule.UNUSED_EVENT, f"event {event.value!r} is in no edge", None, event)


def _branches(graph: Graph) -> Iterator[LintProblem]:
    for state, fan in graph.branches.items():
        for why in _faults_of(graph, state, fan):
            yield LintProblem(LintRule.BAD_BRANCHES, f"the branches of {state.value!r}: {why}", state)


def _faults_of(graph: Graph, state: StrEnum, fan: Fan) -> Iterator[str]:
    if not graph.is_working(state) or state in graph.pure:
        yield "only a working state that is not pure has branches, because its enter hook starts them"
    if fan.max < 1:
        yield f"max is {fan.max!r}; give the most branches that one visit may have, 1 or more"
    elif fan.join.needed(fan.max) > fan.max:
        yield f"the join needs {fan.join.count} branches and there are at most {fan.max}"
    if fan.concurrency < 0:
        yield f"concurrency is {fan.concurrency!r}; it must be 0 (unlimited) or more"
    if fan.join.rule in {"first", "quorum"} and fan.join.count < 1:
        yield f"the join needs {fan.join.count} branches; give 1 or more"
    elif fan.join.count < 0:
        yield f"the join needs {fan.join.count} branches; give 0 or more"


_STRUCTURE: tuple[Check, ...] = (_roles, _no_end, _unreachable)

_BEHAVIOUR: tuple[Check, ...] = (
    _trap,
    _terminal_exit,
    _guards,
    _async_guard,
    _unbounded_cycle,
    _waiting,
    _missing_failure,
    _internal,
    _unused_event,
    _branches,
)
