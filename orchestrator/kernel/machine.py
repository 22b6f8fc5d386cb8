"""Graph + hooks -> one machine of `transitions` that any number of runs share.

The library holds the table: events under the graph's names with one transition for each source, guards as conditions,
hooks in `before`, `after`, `on_enter` and `on_exit`, general hooks in `before_state_change`, `after_state_change`,
`leave_state` and `enter_state`. There is no second table. `steps` returns caches of the library's lists; a change of
the table through `add_transition`, `remove_transition`, `add_callback`, `add_states` or an attribute drops them. At
the next trigger the machine then derives its graph from the table, lints it, and compiles anew. While the table is
invalid, the driver parks each run before its next step and starts no new one.

Runs are the models. None is registered: `machine.events[event].trigger(run)` needs a run that a driver has claimed.

`transitions` lets a machine name its `state_cls`, `transition_cls`, `condition_cls` and `event_cls`; its own
`extensions/asyncio.py` builds the asynchronous machine that way, and so does this module. The objects keep the
library's attributes (`on_enter`, `on_exit`, `conditions`, `prepare`, `before`, `after`, `source`, `dest`) and its
methods (`add_callback`, `trigger`). The README of this folder lists the differences from AsyncMachine.

A `CompiledTransition` is a cache: the lists of one transition, resolved and flattened. The machine drops it when a
list changes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, SupportsIndex, TypeAlias
from weakref import WeakSet

import transitions
from transitions import core
from transitions.core import listify

from orchestrator.errors import EventError, GraphError, InvalidEvent, RunError, UnknownEvent
from orchestrator.kernel.graph import Edge, Graph, enum_of, guard_name, mimebundle, taken_names
from orchestrator.kernel.hooks import Hook, Hooks, awaitable, callback_name, collect, resolve, takes
from orchestrator.kernel.lint import LintProblem, LintRule, async_part, is_async, unusable_names
from orchestrator.kernel.purity import checks_purity, pure_guard
from orchestrator.kernel.run import add_may_method
from orchestrator_guards.verdict import Verdict

if TYPE_CHECKING:
    from orchestrator.kernel.graph import Graph
    from orchestrator.kernel.run import Run


class CallbackList(list[Any]):
    """A list of callbacks or conditions that reports each change of itself."""

    __slots__ = ("_changed", "bound")  # an agent has a hundred of these lists
    bound: tuple[Any, ...]
    """Contents of the list when hooks were bound to the table."""

    def __init__(self, items: Iterable[Any], changed: Callable[[], None], replaced: object = None) -> None:
        super().__init__(items)
        self._changed = changed
        self.bound = getattr(replaced, "bound", ())

    @property
    def differs(self) -> bool:
        """Whether the list was changed after the hooks were bound."""
        return tuple(self) != self.bound


def _reporting(name: str) -> Callable[..., Any]:
    plain = getattr(list, name)

    @functools.wraps(plain)
    def method(self: CallbackList, *args: Any, **options: Any) -> Any:
        result = plain(self, *args, **options)
        self._changed()
        return result

    return method


_CHANGING = "append extend insert remove pop clear reverse sort __setitem__ __delitem__ __iadd__ __imul__"
for _name in _CHANGING.split():
    setattr(CallbackList, _name, _reporting(_name))


class Watched:
    """A part of a machine's table. Every change of an attribute or list of callbacks reaches the machine."""

    lists: frozenset[str] = frozenset()
    """Attributes that hold callbacks or conditions."""
    machine: Machine | None = None
    """The machine that this part was added to."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.lists:
            value = CallbackList(listify(value), self.changed, vars(self).get(name))
        super().__setattr__(name, value)
        self.changed()

    def changed(self) -> None:
        """Drop the compiled table of the machine."""
        if self.machine is not None:
            self.machine.table_changed()

    def attach(self, machine: Machine, **others: object) -> None:
        """Make this a part of a machine's table; `others` are further attributes to set."""
        vars(self).update(others, machine=machine)


class MachineState(Watched, core.State):
    """A state. `name` is its value in the graph's enum, as in logs, labels and the journal."""

    lists = frozenset({"on_enter", "on_exit"})
    machine: Machine
    on_enter: CallbackList
    on_exit: CallbackList


