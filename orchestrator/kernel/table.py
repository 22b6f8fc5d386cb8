"""States, conditions, transitions and events of a machine: the classes of `transitions`, extended.

`transitions` lets a machine name its `state_cls`, `transition_cls`, `condition_cls` and `event_cls`; its own
`extensions/asyncio.py` builds the asynchronous machine that way, and so does this module. The objects keep the
library's attributes (`on_enter`, `on_exit`, `conditions`, `prepare`, `before`, `after`, `source`, `dest`) and its
methods (`add_callback`, `trigger`). The README of this folder lists the differences from AsyncMachine.

A `CompiledTransition` is a cache: the lists of one transition, resolved and flattened. The machine drops it when a
list changes.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from transitions import core
from transitions.core import listify

from orchestrator.errors import GraphError, RunError
from orchestrator.kernel.graph import guard_name
from orchestrator.kernel.hooks import Hook, resolve
from orchestrator.kernel.lint import LintProblem, LintRule, async_part, is_async
from orchestrator.kernel.purity import pure_guard
from orchestrator.kernel.run import add_may_method
from orchestrator_guards.verdict import Verdict

if TYPE_CHECKING:
    from orchestrator.kernel.graph import Graph
    from orchestrator.kernel.machine import Machine
    from orchestrator.kernel.run import Run


class CallbackList(list[Any]):
    """A list of callbacks or conditions that reports each change of itself."""

    def __init__(self, items: Iterable[Any], changed: Callable[[], None], replaced: object = None) -> None:
        super().__init__(items)
        self._changed = changed
        self.bound: tuple[Any, ...] = getattr(replaced, "bound", ())
        """Contents of the list when hooks were bound to the table."""

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
        vars(self).update(func=func, target=target, name=name, label=f"when:{name}", function=func)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a condition does not change; replace it in the list `conditions` ({name})")

    def resolve(self, modules: Iterable[object], graph: str, edge: str, *, check_purity: bool) -> None:
        """Find the function that `func` names. Raises LookupError, or GraphError for an async function.

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
        function = pure_guard(function, graph) if check_purity else function
        vars(self).update(function=function, waits=waits, graph=graph, edge=edge)

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
    names: tuple[str, str, str]
    """The values of event, source and dest: reading `value` of a member is a call."""
    conditions: tuple[MachineCondition, ...]
    guard_name: str | None
    prepare: tuple[tuple[str, Hook], ...]
    """prepare_event, prepare: before the conditions are evaluated."""
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
