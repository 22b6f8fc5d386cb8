"""`StateMachine[S, E, C]`: a state machine whose events are objects, registered edge by edge.

    machine: StateMachine[MyState, MyEvent, MyContext] = StateMachine("mine")
    machine.state(MyState.START).state(MyState.FINISHED).terminal(MyState.FINISHED)
    machine.transition(MyState.START, Complete, MyState.FINISHED, guard=is_good, action=keep)
    state, context = machine.run(MyState.START, MyContext(), source)

It declares a Graph, and a `Driver` drives it like every other machine; only the source of events differs. In each
state the driver calls the event source, `source(state, context)`, which returns an event, or None for "no more". The
machine takes the first registered edge that begins in the state, whose event type matches the event, and whose guard
`guard(event, context)` allows it. Then it calls `on_exit(context)` of the old state, `action(event, context)`, and
`on_enter(context)` of the new state. An edge back to its own state calls both hooks. `on_enter` of the initial state
is called, too. A table needs no terminal state: the run then ends when the source returns None.

Two things differ from the original design. An event without an edge, or whose guards all refuse, raises
UnhandledEventError; `max_unhandled` keeps "stay in the state and ask again", with a limit. And a context belongs to
one run: a second run of it is refused while the first is active.

A run stays in the task of its caller, and needs an event loop only if a callable waits. So nothing interrupts, parks
or resumes it, and an exception of a callable reaches the caller and ends the run as failed. If you need more, use
`machine.machine(...)` with your own Driver.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import secrets
import types
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, Union, cast, get_args, get_origin, overload

from transitions import core

from orchestrator.errors import ConfigError, EventError, GraphError, Refused, RunError
from orchestrator.kernel.cancellation import CallerScope, CoroutineWaited, at_once
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import Observer
from orchestrator.kernel.graph import FORMATS, Edge, Graph, enum_of, mimebundle
from orchestrator.kernel.hooks import Hook, Hooks, callback_name, takes
from orchestrator.kernel.journal import JournalWriter
from orchestrator.kernel.lint import LintProblem, LintRule, closure, edges_by_event, is_async, unusable_names
from orchestrator.kernel.machine import (
    CompiledTransition,
    Machine,
    MachineCondition,
    MachineEvent,
    MachineTransition,
)
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.purity import is_immutable
from orchestrator.kernel.run import Run
from orchestrator.kernel.writer import Codec
from orchestrator_guards import Verdict


class TypedEdge(NamedTuple):
    """One call of `StateMachine.transition`."""

    source: Hashable
    event: type
    dest: Hashable
    guard: Callable[..., Any] | None
    action: Callable[..., Any] | None


class StateHooks(NamedTuple):
    """The hooks of one call of `StateMachine.state`."""

    on_enter: Callable[..., Any] | None = None
    on_exit: Callable[..., Any] | None = None


@dataclass(slots=True)
class Declaration:
    """All registered states and edges."""

    name: str
    states: dict[Hashable, StateHooks] = field(default_factory=dict)
    terminal: set[Hashable] = field(default_factory=set)
    edges: list[TypedEdge] = field(default_factory=list)


class UnhandledEventError(EventError):
    """A typed machine received an event that leads nowhere from its state.

    `handled` lists the events that have an edge there. `verdict` is the refusal of the last guard if edges match but
    all their guards refuse.
    """

    def __init__(
        self, *, graph: str, state: str, event: str, handled: Sequence[str] = (), verdict: Any = None
    ) -> None:
        self.handled = tuple(handled)
        self.verdict = verdict
        can = ", ".join(repr(str(name)) for name in handled) or "nothing"
        why = f"not handled in state {state!r}; handled there: {can}"
        if event in self.handled:
            why = f"refused by every guard in state {state!r}"
            explain = getattr(verdict, "explain", None)
            why += "" if explain is None else f": {explain()}"
        super().__init__(f"event {event!r} is {why}", graph=graph, state=state, event=event)


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


def event_names(edges: Iterable[TypedEdge]) -> dict[type, str]:
    """Return the name of each event: that of its class, with its module if two classes share a name."""
    kinds = list(dict.fromkeys(edge.event for edge in edges))
    names = [kind.__name__ for kind in kinds]
    return {
        kind: name if names.count(name) == 1 else f"{kind.__module__}.{kind.__qualname__}"
        for kind, name in zip(kinds, names, strict=True)
    }


_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|\W+")


def _member_name(value: str) -> str:
    """Return the name under which hooks find a state or event: LLMResponseReceived is LLM_RESPONSE_RECEIVED."""
    return _BORDER.sub("_", value).strip("_").upper()


# ---- the graph ----


def graph_of(declared: Declaration, *, initial: Hashable | None, preferred: Hashable | None) -> Graph:
    """Return the table as a Graph. Raises GraphError with every structural fault.

    It starts in `initial`, else in the first state that leads to every state, with `preferred` as the first candidate.
    So neither the order of registration nor the initial state of a run changes the graph.
    """
    names = {state: state_name(state) for state in declared.states}
    used = [*declared.terminal, *(state for edge in declared.edges for state in (edge.source, edge.dest))]
    if problems := [*_faults(names, initial, preferred), *_confused(names, used)]:
        raise GraphError(declared.name, problems)
    events = event_names(declared.edges)
    edges = tuple(
        Edge(events[edge.event], (state_name(edge.source),), state_name(edge.dest), edge.guard, reenter=True)
        for edge in declared.edges
    )
    states = enum_of("State", {_member_name(name): name for name in names.values()})
    ends = cast("frozenset[StrEnum]", frozenset(map(state_name, declared.terminal)))
    root = initial if initial is not None else _root(declared, preferred)
    return Graph(
        name=declared.name,
        states=states,
        events=enum_of("Event", {_member_name(name): name for name in events.values()}),
        initial=states(names[root]),
        terminal=ends,
        rest=frozenset() if ends else frozenset(states),  # without a terminal state the source ends the run
        edges=edges,
        strict=False,
    )


def _faults(
    names: Mapping[Hashable, str], initial: Hashable | None, preferred: Hashable | None
) -> Iterator[LintProblem]:
    """Yield the reasons why the states cannot become an enum."""
    seen: set[str] = set()
    for name in names.values():
        yield from unusable_names("state", {_member_name(name): name})
        if _member_name(name) in seen:
            yield LintProblem(LintRule.TAKEN_NAME, f"two states are named {name!r}")
        seen.add(_member_name(name))
    for role, state in (("initial", initial), ("initial state", preferred)):
        if state is not None and state not in names:
            known = ", ".join(sorted(map(repr, names.values())))
            text = f"{role} {state_name(state)!r} is not registered; registered: {known or 'none'}"
            yield LintProblem(LintRule.UNKNOWN_NAME, text)
    if not names:
        yield LintProblem(LintRule.NO_END, "no state is registered")


def _confused(names: Mapping[Hashable, str], used: Iterable[Hashable]) -> Iterator[LintProblem]:
    """Yield a problem for each state that is equal to a registered one of another name, such as 1 and True."""
    for state in dict.fromkeys((state_name(state), state) for state in used):
        if names.get(state[1], state[0]) != state[0]:
            text = f"state {state[1]!r} is equal to the registered state {names[state[1]]}; give each its own value"
            yield LintProblem(LintRule.TAKEN_NAME, text)


def _root(declared: Declaration, preferred: Hashable | None) -> Hashable:
    """Return the default initial state: one from which every state can be reached."""
    first = next(iter(declared.states)) if preferred is None else preferred
    arrows = [(edge.source, edge.dest) for edge in declared.edges]
    candidates = [first, *(state for state in declared.states if state != first)]
    return next((state for state in candidates if closure({state}, arrows) >= set(declared.states)), first)


def gaps(graph: Graph) -> Iterator[LintProblem]:
    """Yield a problem for each single guarded edge: if its guard refuses, the event is unhandled."""
    for (source, event), edges in edges_by_event(graph).items():
        if len(edges) == 1 and edges[0].when is not None:
            message = (
                f"{event.value!r} in {source.value!r}: its only edge is guarded; add one without a guard"
            )
            yield LintProblem(LintRule.GUARD_GAP, message, source, event)


def asyncs(declared: Declaration) -> Iterator[str]:
    """Yield the names of the async callables of a typed machine."""
    for state, hooks in declared.states.items():
        for kind, hook in zip(hooks._fields, hooks, strict=True):
            if is_async(hook):
                yield f"{kind} of {state_name(state)!r}"
    for edge in declared.edges:
        for kind, part in (("guard", edge.guard), ("action", edge.action)):
            if is_async(part):
                yield f"the {kind} of {edge.event.__name__!r} in {state_name(edge.source)!r}"


# ---- the machine ----


class TypedCondition(MachineCondition):
    """A guard of the event and the context."""

    arguments = ("event", "context")


class AwaitedCondition(TypedCondition):
    """A guard in a state with async guards: a prepare callback awaits it, and the condition returns its answer."""

    awaited = True

    def evaluate(self, run: Run[Any, Any]) -> Any:
        """Return the answer of the guard. Raises the error of the guard, or RunError if it was not awaited."""
        answers = run.cursor.guard_answers
        if answers is None or self not in answers:
            raise RunError(f"guard {self.name} is async; it is evaluated in a transition only")
        answer = answers.pop(self)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _asking(conditions: Sequence[AwaitedCondition]) -> Hook:
    """Return the prepare callback that evaluates guards up to the first that does not allow, and awaits async ones.

    An awaitable of another function stays the answer, which the condition refuses: only an async function says before
    the run that it has to be awaited.
    """

    async def ask(run: Run[Any, Any]) -> None:
        answers = run.cursor.guard_answers = {}
        for condition in conditions:
            run.cursor.hook = condition.label
            try:
                answer = condition.function(run.cursor.event_object, run.ctx)
                if condition.waits:
                    answer = await answer
                answers[condition] = answer
                if not condition.allows(answer):
                    return
            except Exception as error:  # noqa: BLE001 - the condition raises it, so that it counts as the guard's
                answers[condition] = error
                return

    ask.__name__ = conditions[0].label
    return ask


class TypedTransition(MachineTransition):
    """A transition whose guards take the event, too."""

    condition_cls = TypedCondition


class TypedEvent(MachineEvent):
    """An event with an object: its candidates are the transitions of every event whose class matches the object."""

    machine: TypedMachine

    def add_transition(self, transition: core.Transition) -> None:
        """Add a transition to the table, with the callables that were declared for it and its source."""
        super().add_transition(transition)
        self.machine.complete_transition(cast("MachineTransition", transition))


class TypedMachine(Machine):
    """A compiled typed machine. `candidates` returns the possible transitions of an event object."""

    event_cls = TypedEvent
    transition_cls = TypedTransition

    def __init__(self, graph: Graph, declared: Declaration, hooks: Hooks | None = None) -> None:
        self._hooks = {state_name(state): hooks for state, hooks in declared.states.items()}
        self._names = event_names(declared.edges)
        self._edges: dict[tuple[object, ...], list[TypedEdge]] = {}
        """The declared edges without a transition so far."""
        for edge in declared.edges:
            key = (state_name(edge.source), self._names[edge.event], state_name(edge.dest), id(edge.guard))
            self._edges.setdefault(key, []).append(edge)
        self._awaited = {state_name(edge.source) for edge in declared.edges if is_async(edge.guard)}
        """States with async guards on their edges."""
        super().__init__(graph, hooks or Hooks({}))
        self.objects = {state_name(state): state for state in declared.states}
        """Name -> the registered state."""

    def candidates(self, state: str, kind: type) -> tuple[CompiledTransition, ...]:
        """Return the steps for an event of this class, in the order of the table; empty if it leads nowhere."""
        found = self.compiled.candidates.get((state, kind))
        if found is None:
            triggers = self.get_triggers(state)
            names = [
                name for base, name in self._names.items() if issubclass(kind, base) and name in triggers
            ]
            steps = [step for name in names for step in self.steps(state, name)]
            found = tuple(sorted(steps, key=lambda step: step.transition.number))
            self.compiled.candidates[state, kind] = found
        return found

    def steps_for(self, state: str, event: str, event_object: object) -> tuple[CompiledTransition, ...]:
        """Return the candidates of the object if the event is that of one of them; else the steps of the event."""
        steps = self.candidates(state, type(event_object))
        return steps if any(step.event == event for step in steps) else self.steps(state, event)

    def event_name(self, state: str, kind: type) -> str:
        """Return the event that an object of this class triggers. An event that leads nowhere has a name, too."""
        steps = self.candidates(state, kind)
        if steps:
            return steps[0].event
        return next((name for base, name in self._names.items() if issubclass(kind, base)), kind.__name__)

    def unhandled(self, state: str, event: str, verdict: Any = None) -> UnhandledEventError:
        """Return the error for an event that leads nowhere from a state."""
        handled = [one.value for one in self.events_from(state)]
        return UnhandledEventError(
            graph=self.graph.name, state=state, event=event, handled=handled, verdict=verdict
        )

    def _build(self, graph: Graph, hooks: Hooks) -> None:
        """Add the on_enter callables; they run before all hooks."""
        super()._build(graph, hooks)
        for name, own in self._hooks.items():
            if own.on_enter is not None:
                self.get_state(name).on_enter.insert(0, _hook("on_enter", own.on_enter))

    def complete_transition(self, transition: MachineTransition) -> None:
        """Add the declared callables to a transition; on_exit and action run before all hooks."""
        conditions: list[MachineCondition] = transition.conditions
        guard = conditions[0].func if conditions else None
        key = (transition.source, transition.event.name, transition.dest, id(guard))
        edge = self._edges[key].pop(0) if self._edges.get(key) else None  # None: it is not declared
        before: list[Hook] = []
        on_exit = self._hooks.get(transition.source, StateHooks()).on_exit
        if on_exit is not None and transition.dest is not None:
            before.append(_hook("on_exit", on_exit))
        if edge is not None and edge.action is not None:
            before.append(_hook("action", edge.action, takes_event=True))
        transition.before[:0] = before
        waits = edge is not None and transition.source in self._awaited
        if conditions and (waits or any(is_async(condition.func) for condition in conditions)):
            awaited = [AwaitedCondition(condition.func, condition.target) for condition in conditions]
            transition.conditions = awaited
            transition.prepare.append(_asking(awaited))


def _hook(name: str, function: Callable[..., Any], *, takes_event: bool = False) -> Hook:
    """Return a hook that calls a function of the context, or of the event and the context; sync or async."""

    async def hook(run: Run[Any, Any]) -> None:
        done = function(run.cursor.event_object, run.ctx) if takes_event else function(run.ctx)
        if done is not None and hasattr(done, "__await__"):
            await done

    hook.__name__ = name
    return hook


_REASONS = {
    "guard_error": "guard_error",
    "undeclared_edge": "invalid_transition",
    "unknown_event": "invalid_transition",
    "refused": "policy_stop",
    "callback_error": "callback_error",
    "journal_error": "journal_error",
}


class EventSource:
    """The source of events of one run: `ask(state, context)`.

    `max_unhandled` events in a row may lead nowhere; the next one ends the run.
    """

    def __init__(self, name: str, ask: Callable[[Any, Any], Any], max_unhandled: int) -> None:
        given: object = ask
        if not callable(given):
            kind = type(given).__name__
            raise ConfigError(f"{name}: the event source is a {kind}; give a function of (state, context)")
        self._ask = ask
        self._max_unhandled = max_unhandled
        self._unhandled = 0
        """Events in a row that led nowhere, since transition number `_seq`."""
        self._seq = 0

    def ask(self, state: Any, context: Any) -> Any:
        """Return the next event or None; an async source returns an awaitable. Raises the errors of the source."""
        try:
            return self._ask(state, context)
        except StopIteration as error:  # which a coroutine may not raise
            raise RunError(
                "the event source raised StopIteration; it gives None when there is no event left: next(events, None)"
            ) from error

    def may_continue(self, run: TypedRun) -> bool:
        """Count an event that led nowhere; return whether the run stays in its state and asks for another one."""
        self._unhandled = self._unhandled + 1 if run.cursor.seq == self._seq else 1
        self._seq = run.cursor.seq
        return self._unhandled <= self._max_unhandled


TypedRun: TypeAlias = Run[Any, EventSource]


class TypedDriver(Driver):
    """Drives the runs of one typed machine, each in the task of its caller."""

    machine: TypedMachine

    def __init__(self, machine: TypedMachine, **options: Any) -> None:
        super().__init__(machine, ending=ending, **options)

    async def complete(self, run: TypedRun, *, in_loop: bool) -> None:
        """Drive a new run until its source returns None or it is in a terminal state; then end it.

        Nothing parks or interrupts the run, so it needs an event loop only if a callable waits. Raises the errors of
        callables; the run has then ended as failed.
        """
        self._claim(run, None)
        try:
            await self._create(run)
            await self._loop_over_events(run, CallerScope(in_loop=in_loop), park=False)
        except Exception:
            await self._end_failed(run)
            raise
        except BaseException:  # cancelled, or the process stops: nothing resumes the run here
            await self._finalizer.abandon(run)
            await self._finalizer.release(run)
            raise
        finally:
            run.control.driving = False

    async def _step(self, run: TypedRun, event: StrEnum | None, *, park: bool) -> bool:  # noqa: ARG002
        """Fire the next event of the source; end the run if there is none, or in a terminal state."""
        cursor, machine = run.cursor, self.machine
        if cursor.entry_pending:
            return await self._executor.enter(run)
        given = None
        if cursor.state not in run.graph.terminal:
            cursor.hook = "source"
            given = run.deps.ask(machine.objects[cursor.state], run.ctx)
            if hasattr(given, "__await__"):
                given = await given
        if given is None:
            await self._finalizer.end(run)
            return False
        cursor.event_object = given
        cursor.pending_event = following = cast("StrEnum", machine.event_name(cursor.state, type(given)))
        await self._executor.trigger(run, following)
        return True

    def _route_to_failure(self, run: TypedRun, event: StrEnum | None, error: Exception) -> None:
        """Raise the error that ends the run, or leave the run in its state if an event led nowhere."""
        cursor = run.cursor
        event, cursor.pending_event = cursor.pending_event, None
        if cursor.hook == "on_enter" and cursor.step is not None:
            event = cursor.step.event
        failure = self._report.failed(run, event, error)
        try:
            self._raise_unless_unhandled(run, str(event), error)
        except Exception as final:
            cursor.error, cursor.failure = final, failure
            raise

    def _raise_unless_unhandled(self, run: TypedRun, event: str, error: Exception) -> None:
        """Raise the error, or UnhandledEventError for an event that led nowhere; return if another event may follow.

        A refusal by a guard means that the event led nowhere; a refusal by an action is an error.
        """
        hook = run.cursor.hook
        if not isinstance(error, EventError) or not (hook == "" or hook.startswith("when:")):
            raise error
        if not run.deps.may_continue(run):
            verdict = error.verdict if isinstance(error, Refused) else None
            raise self.machine.unhandled(run.cursor.state, event, verdict) from error

    async def _end_failed(self, run: TypedRun) -> None:
        """End a run that raised. Later errors are only published: the caller gets the first error."""
        if run.cursor.error is None:  # the journal did not take it, or another process has it
            await self._finalizer.abandon(run)
            return
        try:
            await self._finalizer.end(run)
        except Exception as late:  # noqa: BLE001 - published
            self._report.failed(run, None, late)


def ending(run: TypedRun) -> Ending:
    """Return outcome and reason of a run: it stalled if its source returned None before a terminal state."""
    if run.cursor.failure is not None:
        return Ending(Outcome.FAILED, _REASONS.get(run.cursor.failure.reason, "internal"))
    if run.state in run.graph.terminal or not run.graph.terminal:
        return Ending(Outcome.COMPLETED, "none")
    return Ending(Outcome.NO_PROGRESS, "stalled")


S = TypeVar("S", bound=Hashable)
E = TypeVar("E")
C = TypeVar("C")
Ev = TypeVar("Ev")
T = TypeVar("T")

Allowed: TypeAlias = bool | Verdict

_IN_USE: dict[int, object] = {}
"""id of a context -> the run that has it. `setdefault` and `pop` of a dict are atomic, so there is no lock."""


class ContextInUse(RunError):
    """A context that can change belongs to one run at a time: two runs would change it at the same time."""

    def __init__(self, graph: str, kind: str) -> None:
        super().__init__(
            f"{graph}: this {kind} is the context of an active run; give each run its own context"
        )
        self.graph = graph


class TypedResult(tuple[S, C], Generic[S, C]):  # noqa: SLOT001 - a tuple has no room for slots
    """The result of a run: `(state, context)`, with outcome and reason."""

    run_id: str
    outcome: Outcome
    reason: str
    """`none`, or `stalled` if the source had no more events before a terminal state."""
    transitions: int


class StateMachine(Generic[S, E, C]):
    """States, events as classes, and a context. Build it before runs begin; any number of threads may run it.

    Args:
        name: Name of the machine in logs and metrics.
        initial: Initial state for lint and diagrams; by default the first state that leads to every other.
        max_unhandled: Number of events in a row that may lead nowhere: the run stays in its state and asks again. 0
            raises at the first.
        observers: Receive the facts of runs, such as History(), TransitionLog() or Metrics().
        journal: Stores the records of runs, such as SqliteJournal(...).
        codec: Adds the context to the records, such as `orchestrator.journal.context.ContextCodec(MyContext)`.
        clock: Time source.

    Raises:
        ConfigError: `max_unhandled` is not an integer of 0 or more.

    Example:
        >>> door = StateMachine("door").state("open").state("closed").terminal("closed")
        >>> door.transition("open", str, "closed").run("open", None, lambda state, context: "push")
        ('closed', None)
    """

    def __init__(
        self,
        name: str = "machine",
        *,
        initial: S | None = None,
        max_unhandled: int = 0,
        observers: Iterable[Observer] = (),
        journal: JournalWriter | None = None,
        codec: Codec | None = None,
        clock: Clock | None = None,
    ) -> None:
        given: Any = max_unhandled
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise ConfigError(f"max_unhandled is {max_unhandled!r}; it must be 0 (raise at once) or more")
        self.name = name
        self._initial = initial
        self._max_unhandled = max_unhandled
        self._options: dict[str, Any] = {
            "observers": tuple(observers),
            "journal": journal,
            "codec": codec,
            "clock": clock,
        }
        self._declared = Declaration(name)
        self._driver: TypedDriver | None = None
        """Drives the runs; created at the first run and after each change of the table."""
        self._asyncs: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_driver": None}  # a copy compiles its table at its first run

    def __repr__(self) -> str:
        states, edges = self._declared.states, self._declared.edges
        return f"<StateMachine {self.name!r}: {len(states)} states, {len(edges)} transitions>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        try:
            return mimebundle(self.graph)
        except GraphError:  # it is not complete yet
            return {"text/plain": repr(self)}

    # ---- building ----

    def state(
        self,
        name: S,
        on_enter: Callable[[C], object] | None = None,
        on_exit: Callable[[C], object] | None = None,
    ) -> StateMachine[S, E, C]:
        """Register a state with its hooks; a second call replaces them.

        Raises ConfigError for a hook that cannot be called with the context, and for a state that is equal to one of
        another name.
        """
        _check_callable("on_enter", on_enter, "context")
        _check_callable("on_exit", on_exit, "context")
        known = next((known for known in self._declared.states if known == name), name)
        if state_name(known) != state_name(name):
            raise ConfigError(
                f"state {name!r} is equal to state {known!r}, which is registered; give each its own value"
            )
        self._declared.states[name] = StateHooks(on_enter, on_exit)
        self._driver = None
        return self

    def terminal(self, *states: S) -> StateMachine[S, E, C]:
        """Mark states in which a run ends. Register them with `state` like all others."""
        self._declared.terminal.update(states)
        self._driver = None
        return self

    @overload
    def transition(
        self, from_state: S, event_type: type[E], to_state: S, guard: None = None, action: None = None
    ) -> StateMachine[S, E, C]: ...
    @overload
    def transition(
        self,
        from_state: S,
        event_type: type[Ev],
        to_state: S,
        guard: Callable[[Ev, C], Allowed | Awaitable[Allowed]] | None,
        action: Callable[[Ev, C], object] | None = None,
    ) -> StateMachine[S, E, C]: ...
    @overload
    def transition(
        self,
        from_state: S,
        event_type: type[Ev],
        to_state: S,
        *,
        action: Callable[[Ev, C], object],
    ) -> StateMachine[S, E, C]: ...
    def transition(
        self,
        from_state: S,
        event_type: type[Any],
        to_state: S,
        guard: Callable[[Any, C], Allowed | Awaitable[Allowed]] | None = None,
        action: Callable[[Any, C], object] | None = None,
    ) -> StateMachine[S, E, C]:
        """Register an edge. `event_type` is a class, or several as `A | B`.

        The order of registration counts: the first edge that matches and whose guard allows it is taken. Raises
        ConfigError for an invalid class, guard or action. States that are not registered are found when the table is
        compiled.
        """
        _check_callable("guard", guard, "event", "context")
        _check_callable("action", action, "event", "context")
        for kind in _classes(event_type):
            self._declared.edges.append(TypedEdge(from_state, kind, to_state, guard, action))
        self._driver = None
        return self

    # ---- the table ----

    @property
    def graph(self) -> Graph:
        """The table as a Graph. Raises GraphError with every structural fault."""
        return graph_of(self._declared, initial=self._initial, preferred=None)

    def lint(self) -> list[LintProblem]:
        """Return every problem of the table, worst first; an empty list if there is none. Raises nothing."""
        try:
            graph = self.graph
        except GraphError as error:
            return [problem for problem in error.problems if isinstance(problem, LintProblem)]
        return [*_without_awaited(graph.lint(), self._declared), *gaps(graph)]

    def draw(self, form: str = "mermaid", current: S | None = None) -> str:
        """Return the table as mermaid, dot, table or json, with `current` marked. Raises ConfigError, GraphError."""
        if form not in FORMATS:
            raise ConfigError(f"unknown format {form!r}; known: {', '.join(FORMATS)}")
        return FORMATS[form](self.graph, None if current is None else state_name(current))

    def machine(self, graph: Graph | None = None, **options: Any) -> TypedMachine:
        """Return the compiled machine, for your own Driver. `graph` is the graph of this machine with extensions."""
        return TypedMachine(graph or self.graph, self._declared, **options)

    # ---- running ----

    def run(
        self,
        initial_state: S,
        context: C,
        event_source: Callable[[S, C], E | None],
        *,
        run_id: str | None = None,
    ) -> TypedResult[S, C]:
        """Run until a terminal state, or until the source returns None; return `(state, context)`.

        Needs no event loop. Inside a running event loop, the loop waits meanwhile. After an error the context keeps
        all changes until then.

        Args:
            initial_state: State in which the run begins.
            context: The context; guards read it, actions and hooks change it.
            event_source: Returns the next event for a state and the context, or None if there are no more.
            run_id: Unique name of the run; None chooses one.

        Raises:
            GraphError: The table is invalid.
            ConfigError: A callable is async; use `arun`.
            UnhandledEventError: An event leads nowhere from its state.
            ContextInUse: Another run has the context.
            Exception: Any error of a callable.
        """
        driver = self._compiled(initial_state)
        self._refuse_async(event_source)
        journal = self._options["journal"]
        if journal is not None and not getattr(journal, "at_once", False):
            return _in_own_loop(lambda: self._drive(driver, initial_state, context, event_source, run_id))
        try:
            return at_once(self._drive(driver, initial_state, context, event_source, run_id, in_loop=False))
        except CoroutineWaited:
            raise ConfigError(
                f"{self.name}: a callable waited, which needs an event loop; use `await machine.arun(...)`"
            ) from None

    async def arun(
        self,
        initial_state: S,
        context: C,
        event_source: Callable[[S, C], E | Awaitable[E | None] | None],
        *,
        run_id: str | None = None,
    ) -> TypedResult[S, C]:
        """Run as `run` does; source, guards, actions and hooks may each be an async function or not."""
        driver = self._compiled(initial_state)
        return await self._drive(driver, initial_state, context, event_source, run_id)

    # ---- inside ----

    def _compiled(self, initial_state: S) -> TypedDriver:
        """Return the driver of the runs, compiled for the first run and after each change of the table."""
        if self._driver is None or initial_state not in self._declared.states:
            declared = self._declared
            graph = graph_of(declared, initial=self._initial, preferred=initial_state)
            self._asyncs = tuple(asyncs(declared))
            self._driver = TypedDriver(TypedMachine(graph, declared), **self._options)
            for observer in self._options["observers"]:
                declare = getattr(observer, "declare", None)
                if declare is not None:
                    declare(graph)
        return self._driver

    def _refuse_async(self, source: object) -> None:
        found = [*self._asyncs, *(["the event source"] if is_async(source) else [])]
        if found:
            verb = "is" if len(found) == 1 else "are"
            raise ConfigError(f"{self.name}: {', '.join(found)} {verb} async; use `await machine.arun(...)`")

    async def _drive(
        self,
        driver: TypedDriver,
        initial_state: S,
        context: C,
        ask: Callable[[S, C], Any],
        run_id: str | None,
        *,
        in_loop: bool = True,
    ) -> TypedResult[S, C]:
        source = EventSource(self.name, ask, self._max_unhandled)
        run: TypedRun = Run(driver.machine, run_id or secrets.token_hex(16), context, source)
        run.cursor.state = state_name(initial_state)
        shared = is_immutable(context)  # Python has one object for equal ones, such as 1 and ()
        if not shared and _IN_USE.setdefault(id(context), run) is not run:
            raise ContextInUse(self.name, type(context).__name__)
        try:
            await driver.complete(run, in_loop=in_loop)
        finally:
            if not shared:
                _IN_USE.pop(id(context), None)
        return _result(run)


def _result(run: TypedRun) -> TypedResult[Any, Any]:
    machine = cast("TypedMachine", run.machine)
    done: TypedResult[Any, Any] = TypedResult((machine.objects[run.cursor.state], run.ctx))
    done.run_id, done.transitions = run.run_id, run.cursor.seq
    done.outcome, done.reason = run.cursor.ending or ending(run)
    return done


def _without_awaited(problems: Iterable[LintProblem], declared: Declaration) -> Iterator[LintProblem]:
    """Yield the problems without those of async guards, which `arun` awaits."""
    names = event_names(declared.edges)
    awaited = {
        (state_name(edge.source), names[edge.event]) for edge in declared.edges if is_async(edge.guard)
    }
    for problem in problems:
        if problem.rule is not LintRule.ASYNC_GUARD or (problem.state, problem.event) not in awaited:
            yield problem


def _classes(event_type: object) -> tuple[type, ...]:
    """Return the classes of an event type. Raises ConfigError for a value that is not a class."""
    union = get_origin(event_type) in (Union, types.UnionType)
    kinds = get_args(event_type) if union else (event_type,)
    for kind in kinds:
        if not isinstance(kind, type) or get_origin(kind) is not None:
            given = f"{type(kind).__name__} {kind!r}"
            raise ConfigError(f"event_type is the {given}; give the class of the event, or several as A | B")
        if kind is type(None):
            raise ConfigError("None is no event: with it a source says that there are no more")
    return cast("tuple[type, ...]", kinds)


def _check_callable(name: str, given: object, *arguments: str) -> None:
    if given is None:
        return
    wanted = f"a function of ({', '.join(arguments)})"
    if not callable(given):
        raise ConfigError(f"{name} is a {type(given).__name__}; give {wanted}")
    if not takes(given, len(arguments)):
        raise ConfigError(f"{name} {callback_name(given)!r} takes other arguments; give {wanted}")


def _in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in its own thread and event loop, with the context variables of the caller."""
    caller = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(caller.run, lambda: asyncio.run(work())).result()
