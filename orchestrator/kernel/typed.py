"""`StateMachine[S, E, C]`: a state machine whose events are objects, registered row by row (seed 004).

    machine: StateMachine[MyState, MyEvent, MyContext] = StateMachine("mine")
    machine.state(MyState.START).state(MyState.FINISHED).terminal(MyState.FINISHED)
    machine.transition(MyState.START, Complete, MyState.FINISHED, guard=is_good, action=keep)
    state, context = machine.run(MyState.START, MyContext(), source)

It is compiled onto the kernel's Graph, so that lint, diagrams, logs, metrics, journal and history are those of every
other machine. In each state the event source is asked for an event: `source(state, context)`, None for "no more". The
first registered edge counts that begins in the state, whose event type the event is an instance of, and whose guard
`guard(event, context)` allows it. Then run `on_exit(context)` of the old state, `action(event, context)`, and
`on_enter(context)` of the new one. An edge back to its own state runs both hooks. `on_enter` of the state in which a
run begins runs too.

Two things are other than in the seed's own code. An event without an edge, or whose guards all say no, raises
UnhandledEventError: there the source was asked again for ever; `max_unhandled` keeps "stay in the state", with a bound.
And a context is in use while it is run: a second run of it is refused (L4 and L7).
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import types
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeAlias, TypeVar, Union, cast, get_args, get_origin, overload

from orchestrator.errors import ConfigError, GraphError
from orchestrator.kernel.at_once import CoroutineWaited, at_once
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.codec import Codec
from orchestrator.kernel.diagram import FORMATS
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import is_async
from orchestrator.kernel.journal import JournalWriter
from orchestrator.kernel.lint import LintProblem
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.record import Observer
from orchestrator.kernel.run import Run
from orchestrator.kernel.typed_error import ContextInUse
from orchestrator.kernel.typed_table import (
    Parts,
    Place,
    Row,
    TypedMachine,
    asyncs,
    gaps,
    graph_of,
    state_name,
)
from orchestrator.kernel.typed_walk import Walker, ending
from orchestrator_guards import Verdict

S = TypeVar("S", bound=Hashable)
E = TypeVar("E")
C = TypeVar("C")
Ev = TypeVar("Ev")
T = TypeVar("T")

Allowed: TypeAlias = bool | Verdict

_IN_USE: dict[int, object] = {}
"""id of a context -> the run that has it. `setdefault` and `pop` of a dict are one step each, so no lock."""


class TypedResult(tuple[S, C], Generic[S, C]):  # noqa: SLOT001 - a tuple has no room for slots
    """What a run gives: `(state, context)`, and how it ended."""

    run_id: str
    outcome: Outcome
    reason: str
    """`none`, or `stalled` where the source had no more events before a terminal state."""
    transitions: int


class StateMachine(Generic[S, E, C]):
    """States, events as classes, and a context. Build it once, before runs begin; any number of threads may run it.

    `initial` is where the table begins for lint and diagrams; without it the first state that leads to every other.
    `max_unhandled` is how many events in a row may lead nowhere: the run stays in its state then and asks again; 0
    raises at the first. `observers`, `journal` and `clock` are the kernel's: History(), TransitionLog(), Metrics(),
    SqliteJournal(...); without observers nobody is told. `codec` puts the context into the records as well
    (`orchestrator.journal.context.ContextCodec(MyContext)`).
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
        self._places: dict[Hashable, Place] = {}
        self._terminal: set[Hashable] = set()
        self._rows: list[Row] = []
        self._walker: Walker | None = None
        self._asyncs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<StateMachine {self.name!r}: {len(self._places)} states, {len(self._rows)} transitions>"

    # ---- building ----

    def state(
        self,
        name: S,
        on_enter: Callable[[C], object] | None = None,
        on_exit: Callable[[C], object] | None = None,
    ) -> StateMachine[S, E, C]:
        """Register a state with its hooks; a second time replaces them. Raises ConfigError for a hook that is none."""
        _check_callable("on_enter", on_enter)
        _check_callable("on_exit", on_exit)
        self._places[name] = Place(on_enter, on_exit)
        self._walker = None
        return self

    def terminal(self, *states: S) -> StateMachine[S, E, C]:
        """Mark states in which a run ends. They are registered by `state` as all others are."""
        self._terminal.update(states)
        self._walker = None
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
        """Register an edge. `event_type` is a class, or several of them as `A | B`.

        The order of registration counts: the first edge that fits and whose guard allows it is taken. Raises
        ConfigError for what is no class, guard or action; states that nobody registers are found when the table is
        compiled.
        """
        _check_callable("guard", guard)
        _check_callable("action", action)
        for kind in _classes(event_type):
            self._rows.append(Row(from_state, kind, to_state, guard, action))
        self._walker = None
        return self

    # ---- the table ----

    @property
    def graph(self) -> Graph:
        """The table as the kernel has it. Raises GraphError with every structural fault."""
        return graph_of(self._parts(), declared=self._initial, asked=None)

    def lint(self) -> list[LintProblem]:
        """Return every problem of the table, worst first; an empty list is a clean one. Raises nothing."""
        try:
            graph = self.graph
        except GraphError as error:
            return [problem for problem in error.problems if isinstance(problem, LintProblem)]
        return [*graph.lint(), *gaps(graph)]

    def draw(self, form: str = "mermaid", current: S | None = None) -> str:
        """Return the table as mermaid, dot, table or json, `current` marked. Raises ConfigError, GraphError."""
        if form not in FORMATS:
            raise ConfigError(f"unknown format {form!r}; known: {', '.join(FORMATS)}")
        return FORMATS[form](self.graph, None if current is None else state_name(current))

    def machine(self, graph: Graph | None = None, **options: Any) -> TypedMachine:
        """Return the compiled machine, for a Driver of one's own; of `graph`, which is this one extended, if given."""
        return TypedMachine(graph or self.graph, self._parts(), **options)

    # ---- running ----

    def run(
        self,
        initial_state: S,
        context: C,
        event_source: Callable[[S, C], E | None],
        *,
        run_id: str | None = None,
    ) -> TypedResult[S, C]:
        """Run from `initial_state` until a terminal state or until the source gives None; return `(state, context)`.

        Needs no event loop and may be called inside one that is running, which waits meanwhile. Raises GraphError for
        a table that cannot work, ConfigError for async callables, UnhandledEventError, ContextInUse, and whatever a
        callable raises. The context keeps what was done until then.
        """
        walker = self._compiled(initial_state)
        self._refuse_async(event_source)
        journal = self._options["journal"]
        if journal is not None and not getattr(journal, "at_once", False):
            return _in_own_loop(lambda: self._walk(walker, initial_state, context, event_source, run_id))
        try:
            return at_once(self._walk(walker, initial_state, context, event_source, run_id, breathe=False))
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
        """Run as `run` does; source, guards, actions and hooks may be async functions, each of them, or not."""
        walker = self._compiled(initial_state)
        return await self._walk(walker, initial_state, context, event_source, run_id)

    # ---- inside ----

    def _parts(self) -> Parts:
        return Parts(self.name, dict(self._places), frozenset(self._terminal), tuple(self._rows))

    def _compiled(self, initial_state: S) -> Walker:
        """Return what drives the runs, compiled at the first of them and whenever the table has changed since."""
        walker = self._walker
        if walker is None:
            parts = self._parts()
            graph = graph_of(parts, declared=self._initial, asked=initial_state)
            self._asyncs = tuple(asyncs(parts))
            walker = self._walker = Walker(TypedMachine(graph, parts), self._max_unhandled, **self._options)
            for observer in self._options["observers"]:
                declare = getattr(observer, "declare", None)
                if declare is not None:
                    declare(graph)
        if initial_state not in self._places:
            graph_of(self._parts(), declared=None, asked=initial_state)  # says so
        return walker

    def _refuse_async(self, source: object) -> None:
        found = [*self._asyncs, *(["the event source"] if is_async(source) else [])]
        if found:
            verb = "is" if len(found) == 1 else "are"
            raise ConfigError(f"{self.name}: {', '.join(found)} {verb} async; use `await machine.arun(...)`")

    async def _walk(
        self,
        walker: Walker,
        initial_state: S,
        context: C,
        source: Callable[[S, C], Any],
        run_id: str | None,
        *,
        breathe: bool = True,
    ) -> TypedResult[S, C]:
        given: object = source
        if not callable(given):
            kind = type(given).__name__
            raise ConfigError(
                f"{self.name}: the event source is a {kind}; give a function of (state, context)"
            )
        run: Run[Any, Any] = Run(walker.machine, run_id or secrets.token_hex(16), context, None)
        run.cursor.state = state_name(initial_state)
        if context is not None and _IN_USE.setdefault(id(context), run) is not run:
            raise ContextInUse(self.name, type(context).__name__)
        try:
            await walker.walk(run, source, breathe=breathe)
        finally:
            if context is not None:
                _IN_USE.pop(id(context), None)
        return _ended(run, walker)


