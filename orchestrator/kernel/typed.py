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
import secrets
import types
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeAlias, TypeVar, Union, cast, get_args, get_origin, overload

from orchestrator.errors import ConfigError, GraphError, RunError
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.codec import Codec
from orchestrator.kernel.diagram import FORMATS, mimebundle
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import JournalWriter
from orchestrator.kernel.lint import LintProblem, LintRule, is_async
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.purity import is_immutable
from orchestrator.kernel.record import Observer
from orchestrator.kernel.run import Run
from orchestrator.kernel.thread import CoroutineWaited, at_once
from orchestrator.kernel.typed_driver import EventSource, TypedDriver, TypedRun, ending
from orchestrator.kernel.typed_machine import (
    Declaration,
    StateHooks,
    TypedEdge,
    TypedMachine,
    asyncs,
    event_names,
    gaps,
    graph_of,
    state_name,
)
from orchestrator_guards import Verdict

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

        Raises ConfigError for a hook that is not callable, and for a state that is equal to one of another name.
        """
        _check_callable("on_enter", on_enter)
        _check_callable("on_exit", on_exit)
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
        _check_callable("guard", guard)
        _check_callable("action", action)
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


def _check_callable(name: str, given: object) -> None:
    if given is not None and not callable(given):
        raise ConfigError(f"{name} is a {type(given).__name__}; give a function")


def _in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in its own thread and event loop, with the context variables of the caller."""
    caller = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(caller.run, lambda: asyncio.run(work())).result()
