"""The engine of seed 004: registering, order of callables, choice of the edge, ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

import pytest

from orchestrator.errors import ConfigError, GraphError, RunError
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import (
    EventFailed,
    GuardEvaluated,
    RunCompleted,
    RunStarted,
    Transition,
)
from orchestrator.kernel.graph import bounding
from orchestrator.kernel.lint import LintRule
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.run import Run
from orchestrator.kernel.typed import StateMachine, TypedMachine, UnhandledEventError
from orchestrator.telemetry.history import History
from orchestrator_guards import Verdict
from tests.kernel.typed_toy import (
    Again,
    Facts,
    Finish,
    Go,
    Notes,
    Place,
    gives,
    names,
    plain,
    toy,
)

# ---- running ----


def test_a_run_gives_the_last_state_and_the_context_it_was_given() -> None:
    notes = Notes()
    state, context = toy().run(Place.START, notes, gives(Go(), Finish("x")))
    assert state is Place.DONE
    assert context is notes


def test_the_old_state_is_left_then_the_action_runs_then_the_new_state_is_entered() -> None:
    notes = Notes()
    toy().run(Place.START, notes, gives(Go(1), Finish("x")))
    assert notes.lines == [
        "enter start",
        "exit start",
        "go 1",
        "enter work",
        "exit work",
        "finish x",
        "enter done",
    ]


def test_an_edge_back_to_its_own_state_leaves_and_enters_it() -> None:
    notes = Notes()
    toy().run(Place.WORK, notes, gives(Again(2), Finish()))
    assert notes.lines == [
        "enter work",
        "exit work",
        "again 2",
        "enter work",
        "exit work",
        "finish ",
        "enter done",
    ]


def test_a_run_may_begin_in_any_state_and_enters_it() -> None:
    notes = Notes()
    state, _ = toy().run(Place.WORK, notes, gives(Finish()))
    assert state is Place.DONE
    assert notes.lines[0] == "enter work"


def test_a_run_that_begins_in_a_terminal_state_enters_it_and_asks_for_nothing() -> None:
    notes = Notes()

    def source(_place: Place, _notes: Notes) -> Go:
        raise AssertionError("asked")

    done = toy().run(Place.DONE, notes, source)
    assert (done[0], notes.lines, done.transitions) == (Place.DONE, ["enter done"], 0)
    assert (done.outcome, done.reason) == (Outcome.COMPLETED, "none")


def test_no_more_events_is_a_normal_end_that_says_stalled() -> None:
    facts = Facts()
    done = toy(observers=[facts]).run(Place.START, Notes(), gives(Go()))
    assert (done[0], done.outcome, done.reason) == (Place.WORK, Outcome.NO_PROGRESS, "stalled")
    (end,) = facts.of(RunCompleted)
    assert (end.state, end.outcome, end.reason) == ("WORK", "no_progress", "stalled")


def test_the_source_sees_each_state_as_it_was_registered_and_the_context() -> None:
    seen: list[tuple[Place, Notes]] = []
    notes = Notes()
    events = gives(Go(), Again(), Finish())

    def source(place: Place, given: Notes) -> Any:
        seen.append((place, given))
        return events(place, given)

    toy().run(Place.START, notes, source)
    assert [place for place, _ in seen] == [Place.START, Place.WORK, Place.WORK]
    assert all(given is notes for _, given in seen)


def test_a_context_may_be_any_object_with_or_without_attributes() -> None:
    machine: StateMachine[str, Go, Any] = StateMachine()
    machine.state("a").state("b").terminal("b").transition(
        "a", Go, "b", action=lambda e, c: c.append(e.number)
    )
    given: tuple[Any, ...] = ([], None)
    for context in given:
        if context is None:
            machine = StateMachine()
            machine.state("a").state("b").terminal("b").transition("a", Go, "b")
        state, got = machine.run("a", context, lambda s, c: Go(3))
        assert (state, got) == ("b", None if context is None else [3])


def test_the_same_machine_runs_again_and_again_with_a_fresh_context() -> None:
    machine = toy()
    for number in range(3):
        _, notes = machine.run(Place.START, Notes(), gives(Go(number), Finish()))
        assert notes.lines[2] == f"go {number}"


def test_a_run_of_ten_thousand_events_needs_no_more_stack_than_one() -> None:
    machine = toy()
    done = machine.run(Place.WORK, Notes(), gives(*[Again(n) for n in range(10_000)], Finish()))
    assert done.transitions == 10_001


# ---- which edge ----


def test_the_first_registered_edge_that_fits_wins() -> None:
    notes = Notes()
    machine = plain()
    machine.transition(Place.START, Go, Place.DONE, action=lambda e, c: c.add("first"))
    machine.transition(Place.START, Go, Place.WORK, action=lambda e, c: c.add("second"))
    assert machine.run(Place.START, notes, gives(Go()))[0] is Place.DONE
    assert notes.lines == ["first"]


def test_a_guard_that_says_no_leaves_the_event_to_the_next_edge() -> None:
    machine = plain()
    machine.transition(Place.START, Go, Place.DONE, guard=lambda e, c: e.number > 5)
    machine.transition(Place.START, Go, Place.WORK)
    assert machine.run(Place.START, Notes(), gives(Go(1)))[0] is Place.WORK
    assert machine.run(Place.START, Notes(), gives(Go(6)))[0] is Place.DONE


def test_a_guard_gets_the_event_and_the_context_and_is_asked_once() -> None:
    asked: list[tuple[Any, Any]] = []

    def guard(event: Go, notes: Notes) -> bool:
        asked.append((event, notes))
        return True

    machine, notes = plain(), Notes()
    machine.transition(Place.START, Go, Place.DONE, guard=guard).transition(Place.START, Finish, Place.WORK)
    event = Go(4)
    machine.run(Place.START, notes, gives(event))
    assert len(asked) == 1
    assert asked[0][0] is event
    assert asked[0][1] is notes


@dataclass(slots=True, frozen=True)
class Base:
    pass


class Derived(Base):
    pass


class Other:
    pass


class Both(Derived, Other):
    pass


@pytest.mark.parametrize(
    ("order", "event", "taken"),
    [
        ((Base, Derived), Derived(), "Base"),
        ((Derived, Base), Derived(), "Derived"),
        ((Derived, Base), Base(), "Base"),
        ((Other, Derived, Base), Both(), "Other"),
        ((Base, Other), Both(), "Base"),
    ],
)
def test_an_event_fits_an_edge_of_its_class_or_of_one_above_it(
    order: tuple[type, ...], event: object, taken: str
) -> None:
    took: list[str] = []

    def noting(kind: type) -> Callable[[Any, None], None]:
        return lambda _event, _context: took.append(kind.__name__)

    machine: StateMachine[str, Any, None] = StateMachine()
    machine.state("a").state("b").terminal("b")
    for kind in order:
        machine.transition("a", kind, "b", action=noting(kind))
    machine.run("a", None, lambda s, c: event)
    assert took == [taken]


def test_edges_of_a_class_and_of_one_above_it_are_asked_in_the_order_of_registration() -> None:
    asked: list[str] = []

    def refuses(name: str) -> Any:
        return lambda e, c: bool(asked.append(name))  # type: ignore[func-returns-value]

    machine: StateMachine[str, Any, None] = StateMachine()
    machine.state("a").state("b").terminal("b")
    machine.transition("a", Base, "b", guard=refuses("1"))
    machine.transition("a", Derived, "b", guard=refuses("2"))
    machine.transition("a", Base, "b", guard=refuses("3"))
    machine.transition("a", Derived, "b")
    assert machine.run("a", None, lambda s, c: Derived())[0] == "b"
    assert asked == ["1", "2", "3"]


def test_several_event_types_may_share_an_edge() -> None:
    machine = plain()
    machine.transition(Place.START, Finish, Place.WORK)
    machine.transition(Place.START, Go | Again, Place.DONE)  # type: ignore[arg-type]
    assert machine.run(Place.START, Notes(), gives(Go()))[0] is Place.DONE
    assert machine.run(Place.START, Notes(), gives(Again()))[0] is Place.DONE


def test_a_guard_may_give_a_verdict_that_explains_itself() -> None:
    machine = plain()

    @bounding
    def few(event: Again, notes: Notes) -> Verdict:
        return Verdict(notes.iteration < 2, "few", notes.iteration, 2)

    machine.transition(
        Place.START, Again, Place.START, few, lambda e, c: setattr(c, "iteration", c.iteration + 1)
    )
    machine.transition(Place.START, Finish, Place.WORK)
    machine.transition(Place.WORK, Finish, Place.DONE)
    notes = Notes()
    with pytest.raises(UnhandledEventError) as caught:
        machine.run(Place.START, notes, lambda s, c: Again())
    assert notes.iteration == 2
    assert caught.value.verdict == Verdict(False, "few", 2, 2)
    assert "few" in str(caught.value)


# ---- what leads nowhere ----


def test_an_event_without_an_edge_raises_and_says_what_is_handled() -> None:
    notes, facts = Notes(), Facts()
    with pytest.raises(UnhandledEventError) as caught:
        toy(observers=[facts]).run(Place.START, notes, gives(Finish()))
    error = caught.value
    assert (error.graph, error.state, error.event, error.handled) == ("toy", "START", "Finish", ("Go",))
    assert str(error) == "toy: event 'Finish' is not handled in state 'START'; handled there: 'Go'"
    assert notes.lines == ["enter start"]
    (failed,) = facts.of(EventFailed)
    assert (failed.state, failed.event, failed.reason, failed.committed) == (
        "START",
        "Finish",
        "undeclared_edge",
        False,
    )
    (end,) = facts.of(RunCompleted)
    assert (end.outcome, end.reason) == ("failed", "invalid_transition")


def test_an_event_of_a_class_that_stands_in_no_edge_raises() -> None:
    facts = Facts()
    with pytest.raises(UnhandledEventError, match="event 'Other' is not handled in state 'START'"):
        toy(observers=[facts]).run(Place.START, Notes(), gives(Other()))  # type: ignore[arg-type]
    assert [failed.reason for failed in facts.of(EventFailed)] == ["unknown_event"]


def test_an_event_whose_guards_all_say_no_raises() -> None:
    facts = Facts()
    machine = plain(observers=[facts])
    machine.transition(Place.START, Go, Place.DONE, guard=lambda e, c: False)
    machine.transition(Place.START, Finish, Place.WORK)
    with pytest.raises(UnhandledEventError, match="refused by every guard in state 'START'") as caught:
        machine.run(Place.START, Notes(), gives(Go()))
    assert caught.value.handled == ("Finish", "Go")
    assert [guard.result for guard in facts.of(GuardEvaluated)] == ["deny"]
    assert [failed.reason for failed in facts.of(EventFailed)] == ["refused"]
    (end,) = facts.of(RunCompleted)
    assert (end.outcome, end.reason) == ("failed", "policy_stop")


def test_where_a_bound_says_so_the_run_stays_and_asks_again() -> None:
    notes, facts = Notes(), Facts()
    machine = toy(max_unhandled=2, observers=[facts])
    done = machine.run(Place.START, notes, gives(Finish(), Again(), Go(), Go(), Go(), Finish()))
    assert done[0] is Place.DONE
    assert [failed.event for failed in facts.of(EventFailed)] == ["Finish", "Again", "Go", "Go"]
    assert notes.lines.count("enter start") == 1, "staying is not entering"


def test_the_bound_is_of_events_in_a_row_and_the_next_one_raises() -> None:
    asked: list[int] = []

    def source(_place: Place, _notes: Notes) -> Finish:
        asked.append(1)
        return Finish()

    with pytest.raises(UnhandledEventError):
        toy(max_unhandled=3).run(Place.START, Notes(), source)
    assert len(asked) == 4


@pytest.mark.parametrize("bound", [-1, 1.5, True, None, "3"])
def test_a_bound_that_is_no_count_is_refused(bound: Any) -> None:
    with pytest.raises(ConfigError, match="max_unhandled"):
        StateMachine(max_unhandled=bound)


# ---- errors of callables ----


@pytest.mark.parametrize("where", ["on_exit", "action", "on_enter", "guard", "source"])
def test_what_a_callable_raises_reaches_the_caller_and_the_run_has_failed(where: str) -> None:
    def fails(*_: Any) -> Any:
        raise LookupError(where)

    facts = Facts()
    machine = plain(observers=[facts])
    machine.state(Place.START, on_exit=fails if where == "on_exit" else None)
    machine.state(Place.WORK, on_enter=fails if where == "on_enter" else None)
    guard, action = (fails if where == name else None for name in ("guard", "action"))
    machine.transition(Place.START, Go, Place.WORK, guard, action).transition(Place.WORK, Finish, Place.DONE)
    with pytest.raises(LookupError, match=where):
        machine.run(Place.START, Notes(), fails if where == "source" else gives(Go()))
    (failed,) = facts.of(EventFailed)
    assert failed.committed == (where == "on_enter")
    assert failed.reason == ("guard_error" if where == "guard" else "callback_error")
    assert failed.event == ("" if where == "source" else "Go")
    assert failed.hook == ("when:fails" if where == "guard" else where)
    (end,) = facts.of(RunCompleted)
    assert (end.state, end.outcome) == ("WORK" if where == "on_enter" else "START", "failed")
    assert end.reason == failed.reason


def test_a_context_whose_run_failed_may_be_run_again() -> None:
    notes, machine = Notes(), toy()
    with pytest.raises(UnhandledEventError):
        machine.run(Place.START, notes, gives(Finish()))
    assert machine.run(Place.START, notes, gives(Go(), Finish()))[0] is Place.DONE


# ---- what comes for nothing ----


def test_every_transition_is_a_fact_with_its_own_number_and_time() -> None:
    facts, history = Facts(), History()
    machine = toy(observers=[facts, history])
    done = machine.run(Place.START, Notes(iteration=7), gives(Go(), Again(), Finish()), run_id="r-1")
    moves = facts.of(Transition)
    assert names(moves) == [("START", "Go", "WORK"), ("WORK", "Again", "WORK"), ("WORK", "Finish", "DONE")]
    assert [(move.seq, move.run_id, move.graph, move.iteration) for move in moves] == [
        (number, "r-1", "toy", 7) for number in (1, 2, 3)
    ]
    assert all(move.dwell >= 0 and move.overhead is not None for move in moves)
    assert done.run_id == "r-1"
    assert history.states["WORK"].visits == 2
    assert history.edges["WORK", "Again", "WORK"] == 1
    assert [fact.origin for fact in facts.of(RunStarted)] == ["new"]
    assert facts.declared == ["toy"]


def test_the_table_can_be_drawn_in_every_form() -> None:
    machine = toy()
    assert "    START --> WORK: Go" in machine.draw("mermaid")
    assert '    "WORK" -> "DONE" [label="Finish"];' in machine.draw("dot")
    assert "* WORK" in machine.draw("table", current=Place.WORK)
    assert '"fingerprint"' in machine.draw("json")
    with pytest.raises(ConfigError, match="unknown format 'svg'"):
        machine.draw("svg")


def test_the_lint_lists_what_is_no_structural_fault() -> None:
    machine = plain()
    machine.transition(Place.START, Go, Place.WORK).transition(Place.WORK, Again, Place.START)
    machine.transition(Place.WORK, Finish, Place.DONE, guard=lambda e, c: True)
    rules = [problem.rule for problem in machine.lint()]
    assert LintRule.UNBOUNDED_CYCLE in rules
    assert LintRule.GUARD_GAP in rules
    assert machine.run(Place.START, Notes(), gives(Go(), Finish()))[0] is Place.DONE


# ---- structural faults ----


def test_states_that_nobody_registered_are_all_named_at_once() -> None:
    machine: StateMachine[str, Go, None] = StateMachine("bad")
    machine.state("a").terminal("z").transition("a", Go, "b").transition("c", Go, "a")
    with pytest.raises(GraphError) as caught:
        machine.run("a", None, lambda s, c: None)
    said = str(caught.value)
    assert all(repr(name) in said for name in ("b", "c", "z"))
    assert machine.lint() == list(caught.value.problems)


def test_a_state_that_nothing_leads_to_is_refused() -> None:
    machine: StateMachine[str, Go, None] = StateMachine("bad")
    machine.state("a").state("b").state("lonely").terminal("b").transition("a", Go, "b")
    with pytest.raises(GraphError, match="no path leads from 'a' to 'lonely'"):
        machine.run("a", None, lambda s, c: None)


def test_a_source_that_returns_none_ends_the_run_of_a_machine_without_a_terminal_state() -> None:
    machine: StateMachine[str, Go, None] = StateMachine("endless")
    machine.state("a").state("b").transition("a", Go, "b").transition("b", Go, "a")
    events = [Go(), Go(), Go(), None]
    ended = machine.run("a", None, lambda s, c: events.pop(0))
    assert (ended, ended.outcome, ended.reason) == (("b", None), Outcome.COMPLETED, "none")


def test_a_machine_without_a_state_is_refused() -> None:
    with pytest.raises(GraphError, match="no state is registered"):
        StateMachine[str, Go, None]("empty").run("a", None, lambda s, c: None)


def test_a_run_cannot_begin_where_there_is_no_state() -> None:
    machine: StateMachine[str, Go, None] = StateMachine("m")
    machine.state("a").state("b").terminal("b").transition("a", Go, "b")
    machine.run("a", None, lambda s, c: Go())
    with pytest.raises(GraphError, match=r"initial state 'q' is not registered; registered: 'a', 'b'"):
        machine.run("q", None, lambda s, c: Go())


def test_the_order_of_registration_of_states_says_nothing_about_where_runs_begin() -> None:
    machine: StateMachine[str, Go, None] = StateMachine("m")
    machine.state("end").state("middle").state("begin").terminal("end")
    machine.transition("middle", Go, "end").transition("begin", Go, "middle")
    assert machine.run("middle", None, lambda s, c: Go())[0] == "end"
    assert machine.graph.initial == "begin"


def test_a_machine_may_be_built_further_after_a_run() -> None:
    machine = plain()
    machine.transition(Place.START, Go, Place.WORK).transition(Place.WORK, Go, Place.DONE)
    assert machine.run(Place.START, Notes(), gives(Go(), Go())).transitions == 2
    machine.transition(Place.WORK, Finish, Place.DONE)
    assert machine.run(Place.START, Notes(), gives(Go(), Finish()))[0] is Place.DONE


@pytest.mark.parametrize("kind", [Go(), "Go", None, int | None, list[int]])
def test_an_event_type_that_is_no_class_is_refused_where_it_is_registered(kind: Any) -> None:
    with pytest.raises(ConfigError, match="event"):
        plain().transition(Place.START, kind, Place.DONE)


@pytest.mark.parametrize("name", ["guard", "action"])
@pytest.mark.parametrize("function", [lambda: True, lambda event: True, lambda event, context, other: True])
def test_a_function_of_other_arguments_is_refused_where_it_is_registered(name: str, function: Any) -> None:
    with pytest.raises(
        ConfigError, match=rf"{name} '<lambda>' takes other arguments; give a function of \(event, context\)"
    ):
        plain().transition(Place.START, Go, Place.DONE, **{name: function})
    plain().transition(Place.START, Go, Place.DONE, **{name: lambda event, context, other=3: True})
    plain().transition(Place.START, Go, Place.DONE, **{name: lambda *given: True})


@pytest.mark.parametrize("name", ["on_enter", "on_exit"])
@pytest.mark.parametrize("function", [lambda: None, lambda state, context: None])
def test_a_hook_of_other_arguments_is_refused_where_it_is_registered(name: str, function: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name} '<lambda>' takes other .* a function of \(context\)"):
        plain().state(Place.START, **{name: function})


@pytest.mark.parametrize("name", ["guard", "action"])
def test_what_cannot_be_called_is_refused_where_it_is_registered(name: str) -> None:
    arguments: dict[str, Any] = {name: 3}
    with pytest.raises(ConfigError, match=f"{name} is a int"):
        plain().transition(Place.START, Go, Place.DONE, **arguments)
    with pytest.raises(ConfigError, match="on_enter is a str"):
        plain().state(Place.START, on_enter="later")  # type: ignore[arg-type]


class Word(StrEnum):
    BEGIN = "begin"
    END = "the end"


def test_states_are_named_by_their_text_and_two_of_one_name_are_refused() -> None:
    machine: StateMachine[Enum, Go, None] = StateMachine("m")
    machine.state(Word.BEGIN).state(Word.END).terminal(Word.END).transition(Word.BEGIN, Go, Word.END)
    assert [state.value for state in machine.graph.states] == ["begin", "the end"]
    assert machine.run(Word.BEGIN, None, lambda s, c: Go())[0] is Word.END
    twice: StateMachine[Any, Go, None] = StateMachine("m")
    twice.state("START").state(Place.START)
    with pytest.raises(GraphError, match="two states are named 'START'"):
        _ = twice.graph


def test_a_state_that_becomes_terminal_after_a_run_ends_the_next_one() -> None:
    machine: StateMachine[str, Go, None] = StateMachine("m")
    machine.state("a").state("b").state("c").terminal("c").transition("a", Go, "b").transition("b", Go, "c")
    assert machine.run("a", None, lambda s, c: Go())[0] == "c"
    machine.terminal("b")
    assert machine.run("a", None, lambda s, c: Go())[0] == "b"


def test_events_of_one_name_from_two_places_are_told_apart() -> None:
    other = type("Go", (), {"__module__": "elsewhere"})
    machine: StateMachine[str, Any, None] = StateMachine("m")
    machine.state("a").state("b").terminal("b").transition("a", Go, "a").transition("a", other, "b")
    assert {event.value for event in machine.graph.events} == {"tests.kernel.typed_toy.Go", "elsewhere.Go"}
    assert machine.run("a", None, lambda s, c: other())[0] == "b"


# ---- the library's table decides ----


async def moved_by(machine: TypedMachine, event: object) -> tuple[str, list[str]]:
    """Where an event leads from the initial state, and what was noted on the way."""
    notes = Notes()
    run: Run[Notes, None] = Run(machine, "r", notes, None)
    driver = Driver(machine)
    await driver.start(run)
    run.set_event_object(event)
    await driver.fire(run, machine.graph.events(machine.event_name(run.cursor.state, type(event))))
    return run.cursor.state, notes.lines


async def test_a_transition_removed_through_the_library_is_no_candidate_any_more() -> None:
    machine = plain()
    machine.transition(Place.START, Go, Place.DONE).transition(Place.START, Go, Place.WORK)
    machine.transition(Place.WORK, Finish, Place.DONE)
    compiled = machine.machine()
    assert await moved_by(compiled, Go()) == ("DONE", [])
    compiled.remove_transition("Go", "START", "DONE")
    assert await moved_by(compiled, Go()) == ("WORK", [])


async def test_a_transition_added_through_the_library_takes_events_of_its_class() -> None:
    compiled = toy().machine()
    compiled.add_transition("Finish", "START", "DONE", before=lambda run: run.ctx.add("added"))
    assert await moved_by(compiled, Finish()) == (
        "DONE",
        ["enter start", "exit start", "added", "enter done"],
    )


async def test_an_async_guard_of_a_transition_added_through_the_library_is_awaited() -> None:
    async def small(event: Go, _notes: Notes) -> bool:
        return event.number < 5

    compiled = toy().machine()
    compiled.remove_transition("Go", "START")
    compiled.add_transition("Go", "START", "DONE", conditions=[small])
    compiled.add_transition("Go", "START", "WORK")
    assert (await moved_by(compiled, Go(7)))[0] == "WORK"
    assert (await moved_by(compiled, Go(3)))[0] == "DONE"


async def test_actions_stay_with_their_transitions_in_a_graph_that_lost_one() -> None:
    machine = toy().transition(Place.START, Finish, Place.DONE, action=lambda e, c: c.add("at once"))
    graph = machine.graph.extend(without=[("WORK", "Again")])
    _, lines = await moved_by(machine.machine(graph), Finish())
    assert lines == ["enter start", "exit start", "at once", "enter done"]


async def test_an_async_guard_is_not_evaluated_outside_a_transition() -> None:
    async def small(event: Go, _notes: Notes) -> bool:
        return event.number < 5

    machine = plain().transition(Place.START, Go, Place.WORK, small).transition(Place.WORK, Go, Place.DONE)
    run: Run[Notes, None] = Run(machine.machine(), "r", Notes(), None)
    run.set_event_object(Go())
    with pytest.raises(RunError, match="guard small is async; it is evaluated in a transition only"):
        run.may("Go")