class MachineCondition(core.Condition):
    """A guard of a transition. Its answer is a `Verdict`, or a value that is equal to True or False; None is False.

    Every other answer raises GraphError. A coroutine and most objects are true, so a guard that forgets an `await` or
    answers with a text would let every event pass. The library compares an answer with True: then a condition with
    `unless` would pass in place of the other.
    """

    arguments: tuple[str, ...] = ("context",)
    """Arguments of the function."""
    awaited = False
    """Whether the function may be async: it is awaited before the condition is evaluated."""
    waits = False
    """Whether the function is async."""
    graph = ""
    """Name of the graph, for errors."""
    edge = "a transition"
    """Description of the transition, for errors."""

    name: str
    """Name in logs, metrics and tables."""
    label: str
    """Value of `run.cursor.hook` while the guard runs."""
    function: Callable[..., Any]
    """The guard; `func` may be its name."""

    def __init__(self, func: Any, target: bool = True) -> None:  # noqa: FBT001, FBT002 - the library's signature
        name = func if isinstance(func, str) else guard_name(func) or ""
        name = name if target else f"not {name}"
        self._set(func=func, target=target, name=name, label=f"when:{name}", function=func)

    def _set(self, **attributes: object) -> None:
        # Not by `vars(self)`: Python reads the attributes of an instance whose dict exists three times as slowly.
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a condition does not change; replace it in the list `conditions` ({name})")

    def resolve(self, modules: Iterable[object], graph: str, edge: str, *, check_purity: bool) -> None:
        """Find the function that `func` names.

        Raises LookupError, or GraphError for an async function and for one that takes other arguments.

        Args:
            modules: Modules with functions that `func` may name.
            graph: Name of the graph, for errors.
            edge: Description of the transition, for errors.
            check_purity: Whether the function raises GraphError if it changes the context.
        """
        function = resolve(self.func, modules)
        waits = self.awaited and is_async(function)
        if not waits and (why := async_part(function)) is not None:
            text = f"the guard {self.name} of {edge} {why}"
            raise GraphError(graph, [LintProblem(LintRule.ASYNC_GUARD, text)])
        if not takes(function, len(self.arguments)):
            text = f"the guard {self.name} of {edge} must take ({', '.join(self.arguments)})"
            raise GraphError(graph, [LintProblem(LintRule.GUARD_ARGUMENTS, text)])
        function = pure_guard(function, graph) if check_purity else function
        self._set(function=function, waits=waits, graph=graph, edge=edge)

    def evaluate(self, run: Run[Any, Any]) -> Any:
        """Return the answer of the guard about the run: its context, and the event if that is an object."""
        return (
            self.function(run.ctx)
            if run.cursor.event_object is None
            else self.function(run.cursor.event_object, run.ctx)
        )

    def allows(self, answer: object) -> bool:
        """Return whether this answer of the guard allows the transition; `unless` inverts the answer.

        Raises GraphError for an answer that is neither a Verdict nor equal to True or False. An awaitable is closed.
        """
        decision = answer.ok if isinstance(answer, Verdict) else answer
        if decision is not True and decision is not False:
            decision = self._decision(answer)
        return decision == self.target

    def _decision(self, answer: object) -> bool:
        """Return the decision of an answer that is no Verdict with a bool, nor a bool. Raises GraphError."""
        decision, kind = answer, type(answer).__name__
        if isinstance(answer, Verdict):
            decision, kind = answer.ok, f"Verdict whose ok is a {type(answer.ok).__name__}"
        elif answer is None:
            return False
        if isinstance(decision, Awaitable):
            if isinstance(decision, Coroutine):
                decision.close()  # else Python warns that it was never awaited
            todo = ", which is always true; wait in a hook, keep the result in the context and let the guard read it"
        else:
            if decision is answer:  # records have the `ok` of a Verdict, so that is a bool
                for value in (True, False):
                    if bool(decision == value):
                        return value
            todo = "; a guard returns a Verdict, or a value equal to True or False; None is False"
        text = f"the guard {self.name} of {self.edge} returned a {kind}{todo}"
        raise GraphError(self.graph, [text])

    def check(self, run: Run[Any, Any]) -> bool:  # type: ignore[override]  # the run is our event data
        """Evaluate the guard without counting it, and return whether it allows the transition."""
        return self.allows(self.evaluate(run))


def conditions_name(conditions: Iterable[MachineCondition]) -> str | None:
    """Return the name of the conditions of a transition in tables, logs and metrics; None without conditions."""
    return ", ".join(condition.name for condition in conditions) or None


