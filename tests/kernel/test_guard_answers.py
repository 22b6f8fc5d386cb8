"""A guard that answers with anything but a decision stops the event: no answer lets an edge pass by being an object."""

from __future__ import annotations

import asyncio
import functools
import gc
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from orchestrator.errors import GraphError, Refused
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import EventFailed, GuardEvaluated
from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.lint import LintRule, async_part
from orchestrator.kernel.run import Run
from orchestrator.kernel.typed import StateMachine
from orchestrator_guards.verdict import Verdict
from tests.kernel.toy import TOY, Context, E, Rig, S, machine, moves, rig
from tests.kernel.typed_toy import Go, Notes, Place, plain


class NumpyBool:
    """Equal to True or False as numpy.bool_ is: the comparison gives an object of its own kind."""

    def __init__(self, *, value: bool) -> None:
        self.value = value

    def __eq__(self, other: object) -> Any:
        return NumpyBool(value=self.value == other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return self.value


class Series:
    """Has no truth, as a pandas.Series."""

    def __eq__(self, other: object) -> Any:
        return Series()

    def __hash__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        raise ValueError("the truth value of a Series is ambiguous")


async def deny(*_: Any) -> bool:
    return False


def unawaited() -> Any:
    return deny()


def answers(answer: Callable[[], Any]) -> Callable[[Context], Any]:
    def guard(_: Context) -> Any:
        return answer()

    return guard


def guarded(a: Rig, guard: Any, event: str = "start", source: str = "init", **kind: Any) -> None:
    """Put a guard on an event, with no other way for it."""
    (row,) = a.run.machine.get_transitions(event, source)
    condition: Any = a.run.machine.transition_cls.condition_cls
    row.conditions = [condition(guard, **kind)]


@pytest.fixture(autouse=True)
def _no_coroutine_is_left() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()


# ---- at run time ----

DECISIONS = [
    (lambda: True, True),
    (lambda: 1, True),
    (lambda: 1.0, True),
    (lambda: Decimal(1), True),
    (lambda: NumpyBool(value=True), True),
    (lambda: Verdict(ok=True, guard="mine"), True),
    (lambda: False, False),
    (lambda: 0, False),
    (lambda: None, False),
    (lambda: NumpyBool(value=False), False),
    (lambda: Verdict(ok=False, guard="mine"), False),
]


@pytest.mark.parametrize(("answer", "allows"), DECISIONS)
async def test_a_verdict_and_what_equals_a_bool_is_a_decision(
    answer: Callable[[], Any], allows: bool
) -> None:
    a = rig(journal=MemoryJournal())
    guarded(a, answers(answer))
    assert a.run.may("start") is allows
    await a.driver.drive(a.run)
    assert a.run.cursor.state == ("done" if allows else "lost")
    assert [fact.result for fact in a.facts.of(GuardEvaluated)] == ["allow" if allows else "deny"]
    assert isinstance(a.run.error, Refused) is not allows


@pytest.mark.parametrize(("answer", "allows"), DECISIONS)
async def test_unless_inverts_the_decision(answer: Callable[[], Any], allows: bool) -> None:
    a = rig()
    guarded(a, answers(answer), target=False)
    await a.driver.drive(a.run)
    assert a.run.cursor.state == ("lost" if allows else "done")


ANSWERS = {
    "coroutine": unawaited,
    "future": lambda: asyncio.get_running_loop().create_future(),
    "str": lambda: "no",
    "empty str": lambda: "",
    "int": lambda: 2,
    "list": list,
    "dict": lambda: {"ok": False},
    "object": object,
    "iterator": lambda: iter(()),
    "function": lambda: deny,
    "Series": Series,
    "Verdict whose ok is a coroutine": lambda: Verdict(ok=deny(), guard="mine"),  # type: ignore[arg-type]
    "Verdict whose ok is a str": lambda: Verdict(ok="no", guard="mine"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("target", [True, False])
@pytest.mark.parametrize("kind", ANSWERS)
async def test_any_other_answer_takes_the_failure_edge(kind: str, target: bool) -> None:
    journal = MemoryJournal()
    a = rig(journal=journal)
    guarded(a, answers(ANSWERS[kind]), target=target)
    await a.driver.drive(a.run)
    assert [body["event"] for body in moves(journal)] == ["fail"]
    assert [fact.result for fact in a.facts.of(GuardEvaluated)] == ["error"]
    assert [fact.reason for fact in a.facts.of(EventFailed)] == ["guard_error"]
    assert a.run.ending is not None
    assert a.run.ending.outcome == "failed"


async def test_the_error_names_guard_and_edge_and_what_to_do() -> None:
    a = rig()
    guarded(a, answers(unawaited))
    with pytest.raises(GraphError) as caught:
        a.run.may("start")
    assert "the guard guard of 'start' from 'init' to 'work' returned a coroutine" in str(caught.value)
    assert "wait in a hook, keep the result in the context and let the guard read it" in str(caught.value)


async def test_an_answer_is_no_part_of_the_error() -> None:
    a = rig()
    guarded(a, answers(lambda: "the secret"))
    await a.driver.drive(a.run)
    assert "returned a str; a guard returns a Verdict, or a value equal to True or False" in str(a.run.error)
    assert "secret" not in str(a.run.error)


async def test_a_guard_on_a_failure_edge_that_answers_with_a_coroutine_does_not_take_that_edge() -> None:
    edges = (
        *(edge for edge in TOY.edges if edge.event != E.FAIL),
        Edge(E.FAIL, tuple(S), S.DONE, answers(unawaited)),
        Edge(E.FAIL, tuple(S), S.LOST),
    )
    graph = Graph("toy", S, E, S.INIT, edges, TOY.terminal, waiting=TOY.waiting, failure=E.FAIL, strict=False)

    async def fails(run: Run[Any, Any]) -> None:
        raise OSError

    a = rig(graph=graph, enter_work=fails)
    await a.driver.drive(a.run)
    assert (a.run.cursor.state, type(a.run.error)) == ("lost", OSError)


# ---- where it can be known before ----


class AsyncCall:
    async def __call__(self, _: Any) -> bool:
        return False

    async def method(self, _: Any) -> bool:
        return False


class AllOf:
    def __init__(self, *guards: Any) -> None:
        self.guards = guards

    def __call__(self, ctx: Any) -> bool:
        return all(guard(ctx) for guard in self.guards)


def all_of(*guards: Any) -> Any:
    return lambda ctx: all(guard(ctx) for guard in guards)


def negated(guard: Any) -> Any:
    return lambda ctx: not guard(ctx)


def both(first: Any, second: Any, ctx: Any) -> bool:
    return bool(first(ctx) and second(ctx))


def may(_: Any) -> bool:
    return True


async def streams(_: Any) -> Any:
    yield False


ASYNC_GUARDS = {
    "function": deny,
    "generator": streams,
    "callable object": AsyncCall(),
    "method": AsyncCall().method,
    "partial": functools.partial(deny, 1),
    "partial of a partial of a callable object": functools.partial(functools.partial(AsyncCall())),
    "closure over guards": all_of(may, deny),
    "closure over one guard": negated(AsyncCall()),
    "closure over a closure": all_of(may, negated(all_of(may, deny))),
    "arguments of a partial": functools.partial(both, may, deny),
    "keyword of a partial": functools.partial(both, second=deny, first=may),
    "object with guards": AllOf(may, AllOf(may, deny)),
}


@pytest.mark.parametrize("kind", ASYNC_GUARDS)
def test_an_async_guard_is_refused_when_the_graph_is_made_bound_or_changed(kind: str) -> None:
    guard = ASYNC_GUARDS[kind]
    with pytest.raises(GraphError, match="a coroutine is always true") as caught:
        Graph("toy", S, E, S.INIT, _with(guard), TOY.terminal, waiting=TOY.waiting, failure=E.FAIL)
    assert LintRule.ASYNC_GUARD in {problem.rule for problem in caught.value.problems}  # type: ignore[attr-defined]
    lax = Graph("toy", S, E, S.INIT, _with(guard), TOY.terminal, waiting=TOY.waiting, strict=False)
    with pytest.raises(GraphError, match=r"'start' from 'init' to 'work'.*a coroutine is always true"):
        machine(lax)
    a = rig()
    guarded(a, guard)
    with pytest.raises(GraphError, match="a coroutine is always true"):
        _ = a.run.machine.graph


@pytest.mark.parametrize("guard", [lambda: True, lambda event, ctx: True, functools.partial(may, 1)])
def test_a_guard_of_other_arguments_is_refused_when_the_machine_is_made_or_changed(guard: Any) -> None:
    with pytest.raises(GraphError, match=r"'start' from 'init' to 'work' must take \(context\)") as caught:
        machine(Graph("toy", S, E, S.INIT, _with(guard), TOY.terminal, waiting=TOY.waiting, strict=False))
    assert [problem.rule for problem in caught.value.problems] == [LintRule.GUARD_ARGUMENTS]  # type: ignore[attr-defined]
    a = rig()
    guarded(a, guard)
    with pytest.raises(GraphError, match=r"must take \(context\)"):
        _ = a.run.machine.steps(S.INIT, E.START)


def _with(guard: Any) -> tuple[Edge, ...]:
    return (Edge(E.START, (S.INIT,), S.WORK, guard), *TOY.edges[1:])


@pytest.mark.parametrize("order", [(may, deny), (deny, may)])
def test_a_second_async_condition_of_the_library_is_refused(order: Any) -> None:
    made = machine()
    made.remove_transition("start")
    made.add_transition("start", "init", "work", conditions=list(order))
    with pytest.raises(GraphError, match="the guard deny of 'start' from 'init' to 'work' is async"):
        _ = made.graph


def test_an_async_condition_given_by_its_name_is_refused() -> None:
    made = machine()
    made.remove_transition("start")
    made.add_transition("start", "init", "work", conditions="tests.kernel.test_guard_answers.deny")
    with pytest.raises(GraphError, match="is async; a coroutine is always true"):
        _ = made.graph


@pytest.mark.parametrize(
    "guard", [may, functools.partial(both, may, may), all_of(may, may), AllOf(may), Verdict, bool, len]
)
def test_a_guard_without_an_async_part_is_none(guard: Any) -> None:
    assert async_part(guard) is None


# ---- typed machines ----


async def test_a_typed_guard_that_returns_an_awaitable_ends_the_run() -> None:
    made = plain().transition(Place.START, Go, Place.WORK, guard=lambda e, c: deny(e))
    made.transition(Place.WORK, Go, Place.DONE)
    with pytest.raises(GraphError, match="of 'Go' from 'START' to 'WORK' returned a coroutine"):
        await made.arun(Place.START, Notes(), lambda s, c: Go())
    with pytest.raises(GraphError, match="returned a coroutine"):
        made.run(Place.START, Notes(), lambda s, c: Go())


async def test_an_awaitable_is_refused_beside_an_async_guard_too() -> None:
    made = plain().transition(Place.START, Go, Place.WORK, guard=deny)
    made.transition(Place.START, Go, Place.DONE, guard=lambda e, c: deny(e))
    made.transition(Place.WORK, Go, Place.DONE)
    with pytest.raises(GraphError, match="of 'Go' from 'START' to 'DONE' returned a coroutine"):
        await made.arun(Place.START, Notes(), lambda s, c: Go())


async def test_a_typed_guard_with_an_async_part_is_refused_before_the_run() -> None:
    made = plain().transition(Place.START, Go, Place.WORK, guard=functools.partial(both, deny))
    made.transition(Place.WORK, Go, Place.DONE)
    assert next(problem.rule for problem in made.lint()) == LintRule.ASYNC_GUARD
    with pytest.raises(GraphError, match="calls deny, which is async"):
        await made.arun(Place.START, Notes(), lambda s, c: Go())


def test_lint_of_a_typed_machine_has_nothing_against_an_async_guard_that_arun_awaits() -> None:
    made: StateMachine[str, Go, Any] = StateMachine("door")
    made.state("open").state("closed").terminal("closed")
    made.transition("open", Go, "closed", deny).transition("open", Go, "closed")
    assert made.lint() == []


@pytest.mark.parametrize(
    ("conditions", "unless", "allows"),
    [([deny, may], [], False), ([may, deny], [], False), ([may], [deny], True), ([], [deny, may], False)],
)
async def test_every_condition_of_a_typed_transition_of_the_library_counts(
    conditions: list[Any], unless: list[Any], allows: bool
) -> None:
    def takes_both(guard: Any) -> Any:
        return guard if guard is deny else lambda _event, _notes: guard(None)

    made = plain().transition(Place.START, Go, Place.WORK).transition(Place.WORK, Go, Place.DONE).machine()
    made.remove_transition("Go", "START")
    made.add_transition(
        "Go", "START", "DONE", conditions=[*map(takes_both, conditions)], unless=[*map(takes_both, unless)]
    )
    made.add_transition("Go", "START", "WORK")
    run: Run[Notes, None] = Run(made, "r", Notes(), None)
    driver = Driver(made)
    await driver.start(run)
    run.set_event_object(Go())
    await driver.fire(run, made.graph.events("Go"))
    assert run.cursor.state == ("DONE" if allows else "WORK")