def _ended(run: Run[Any, Any], walker: Walker) -> TypedResult[Any, Any]:
    end: Ending = run.cursor.ending or ending(run)
    done: TypedResult[Any, Any] = TypedResult((walker.machine.objects[run.cursor.state], run.ctx))
    done.run_id, done.transitions = run.run_id, run.cursor.seq
    done.outcome, done.reason = end
    return done


def _classes(event_type: object) -> tuple[type, ...]:
    """Return the classes of an event type. Raises ConfigError for what is no class."""
    union = get_origin(event_type) in (Union, types.UnionType)
    kinds = get_args(event_type) if union else (event_type,)
    for kind in kinds:
        if not isinstance(kind, type) or get_origin(kind) is not None:
            given = f"{type(kind).__name__} {kind!r}"
            raise ConfigError(f"event_type is the {given}; give the class of the event, or several as A | B")
        if kind is type(None):
            raise ConfigError("None is no event: with it a source says that there are no more")
    return cast("tuple[type, ...]", kinds)


def _check_callable(name: str, given: object) -> None:
    if given is not None and not callable(given):
        raise ConfigError(f"{name} is a {type(given).__name__}; give a function")


def _in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a thread and an event loop of its own, with the context variables of the caller."""
    caller = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(caller.run, lambda: asyncio.run(work())).result()