@dataclass(frozen=True, slots=True)
class CompiledTransition:
    """One transition, flattened from the lists of its machine, its states and itself."""

    transition: MachineTransition
    event: StrEnum
    source: StrEnum
    dest: StrEnum
    graph_name: str
    names: tuple[str, str, str]
    """The values of event, source and dest: reading `value` of a member is a call."""
    conditions: tuple[MachineCondition, ...]
    guard_name: str | None
    prepare: tuple[tuple[str, Hook], ...]
    """prepare_event, prepare: before the conditions are evaluated."""
    is_prepared: bool
    """Whether this or another transition of the event in this state has prepare callbacks."""
    ahead: tuple[tuple[str, Hook], ...]
    """before_<event>, before_event, leave_<source>, leave_state: can veto."""
    enter: tuple[tuple[str, Hook], ...]
    """enter_<dest>, enter_state; on a terminal state also on_final."""
    after: tuple[tuple[str, Hook], ...]
    internal: bool
    ends: bool
    """Whether it leads to a terminal state."""
    failing: bool
    """Whether it is the failure edge of its source. No hook can prevent it."""
    folded: bool
    """Whether its record may be written together with the next one: nothing outside `run.ctx` depends on it."""
    seconds: float | None
    """Seconds that the run may stay in the destination; None without a limit."""
    settle_first: bool
    """Whether a hook of the host runs before the state changes: all folded records must be durable before that."""


@dataclass(slots=True, eq=False)
class CompiledTable:
    """The compiled table of a machine, for the driver. A change of the table empties it.

    The library's Machine has `__getattr__`, which makes reading its attributes slow. The runs keep this object
    instead.
    """

    graph: Graph | None = None
    """The table as a Graph."""
    steps: dict[tuple[str, str], tuple[CompiledTransition, ...]] = field(default_factory=dict)
    """(state, event) -> the possible transitions, in table order."""
    enter: dict[str, tuple[tuple[str, Hook], ...]] = field(default_factory=dict)
    """State -> the callbacks that run when it is entered."""
    candidates: dict[tuple[str, type], tuple[CompiledTransition, ...]] = field(default_factory=dict)
    """(state, class of an event object) -> the possible transitions, for typed machines."""
    problems: tuple[object, ...] = ()
    """Why the present table is invalid, once that was found out."""

    def clear(self) -> None:
        """Drop the compiled transitions and callbacks."""
        self.graph, self.problems = None, ()
        self.steps.clear()
        self.enter.clear()
        self.candidates.clear()


class MachineTransition(Watched, core.Transition):
    """A transition: source, destination (None is internal), conditions and callbacks."""

    condition_cls = MachineCondition
    lists = frozenset({"conditions", "prepare", "before", "after"})
    machine: Machine
    prepare: CallbackList
    before: CallbackList
    after: CallbackList
    conditions: Any
    event: MachineEvent
    number: int
    """Position in the table."""


class MachineEvent(core.Event):
    """An event: for each source its transitions, in the order of the table."""

    machine: Machine

    def __init__(self, name: str, machine: Machine) -> None:
        super().__init__(name, machine)
        add_may_method(name)

    def add_transition(self, transition: core.Transition) -> None:
        """Add a transition to the table."""
        super().add_transition(transition)
        if not isinstance(transition, MachineTransition):
            raise GraphError(
                self.machine.name, [f"{transition!r} is not a MachineTransition; use add_transition"]
            )
        transition.attach(self.machine, event=self, number=self.machine.next_number())
        for kind in ("before", "after"):
            callbacks: CallbackList = getattr(transition, kind)
            callbacks.bound = tuple(self.machine.named_hooks(kind, self.name))
            callbacks[:0] = callbacks.bound

    def trigger(self, run: Run[Any, Any]) -> Coroutine[Any, Any, bool]:  # type: ignore[override]
        """Return the execution of this event, `TransitionExecutor.trigger`, which the caller awaits at once.

        Raises RunError if no driver has the run.
        """
        executor = run.control.executor
        if executor is None:
            raise RunError(f"run {run.run_id!r} has no driver; fire events with Driver.fire or Driver.drive")
        return executor.trigger(run, run.graph.events(self.name))


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
        self._changing, self._rejected = True, False
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
        self._changing = False
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
            graph_name=graph.name,
            names=(event.value, source.value, dest.value),
            conditions=conditions,
            guard_name=conditions_name(conditions),
            prepare=self._callbacks(self._preparing(transition)),
            is_prepared=bool(self.prepare_event)
            or any(one.prepare for one in transition.event.transitions[transition.source]),
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
