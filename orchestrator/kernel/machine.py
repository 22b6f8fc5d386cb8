"""Graph + hooks -> one machine of `transitions` that any number of runs share.

The library holds the table: events under the graph's names with one transition for each source, guards as conditions,
hooks in `before`, `after`, `on_enter` and `on_exit`, general hooks in `before_state_change`, `after_state_change`,
`leave_state` and `enter_state`. There is no second table. `steps` returns caches of the library's lists; a change of
the table through `add_transition`, `remove_transition`, `add_callback`, `add_states` or an attribute drops them. At
the next trigger the machine then derives its graph from the table, lints it, and compiles anew. While the table is
invalid, the driver parks each run before its next step and starts no new one.

Runs are the models. None is registered: `machine.events[event].trigger(run)` needs a run that a driver has claimed.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import count
from typing import Any, NoReturn, Protocol, SupportsIndex, TypeAlias
from weakref import WeakSet

import transitions
from transitions.core import listify

from orchestrator.errors import EventError, GraphError, InvalidEvent, UnknownEvent
from orchestrator.kernel.derived_graph import derive, table_changes
from orchestrator.kernel.diagram import mimebundle
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import Hook, Hooks, awaitable, callback_name, collect, resolve
from orchestrator.kernel.lint import LintProblem, LintRule, unusable_names
from orchestrator.kernel.purity import checks_purity
from orchestrator.kernel.table import (
    CallbackList,
    CompiledTable,
    CompiledTransition,
    MachineCondition,
    MachineEvent,
    MachineState,
    MachineTransition,
    conditions_name,
)

logging.getLogger("transitions").setLevel(logging.WARNING)  # it logs each callback at INFO, which we replace

GENERAL = (
    "_prepare_event",
    "_before_state_change",
    "_after_state_change",
    "_on_final",
    "leave_state",
    "enter_state",
)
"""Lists of callbacks that belong to the machine: four of the library and two of this package."""

_Lists: TypeAlias = list[tuple[str, Any]]
"""Lists of callbacks, each with the name of its hooks."""

_REFUSED = {
    "_finalize_event": "an observer receives every transition and every failed event",
    "_on_exception": "an exception fires the failure event of the state in which it happened",
}


class TableFollower(Protocol):
    """Learns of changes of a machine's table, when they are linted."""

    def table_changed(self) -> None:
        """Take notice that the table has another graph."""
        ...

    def table_rejected(self, error: GraphError) -> None:
        """Take the problems of an invalid table. Called once until a valid table follows."""
        ...


def value_of(name: Any) -> Any:
    """Return the value of an enum member: the library would store a member under its NAME and not find its state."""
    return name.value if isinstance(name, StrEnum) else name


