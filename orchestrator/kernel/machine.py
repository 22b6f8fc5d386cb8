"""Graph + hooks -> one compiled machine that any number of runs share. The only importer of `transitions`.

`transitions` is the referee: it holds the table and commits each move on the run's `cursor`. Its synchronous
`Machine` is used without a registered model and without callbacks; hooks are awaited by the driver around it,
because its AsyncMachine (0.9.3) swallows cancellation and runs the hooks of one slot concurrently. For the same
reason a trigger is shortened to what is left of it then (see `_Row`): it was a third of a turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import transitions

from orchestrator.errors import InvalidEvent, UnknownEvent
from orchestrator.kernel.graph import Edge, Graph, guard_name
from orchestrator.kernel.hooks import Hook, Hooks, collect
from orchestrator.kernel.purity import pure_graph

if TYPE_CHECKING:
    from orchestrator.kernel.run import Run

logging.getLogger("transitions").setLevel(logging.WARNING)  # it logs each callback at INFO, which we replace


@dataclass(frozen=True, slots=True)
class Step:
    """One (source, event, dest) with all that happens on it, looked up once when the graph is compiled."""

    event: StrEnum
    source: StrEnum
    dest: StrEnum
    names: tuple[str, str, str]
    """The values of these three; reading `value` of a member is a call."""
    edge: Edge
    guard: Callable[[Any], Any] | None
    guard_name: str | None
    guard_label: str
    """What `run.hook` says while the guard is asked."""
    ahead: tuple[tuple[str, Hook], ...]
    """before_<event>, before_event, leave_<source>, leave_state: may veto."""
    after: tuple[tuple[str, Hook], ...]
    commit: Callable[[Any], bool]
    """Let `transitions` move the run's cursor."""
    internal: bool
    ends: bool
    """It leads to a terminal state."""
    failing: bool
    """It is the failure edge of its source, which nothing may keep from committing."""
    folded: bool
    """The record may be written together with the next one: nothing outside `run.ctx` depends on it."""
    settle_first: bool
    """A host's hook comes before the commit, so everything folded so far must be durable by then."""

    def ask(self, run: Run[Any, Any]) -> Any:
        """Return what the guard says of this run: of its context, and of the event where that is an object."""
        guard: Any = self.guard
        return guard(run.ctx) if run.given is None else guard(run.given, run.ctx)


class Machine:
    """A compiled graph. Immutable after construction; holds no run."""

    def __init__(self, graph: Graph, hooks: Hooks, *, check_purity: bool | None = None) -> None:
        """Compile a graph. `check_purity`: a guard that changes its context raises GraphError; None asks `purity`."""
        graph = pure_graph(graph, check_purity)
        self.graph = graph
        self.hooks = hooks
        self.states: Mapping[str, StrEnum] = {state.value: state for state in graph.states}
        self._table = _referee(graph)
        self._steps: dict[tuple[str, str], tuple[Step, ...]] = {}
        for number, (source, event, _, _) in enumerate(graph.rows):
            key = (source.value, event.value)
            self._steps[key] = (*self._steps.get(key, ()), self._compile(number))
        self.enter = {
            state.value: hooks.named(f"enter_{state.name.lower()}", "enter_state") for state in graph.states
        }
        """State -> its enter hooks, named first, general second."""

    def steps(self, state: str, event: str) -> tuple[Step, ...]:
        """Return the candidate steps in table order. Raises UnknownEvent or InvalidEvent without any."""
        steps = self._steps.get((state, event))
        if steps is not None:
            return steps
        name = self.graph.name
        if not any(edge.event == event for edge in self.graph.edges):
            known = sorted(member.value for member in self.graph.events)
            raise UnknownEvent(graph=name, state=str(state), event=str(event), known=known)
        raise InvalidEvent(graph=name, state=str(state), event=str(event), allowed=self.events_from(state))

    def events_from(self, state: str) -> tuple[StrEnum, ...]:
        """Return the events that have an edge from `state`, sorted by name, guards not asked."""
        found = {steps[0].event for (source, _), steps in self._steps.items() if source == state}
        return tuple(sorted(found))

    def _compile(self, number: int) -> Step:
        graph, hooks = self.graph, self.hooks
        source, event, dest, edge = graph.rows[number]
        internal = edge.internal_in(source)
        ahead: tuple[str, ...] = (f"before_{event.name.lower()}", "before_event")
        ahead += () if internal else (f"leave_{source.name.lower()}", "leave_state")
        enter = () if internal else (f"enter_{dest.name.lower()}", "enter_state")
        after = (f"after_{event.name.lower()}", "after_event")
        return Step(
            event=event,
            source=source,
            dest=dest,
            names=(event.value, source.value, dest.value),
            edge=edge,
            guard=edge.when,
            guard_name=guard_name(edge.when),
            guard_label=f"when:{guard_name(edge.when)}",
            ahead=hooks.named(*ahead),
            after=hooks.named(*after),
            commit=self._table.events[_trigger(number, event)].trigger,
            internal=internal,
            ends=dest in graph.terminal,
            failing=event == graph.failure_event(source),
            folded=(
                dest in graph.pure
                and graph.is_working(dest)
                and hooks.hosted.isdisjoint((*ahead, *enter, *after))
            ),
            settle_first=not hooks.hosted.isdisjoint(ahead),
        )


def bind(
    graph: Graph,
    *modules: object,
    extra: Iterable[object] = (),
    points: Mapping[str, str] | None = None,
    check_purity: bool | None = None,
) -> Machine:
    """Compile a graph with the hooks of `modules` (and then those of `extra`): what a Driver and a Run need.

    With `check_purity=True` a guard that changes its context raises GraphError; None leaves it to the environment.

    `points` are as for `hooks.collect`, which raises GraphError that lists everything wrong with the hooks.
    """
    return Machine(graph, collect(graph, *modules, extra=extra, points=points), check_purity=check_purity)


def _trigger(number: int, event: StrEnum) -> str:
    """Name the trigger of one row: rows may share an event, and the driver has chosen already."""
    return f"{number}:{event.value}"


class _Row(transitions.Event):
    """A trigger without the ten places for callbacks, the conditions and the log lines, which nothing here uses.

    What the library holds still decides: where the model is, whether a row of the table begins there, and where it
    leads. Moving it is one assignment.
    """

    def trigger(self, model: Any, *_args: Any, **_more: Any) -> bool:
        """Move the model. Raises MachineError from any state but the row's own, ValueError from none at all."""
        table = self.machine
        rows = self.transitions.get(getattr(model, table.model_attribute))
        if not rows:
            return self._is_valid_source(table.get_model_state(model))
        dest = rows[0].dest
        if dest is not None:
            setattr(model, table.model_attribute, table.states[dest].value)
        return True


class _Table(transitions.Machine):
    event_cls = _Row


def _referee(graph: Graph) -> transitions.Machine:
    table = _Table(
        model=None,
        # values, not members: transitions files an enum member under its NAME and then misses its own state
        states=[state.value for state in graph.states],
        initial=graph.initial.value,
        auto_transitions=False,
        ignore_invalid_triggers=False,
        model_attribute="cursor",
    )
    for number, (source, event, dest, edge) in enumerate(graph.rows):
        goal = None if edge.internal_in(source) else dest.value
        table.add_transition(_trigger(number, event), source.value, goal)
    return table
