"""The compiled form of a `StateMachine`: a Graph of names, and a Machine that calls its guards, actions and hooks."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, NamedTuple, cast

from transitions import core

from orchestrator.errors import EventError, GraphError, RunError
from orchestrator.kernel.graph import Edge, Graph, enum_of
from orchestrator.kernel.hooks import Hook, Hooks
from orchestrator.kernel.lint import LintProblem, LintRule, closure, edges_by_event, is_async, unusable_names
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.kernel.table import CompiledTransition, MachineCondition, MachineEvent, MachineTransition


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


class AwaitedCondition(MachineCondition):
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