class Machine(transitions.Machine):
    """A compiled graph: a `transitions.Machine` with the states, transitions, conditions and events of this package."""

    state_cls = MachineState
    transition_cls = MachineTransition
    event_cls = MachineEvent
    states: OrderedDict[str, MachineState]  # type: ignore[assignment]  # the library's stub names its own class
    leave_state: Any
    """Callbacks that run after the on_exit callbacks of any state."""
    enter_state: Any
    """Callbacks that run after the on_enter callbacks of any state."""

    def __init__(self, graph: Graph, hooks: Hooks, *, check_purity: bool | None = None) -> None:
        """Build the table.

        With `check_purity` a guard that changes its context raises GraphError; None asks `purity`.
        """
        self.compiled = CompiledTable()
        self.followers: WeakSet[TableFollower] = WeakSet()
        """What is told about each change of the table."""
        self._changing = self._rejected = False
        self.leave_state = self.enter_state = None
        self._checks_purity = checks_purity(check_purity)
        self.hooks = hooks
        self.declared = self._last = graph
        self._event_names = {member.value: member.name.lower() for member in graph.events}
        self._numbers = count()
        super().__init__(
            model=None, states=None, initial=None, auto_transitions=False, model_attribute="state"
        )
        self._build(graph, hooks)
        self.compiled.graph = graph
        for _, callbacks in self._slots():
            callbacks.bound = tuple(callbacks)
        for transition in self.get_transitions():
            self._conditions(transition)
        self._whole = not list(self._missing(graph))
        """Whether every working state had an enter callback at that time."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _REFUSED:

            def refuse() -> NoReturn:
                list.clear(callbacks)
                text = f"{name.strip('_')} is not supported: {_REFUSED[name]}"
                raise GraphError(self.declared.name, [text])

            callbacks = CallbackList((), refuse)
            if value:
                refuse()
            value = callbacks
        if name in GENERAL:
            value = CallbackList(listify(value), self.table_changed, vars(self).get(name))
        super().__setattr__(name, value)
        if name in GENERAL or name == "_initial":
            self.table_changed()

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return mimebundle(self.graph)

    # ---- the table, as the library's interface shows and changes it ----

    def add_states(self, states: Any, *args: Any, **options: Any) -> None:
        """Add states: names, dicts with the arguments of `MachineState`, or State objects."""
        known = set(self.states)
        super().add_states([value_of(state) for state in listify(states)], *args, **options)
        for name in self.states.keys() - known:
            self.states[name].attach(self)
        self.table_changed()

    def add_transition(self, trigger: str, source: Any, dest: Any = None, *args: Any, **options: Any) -> None:
        """Add a transition for each source; `"*"` is every state, dest None is internal, `"="` is reflexive."""
        if value_of(trigger) == self.model_attribute:  # the library's sentence says nothing about names
            problems = list(unusable_names("event", {"STATE": str(trigger)}))
            raise GraphError(self.declared.name, problems)
        sources = [value_of(state) for state in listify(source)]
        super().add_transition(
            value_of(trigger), source if source == "*" else sources, value_of(dest), *args, **options
        )

    def remove_transition(self, trigger: str, source: Any = "*", dest: Any = "*") -> None:
        """Remove transitions. An event that has none left is removed, too. Raises UnknownEvent."""
        if value_of(trigger) not in self.events:
            raise self._unknown("", str(trigger))
        places = (
            "*" if given == "*" else [value_of(name) for name in listify(given)] for given in (source, dest)
        )
        super().remove_transition(value_of(trigger), *places)  # type: ignore[arg-type]  # the library takes lists
        self.table_changed()

    def get_transitions(self, trigger: str = "", source: Any = "*", dest: Any = "*") -> list[Any]:
        """Return the transitions of an event, a source and a destination; without arguments, all."""
        return super().get_transitions(value_of(trigger), value_of(source), value_of(dest))

    def get_triggers(self, *args: Any) -> list[str]:
        """Return the events that have a transition from one of these states."""
        return super().get_triggers(*map(value_of, args))

    def get_state(self, state: Any) -> Any:
        """Return a State by name or member. Raises ValueError for an unknown one."""
        return super().get_state(value_of(state))

    def add_model(self, model: Any, initial: Any = None) -> NoReturn:  # noqa: ARG002 - the library's signature
        """Refuse: runs are not registered; a Driver drives them."""
        raise GraphError(self.graph.name, ["runs are the models and are not registered; use a Driver"])

    def table_changed(self) -> None:
        """Drop every cache: the next trigger lints and compiles the table again."""
        if not self._changing:
            self.compiled.clear()

    @contextlib.contextmanager
    def changing(self) -> Iterator[Machine]:
        """Make several changes of the table at once: they are linted once, at the end of the block.

        Runs follow the table as it was until then. If the block or the lint raises, every change is taken back.

        Raises:
            GraphError: The changed table is invalid; it lists every problem.

        Example:
            with agent.machine.changing() as machine:
                machine.remove_transition("budget_ok", "update_budgets")
                machine.add_transition("budget_ok", "update_budgets", "await_llm", conditions=[may_continue])
        """
        if self._changing:
            raise GraphError(
                self.declared.name, ["changing() is active already; make all changes in one block"]
            )
        compiled, graph = self.compiled, self._compiled_whole()
        saved, self._changing = _Saved(self), True
        try:
            yield self
            self._changing = False
            compiled.clear()
            changed = self._linted()
        except BaseException:
            saved.restore()
            compiled.clear()
            compiled.graph = graph
            raise
        finally:
            self._changing = False
        self._accepted(changed)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"the machine of graph {self.declared.name!r} cannot be copied or pickled: it has live callbacks, and its "
            "runs share it; copy or pickle a Graph (machine.graph), and bind that with its hooks"
        )

    def next_number(self) -> int:
        """Return the position of the next transition in the table."""
        return next(self._numbers)

    # ---- what the driver asks ----

    @property
    def graph(self) -> Graph:
        """The table as a Graph. Raises GraphError if a change left an invalid table."""
        return self.compiled.graph or self._derived()

    @property
    def valid_graph(self) -> Graph:
        """The table as a Graph; while it is invalid, the last valid one."""
        with contextlib.suppress(GraphError):
            return self.graph
        return self._last

    @property
    def changes(self) -> tuple[str, ...]:
        """How the last valid table differs from the graph that was bound: a line for each part."""
        return table_changes(self.declared, self._last)

    def recorded_table(self) -> dict[str, Any]:
        """Return the members of a record about the last valid table: its fingerprint, and any changes."""
        changes = self.changes
        return {"fingerprint": self._last.fingerprint} | ({"table_changes": list(changes)} if changes else {})

    def event(self, state: str, name: str) -> MachineEvent:
        """Return an event of the table by name. Raises UnknownEvent."""
        found = self.events.get(name)
        if found is None:
            raise self._unknown(state, value_of(name))
        return found  # type: ignore[return-value]  # our event_cls

    def steps(self, state: str, event: str) -> tuple[CompiledTransition, ...]:
        """Return the possible steps of an event in a state, in table order.

        Raises UnknownEvent, or InvalidEvent for none.
        """
        return self.compiled.steps.get((state, event)) or self._compiled(value_of(state), value_of(event))

    def steps_for(self, state: str, event: str, event_object: object) -> tuple[CompiledTransition, ...]:  # noqa: ARG002
        """Return the possible steps of an event that has an object, as `steps` does."""
        return self.steps(state, event)

    def events_from(self, state: str) -> tuple[StrEnum, ...]:
        """Return the events that have a transition from `state`, sorted by name; no condition is evaluated."""
        graph = self.graph
        return tuple(sorted(graph.events(name) for name in self.get_triggers(state)))

    def enter_hooks(self, state: str) -> tuple[tuple[str, Hook], ...]:
        """Return the callbacks of an entry into a state: on_enter, enter_state, and on_final for a final state."""
        found = self.compiled.enter.get(state)
        if found is None:
            entered = self.get_state(state)
            name = self.graph.states(state).name.lower()
            lists: _Lists = [(f"enter_{name}", entered.on_enter), ("enter_state", self.enter_state)]
            lists += [("on_final", self.on_final)] if entered.final else []
            found = self.compiled.enter[state] = self._callbacks(lists)
        return found

    # ---- building ----

    def _build(self, graph: Graph, hooks: Hooks) -> None:
        """Add the declared graph with its hooks to the table of the library."""
        general = ("_before_state_change", "leave_state", "enter_state", "_after_state_change")
        for attribute, name in zip(
            general, ("before_event", "leave_state", "enter_state", "after_event"), strict=True
        ):
            setattr(self, attribute, hooks.by_name.get(name, ()))
        for member in graph.states:
            name = member.name.lower()
            self.add_states(
                {
                    "name": member.value,
                    "on_enter": hooks.by_name.get(f"enter_{name}"),
                    "on_exit": hooks.by_name.get(f"leave_{name}"),
                    "final": member in graph.terminal,
                }
            )
        self.initial = graph.initial.value
        for source, event, dest, edge in graph.rows:
            self.add_transition(event, source, None if edge.internal_in(source) else dest, edge.when)

    def named_hooks(self, kind: str, event: str) -> list[Any]:
        """Return the hooks of an event in the hook modules; `kind` is `before` or `after`."""
        return list(self.hooks.by_name.get(f"{kind}_{self._event_names.get(event)}", ()))

    # ---- compiling ----

    def _compiled(self, state: str, event: str) -> tuple[CompiledTransition, ...]:
        graph = self.graph
        known = self.events.get(event)
        if known is None:
            raise self._unknown(state, event)
        found = known.transitions.get(state)
        if not found:
            raise InvalidEvent(
                graph=graph.name, state=str(state), event=str(event), allowed=self.events_from(state)
            )
        steps = self.compiled.steps[state, event] = tuple(map(self._compile, found))
        return steps

    def _unknown(self, state: str, event: str) -> EventError:
        return UnknownEvent(
            graph=self.declared.name, state=str(state), event=str(event), known=sorted(self.events)
        )

    def _compile(self, transition: Any) -> CompiledTransition:
        """Flatten the callbacks of a transition. Raises GraphError for a callback that cannot be found or called."""
        graph, internal = self.graph, transition.dest is None
        event, source = graph.events(transition.event.name), graph.states(transition.source)
        dest = source if internal else graph.states(transition.dest)
        ahead, enter, after = self._lists(transition, event, source, dest)
        conditions = self._conditions(transition)
        return CompiledTransition(
            transition=transition,
            event=event,
            source=source,
            dest=dest,
            names=(event.value, source.value, dest.value),
            conditions=conditions,
            guard_name=conditions_name(conditions),
            prepare=self._callbacks(self._preparing(transition)),
            ahead=self._callbacks(ahead),
            enter=() if internal else self.enter_hooks(dest.value),
            after=self._callbacks(after),
            internal=internal,
            ends=dest in graph.terminal,
            failing=event == graph.failure_event(source),
            folded=dest in graph.pure
            and graph.is_working(dest)
            and not _hosted(self.hooks, *ahead, *enter, *after),
            seconds=graph.time_limits.get(dest.value),
            settle_first=_hosted(self.hooks, *ahead),
        )

    def _lists(
        self, transition: Any, event: StrEnum, source: StrEnum, dest: StrEnum
    ) -> tuple[_Lists, _Lists, _Lists]:
        """Return the lists of callbacks before the state change, on entry and after it, with the names of hooks."""
        name = event.name.lower()
        ahead = [(f"before_{name}", transition.before), ("before_event", self.before_state_change)]
        enter: _Lists = []
        if transition.dest is not None:
            left, entered = self.get_state(source), self.get_state(dest)
            ahead += [(f"leave_{source.name.lower()}", left.on_exit), ("leave_state", self.leave_state)]
            enter = [(f"enter_{dest.name.lower()}", entered.on_enter), ("enter_state", self.enter_state)]
        return ahead, enter, [(f"after_{name}", transition.after), ("after_event", self.after_state_change)]

    def _preparing(self, transition: Any) -> _Lists:
        """Return the lists of prepare callbacks; those of the machine run once per event."""
        first = transition is transition.event.transitions[transition.source][0]
        return [*([("prepare_event", self.prepare_event)] if first else []), ("prepare", transition.prepare)]

    def _conditions(self, transition: MachineTransition) -> tuple[MachineCondition, ...]:
        """Return the conditions of a transition, resolved. Raises GraphError for one that cannot be a condition."""
        name, dest = self.declared.name, transition.dest or transition.source
        edge = f"{transition.event.name!r} from {transition.source!r} to {dest!r}"
        conditions: tuple[MachineCondition, ...] = tuple(transition.conditions)
        for condition in conditions:
            try:
                condition.resolve(self.hooks.modules, name, edge, check_purity=self._checks_purity)
            except LookupError as error:
                raise GraphError(name, [LintProblem(LintRule.UNKNOWN_CALLBACK, str(error))]) from None
        return conditions

    def _callbacks(self, lists: Iterable[tuple[str, Iterable[Any]]]) -> tuple[tuple[str, Hook], ...]:
        """Return (name, function) for each callback of these lists, in their order."""
        found: list[tuple[str, Hook]] = []
        for slot, callbacks in lists:
            own = self.hooks.by_name.get(slot, ())
            for callback in callbacks:
                try:
                    function = resolve(callback, self.hooks.modules)
                    found.append((slot if callback in own else callback_name(callback), awaitable(function)))
                except (LookupError, TypeError) as error:
                    problem = LintProblem(LintRule.UNKNOWN_CALLBACK, f"{slot}: {error}")
                    raise GraphError(self.declared.name, [problem]) from None
        return tuple(found)

    # ---- the graph of a table that was changed ----

    def _derived(self) -> Graph:
        """Return the present table as a graph. Raises GraphError for an invalid one.

        The followers learn of it once, however many runs and changes there are until the table is valid again.
        """
        if self.compiled.problems:
            raise GraphError(self.declared.name, self.compiled.problems)
        try:
            graph = self._linted()
        except GraphError as error:
            self.compiled.problems = error.problems
            first, self._rejected = not self._rejected, True
            for follower in tuple(self.followers) if first else ():
                follower.table_rejected(error)
            raise
        self._accepted(graph)
        return graph

    def _accepted(self, graph: Graph) -> None:
        """Note a valid table, and notify the followers if it differs from the last one."""
        before, self._last, self._rejected = self._last, graph, False
        if graph is not before:
            for follower in tuple(self.followers):
                follower.table_changed()

    def _linted(self) -> Graph:
        """Lint the present table and return it as a graph. Raises GraphError with every problem."""
        changed = {
            slot: tuple(map(callback_name, callbacks))
            for slot, callbacks in self._slots()
            if callbacks.differs
        }
        graph = derive(self.declared, self.initial, self.states, self.get_transitions(), changed)
        found = self.declared if graph.describe() == self.declared.describe() else graph
        self.compiled.graph = found
        problems = [*(self._missing(found) if self._whole else ()), *self._uncallable()]
        if problems:
            self.compiled.graph = None
            raise GraphError(graph.name, problems)
        return found

    def _compiled_whole(self) -> Graph | None:
        """Compile every transition and every entry; return the graph, or None if the table is invalid."""
        try:
            graph = self.graph
        except GraphError:
            return None
        for transition in self.get_transitions():
            self.steps(transition.source, transition.event.name)
        for state in self.states:
            self.enter_hooks(state)
        return graph

    def _uncallable(self) -> Iterator[object]:
        """Compile every transition; yield a problem for each callback or condition that cannot be found or called."""
        found: dict[str, object] = {}
        for transition in self.get_transitions():
            try:
                self._compile(transition)
            except GraphError as error:
                found.update((str(problem), problem) for problem in error.problems)
        yield from found.values()

    def _slots(self) -> Iterator[tuple[str, Any]]:
        """Yield every list of callbacks with a name that stays the same while the table changes."""
        yield from ((name.strip("_"), getattr(self, name)) for name in GENERAL)
        for state in self.states.values():
            yield f"on_enter of {state.name}", state.on_enter
            yield f"on_exit of {state.name}", state.on_exit
        for row in self.get_transitions():
            at = f"{row.event.name} from {row.source} to {row.dest} if {conditions_name(row.conditions)}"
            yield from ((f"{name} of {at}", getattr(row, name)) for name in ("prepare", "before", "after"))

    def _missing(self, graph: Graph) -> Iterator[LintProblem]:
        """Yield a problem for each working state without enter callbacks: nothing would leave it."""
        for state in graph.states:
            if graph.is_working(state) and not (self.get_state(state.value).on_enter or self.enter_state):
                text = f"working state {state.value!r} has no enter callback, so nothing would leave it"
                yield LintProblem(LintRule.MISSING_ENTER, text, state)


class _Saved:
    """The whole table of a machine at one time, to be restored in place: runs and hosts keep parts of it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        parts: list[object] = [machine, *machine.states.values(), *machine.events.values()]
        parts += machine.get_transitions()
        self._attributes = [(vars(part), dict(vars(part))) for part in parts]
        mappings: list[dict[Any, Any]] = [machine.states, machine.events]
        mappings += (event.transitions for event in machine.events.values())
        self._mappings = [(mapping, dict(mapping)) for mapping in mappings]
        lists = [value for part in parts for value in vars(part).values() if isinstance(value, list)]
        lists += (value for event in machine.events.values() for value in event.transitions.values())
        self._lists = [(items, tuple(items)) for items in lists]

    def restore(self) -> None:
        """Restore the table without reporting a change."""
        for mapping, content in [*self._attributes, *self._mappings]:
            for name in mapping.keys() - content.keys():
                del mapping[name]
            mapping.update(content)
        for items, saved in self._lists:
            list.__setitem__(items, slice(None), saved)


def _hosted(hooks: Hooks, *lists: tuple[str, Any]) -> bool:
    """Return whether a callback in these lists may be one of the host: its effects are unknown."""
    return any(slot in hooks.hosted or callbacks.differs for slot, callbacks in lists)


def bind(
    graph: Graph,
    *modules: object,
    extra: Iterable[object] = (),
    points: Mapping[str, str] | None = None,
    check_purity: bool | None = None,
) -> Machine:
    """Return the machine of a graph with its hooks, for a Driver and a Run.

    Args:
        graph: The graph.
        extra: Hook modules that run after `modules`.
        points: Extension points, as for `hooks.collect`.
        check_purity: Whether a guard that changes its context raises GraphError; None uses the environment variable.
        *modules: Modules or objects with hooks.

    Raises:
        GraphError: It lists every problem of the hooks.
    """
    return Machine(graph, collect(graph, *modules, extra=extra, points=points), check_purity=check_purity)
