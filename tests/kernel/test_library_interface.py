"""The interface of `transitions` on our machines: what it shows, and what a change through it does to a run."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import GraphError, InvalidEvent, Refused, RunError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import EventFailed, GuardEvaluated, RunStarted
from orchestrator.kernel.run import Run
from orchestrator_guards import Verdict
from tests.kernel.toy import TOY, Context, E, Rig, S, ToyRun, machine, may_work, moves, new_run, rig


def may_start(ctx: Context) -> bool:
    return ctx.iteration == 0


def too_late(ctx: Context) -> bool:
    return ctx.iteration > 0


def never(ctx: Context) -> Verdict:
    return Verdict(False, "never", 3, 2)


def transition(a: Rig, event: str, source: str) -> Any:
    (found,) = a.run.machine.get_transitions(event, source)
    return found


async def path_of(a: Rig, journal: MemoryJournal) -> list[tuple[str, str, str]]:
    """Drive a run; what its journal says of it is what its observers were told."""
    await a.driver.drive(a.run)
    recorded = [(body["event"], body["source"], body["dest"]) for body in moves(journal)]
    assert [event for event, _, _ in recorded] == a.facts.path
    return recorded


# ---- what it shows ----


def test_get_transitions_selects_by_event_source_and_destination_given_as_text_or_member() -> None:
    made = machine()
    assert [(t.source, t.dest) for t in made.get_transitions("start")] == [("init", "work")]
    assert [t.event.name for t in made.get_transitions(source=S.ASK, dest="work")] == ["answer"]
    assert len(made.get_transitions()) == len(TOY.rows)
    assert made.get_transitions("fly") == []


def test_get_triggers_names_the_events_of_a_state() -> None:
    made = machine()
    assert made.get_triggers("init") == ["start", "fail"]
    assert made.get_triggers(S.CHECK, S.INIT) == ["start", "again", "asked", "finish", "fail"]


def test_an_internal_edge_has_no_destination_and_a_terminal_state_is_final() -> None:
    made = machine()
    assert [t.dest for t in made.get_transitions("note")] == [None]
    assert {name for name, state in made.states.items() if state.final} == {"done", "lost"}


# ---- may ----


def test_may_evaluates_the_conditions_and_counts_nothing() -> None:
    a = rig()
    run: Any = a.run
    run.cursor.state = "check"
    assert (run.may("again"), run.may_again(), run.may(E.FINISH), run.may_start()) == (
        True,
        True,
        True,
        False,
    )
    run.ctx.iteration = run.ctx.turns
    assert not run.may_again()
    assert a.facts.all == []
    assert run.machine.models == []


def test_may_of_an_event_that_is_nowhere_is_false_and_its_method_is_no_attribute() -> None:
    run: Any = new_run(machine())
    assert not run.may("soar")
    with pytest.raises(AttributeError, match="'Run' object has no attribute 'may_soar'"):
        run.may_soar()


def test_the_library_reads_the_state_of_a_run_and_does_not_set_it() -> None:
    run: Any = new_run(machine())
    run.cursor.state = "check"
    assert run.machine.get_model_state(run) is run.machine.states["check"]
    assert (run.machine.is_state("check", run), run.machine.is_state("work", run)) == (True, False)
    with pytest.raises(AttributeError, match="has no setter"):
        run.machine.set_state("work", run)
    assert run.cursor.state == "check"


def test_an_event_that_is_added_has_its_may_method_at_once() -> None:
    run: Any = new_run(machine())
    run.machine.add_transition("hover", "init", "work")
    assert run.may_hover()
    run.machine.remove_transition("hover")
    assert not run.may_hover()
    assert "__getattr__" not in dir(type(run)), "it makes every read of an attribute slow"


# ---- conditions ----


async def test_a_condition_that_is_added_keeps_the_event_from_being_carried_out() -> None:
    a = rig()
    await a.driver.start(a.run)
    made = a.run.machine
    row = transition(a, "start", "init")
    row.conditions.append(made.transition_cls.condition_cls(never))
    with pytest.raises(Refused, match="never") as caught:
        await a.driver.fire(a.run, E.START)
    assert a.run.cursor.state == "init"
    assert caught.value.verdict == Verdict(False, "never", 3, 2)
    assert [(f.guard, f.result, f.observed, f.limit) for f in a.facts.of(GuardEvaluated)] == [
        ("never", "deny", 3, 2)
    ]
    row.conditions.pop()
    await a.driver.fire(a.run, E.START)
    assert a.run.cursor.state == "work"


async def test_the_first_transition_whose_conditions_all_hold_is_taken() -> None:
    a = rig()
    made = a.run.machine
    made.remove_transition("start")
    made.add_transition("start", "init", "ask", conditions=[may_start, never])
    made.add_transition("start", "init", "check", unless=[too_late])
    made.add_transition("start", "init", "work")
    await a.driver.start(a.run)
    await a.driver.fire(a.run, E.START)
    assert a.run.cursor.state == "check"
    asked = [(fact.guard, fact.result) for fact in a.facts.of(GuardEvaluated)]
    assert asked == [("may_start", "allow"), ("never", "deny"), ("not too_late", "allow")]
    assert made.graph.rows[-1][3].when is None
    assert [edge.when and edge.when.__name__ for edge in made.graph.edges][-3:] == [
        "may_start, never",
        "not too_late",
        None,
    ]


async def test_a_condition_may_be_the_name_of_a_function_in_a_hook_module() -> None:
    class Host:
        async def enter_done(self, run: ToyRun) -> None: ...

        def _small(self, ctx: Context) -> bool:
            return ctx.iteration < 1

    host = Host()
    a = rig(extra=[host])
    made = a.run.machine
    made.remove_transition("start")
    made.add_transition("start", "init", "work", conditions="_small")
    made.add_transition("start", "init", "lost")
    await a.driver.drive(a.run)
    assert a.run.cursor.state == "done"


async def test_a_condition_under_a_name_that_is_nowhere_stops_the_run_at_the_next_trigger() -> None:
    a = rig()
    a.run.machine.remove_transition("start", "init", "work")
    a.run.machine.add_transition("start", "init", "lost", conditions="nowhere")
    a.run.machine.add_transition("start", "init", "work")
    with pytest.raises(GraphError, match="callback 'nowhere' is in no hook module"):
        await a.driver.drive(a.run)
    assert not a.run.ended


# ---- callbacks ----


async def test_callbacks_of_every_slot_run_in_the_order_of_the_design() -> None:
    a = rig()
    made, seen = a.run.machine, list[str]()

    def says(text: str) -> Any:
        return lambda run: seen.append(f"{text} in {run.cursor.state}")

    row = transition(a, "start", "init")
    row.add_callback("prepare", says("prepare"))
    row.add_callback("before", says("before"))
    row.add_callback("after", says("after"))
    made.states["init"].add_callback("exit", says("exit"))
    made.states["work"].on_enter.insert(0, says("enter"))
    made.prepare_event.append(says("prepare_event"))
    made.before_state_change.append(says("before_state_change"))
    made.after_state_change.append(says("after_state_change"))
    made.leave_state.append(says("leave_state"))
    made.enter_state.append(says("enter_state"))
    await a.driver.start(a.run)
    seen.clear()
    await a.driver.fire(a.run, E.START)
    assert seen == [
        "prepare_event in init",
        "prepare in init",
        "before in init",
        "before_state_change in init",
        "exit in init",
        "leave_state in init",
        "enter in work",
        "enter_state in work",
        "after in work",
        "after_state_change in work",
    ]


async def test_a_callback_of_a_final_state_runs_once_it_is_entered() -> None:
    a = rig()
    seen = list[str]()
    a.run.machine.on_final = [lambda run: seen.append(run.cursor.state)]
    await a.driver.drive(a.run)
    assert seen == ["done"]


async def test_a_callback_is_added_to_all_transitions_of_an_event_and_by_its_name() -> None:
    seen = list[str]()

    class Host:
        async def enter_done(self, run: ToyRun) -> None: ...

        async def _note(self, run: ToyRun) -> None:
            seen.append(f"{run.step.names[1]}" if run.step else "")

    a = rig(extra=[Host()])
    a.run.machine.events["did"].add_callback("before", "_note")
    a.run.machine.before_finish("_note")  # the library's short form
    await a.driver.drive(a.run)
    assert seen == ["work", "check"]


async def test_a_callback_that_is_removed_no_longer_runs() -> None:
    async def enter_done(run: ToyRun) -> None:
        raise AssertionError

    a = rig(enter_done=enter_done)
    callbacks: list[Any] = a.run.machine.states["done"].on_enter
    assert callbacks == [enter_done]
    callbacks.clear()
    await a.driver.drive(a.run)
    assert a.run.cursor.state == "done"


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        (3, "callback 3 is a int; give a function of the run"),
        (lambda: None, "callback '<lambda>' must take one argument, the run"),
        ("os.path.nothing", "callback 'os.path.nothing' is in no hook module"),
    ],
)
async def test_a_callback_that_cannot_be_called_stops_the_run_with_one_sentence(
    callback: Any, said: str
) -> None:
    a = rig()
    a.run.machine.events["did"].add_callback("before", callback)
    with pytest.raises(GraphError) as caught:
        await a.driver.drive(a.run)
    assert said in str(caught.value)
    assert not a.run.ended


@pytest.mark.parametrize("slot", ["before_start", "leave_init", "after_start"])
async def test_an_event_returned_by_a_hook_that_is_no_enter_hook_is_an_error_that_names_it(slot: str) -> None:
    async def chooses(run: ToyRun) -> E:
        return E.FINISH

    hooks: Any = {slot: chooses}
    a = rig(**hooks)
    await a.driver.drive(a.run)
    assert a.run.cursor.state == "lost"
    assert isinstance(a.run.error, RunError)
    assert f".{slot} returned 'finish'; only an enter_ hook chooses the next event" in str(a.run.error)
    assert {fact.hook for fact in a.facts.of(EventFailed)} == {
        slot
    }  # leave_init: on the failure edge as well


# ---- the table ----


async def test_a_transition_that_is_added_is_taken_and_recorded() -> None:
    journal = MemoryJournal()
    a = rig(E.ANSWER, journal=journal)
    a.run.machine.add_transition("answer", S.CHECK, S.DONE)
    assert ("answer", "check", "done") in await path_of(a, journal)


async def test_a_transition_that_is_removed_is_not_possible_any_more() -> None:
    journal = MemoryJournal()
    a = rig(E.ASKED, journal=journal)
    a.run.machine.remove_transition("asked", "check")
    a.run.machine.add_transition("asked", "init", "ask")
    assert (await path_of(a, journal))[-1] == ("fail", "check", "lost")
    assert isinstance(a.run.error, InvalidEvent)


async def test_a_destination_that_is_changed_is_where_the_run_goes_and_what_the_journal_says() -> None:
    journal = MemoryJournal()
    a = rig(journal=journal)
    transition(a, "finish", "check").dest = "lost"
    a.run.machine.add_transition("again", "ask", "done")
    assert (await path_of(a, journal))[-1] == ("finish", "check", "lost")
    assert a.run.cursor.state == "lost"


async def test_a_state_that_is_added_is_entered() -> None:
    journal = MemoryJournal()
    a = rig(journal=journal)
    made = a.run.machine

    async def enter_review(run: ToyRun) -> str:
        return "approve"

    made.add_states({"name": "review", "on_enter": enter_review})
    transition(a, "finish", "check").dest = "review"
    made.add_transition("approve", "review", "done")
    made.add_transition("fail", "review", "lost")
    assert (await path_of(a, journal))[-2:] == [("finish", "check", "review"), ("approve", "review", "done")]
    assert [state.value for state in made.graph.states][-1] == "review"


async def test_a_change_takes_effect_at_the_next_trigger_of_a_run_that_is_under_way() -> None:
    a = rig()
    await a.driver.start(a.run)
    await a.driver.fire(a.run, E.START)
    a.run.machine.remove_transition("did")
    a.run.machine.add_transition("did", "work", "done")
    a.run.machine.add_transition("again", "work", "check")
    await a.driver.fire(a.run, E.DID)
    assert a.run.state == S.DONE


async def test_a_table_that_lint_refuses_is_named_at_the_next_trigger_and_mended_by_a_further_change() -> (
    None
):
    a = rig()
    made = a.run.machine
    made.remove_transition("fail", "work")
    with pytest.raises(GraphError, match="'work' has no unguarded edge for its failure event"):
        await a.driver.drive(a.run)
    made.add_transition("fail", "work", "lost")
    b = Driver(made)
    run = new_run(made, run_id="r2")
    await b.drive(run)
    assert run.cursor.state == "done"


def test_a_working_state_without_an_enter_callback_is_refused() -> None:
    made = machine()
    made.states["work"].on_enter.clear()
    with pytest.raises(GraphError, match="working state 'work' has no enter callback"):
        made.steps("init", "start")
    made.enter_state.append(_noted)
    assert [step.dest for step in made.steps("init", "start")] == ["work"]


# ---- fingerprint ----


def _condition(made: Any) -> None:
    made.get_transitions("start")[0].conditions.append(made.transition_cls.condition_cls(may_start))


def _callback(made: Any) -> None:
    made.states["done"].add_callback("enter", _noted)


def _destination(made: Any) -> None:
    made.get_transitions("late")[0].dest = "done"


def _transition(made: Any) -> None:
    made.add_transition("note", "check", "done")


def _noted(run: Run[Any, Any]) -> None: ...


@pytest.mark.parametrize("change", [_condition, _callback, _destination, _transition])
def test_every_change_gives_the_table_another_fingerprint(change: Any) -> None:
    made = machine()
    change(made)
    assert made.graph.fingerprint != TOY.fingerprint
    assert made.graph.lint() == []
    assert machine().graph.fingerprint == TOY.fingerprint


def test_a_change_that_is_taken_back_gives_the_old_fingerprint() -> None:
    made = machine()
    made.states["done"].add_callback("enter", _noted)
    made.add_transition("note", "check", "done")
    assert made.graph.fingerprint != TOY.fingerprint
    made.states["done"].on_enter.remove(_noted)
    made.remove_transition("note", "check")
    assert made.graph is TOY


async def test_a_new_run_of_a_changed_table_is_journalled_with_its_fingerprint() -> None:
    journal = MemoryJournal()
    a = rig(journal=journal)
    a.run.machine.add_transition("note", "check", "done")
    run = new_run(a.run.machine, run_id="r2")
    await a.driver.drive(run)
    records = await journal.load("r2")
    assert records[0].body["fingerprint"] == a.run.machine.graph.fingerprint != TOY.fingerprint


async def test_a_run_begins_in_the_initial_state_that_the_table_has_now() -> None:
    a = rig()
    made = a.run.machine
    made.add_transition("note", "check", "init", conditions=[may_work])
    made.initial = "work"
    assert made.graph.initial is S.WORK
    assert made.graph.fingerprint != TOY.fingerprint
    await a.driver.drive(new_run(made, run_id="r2"))
    assert (a.facts.of(RunStarted)[0].state, a.facts.path[0]) == ("work", "did")


def test_an_initial_state_from_which_others_cannot_be_reached_is_refused() -> None:
    made = machine()
    made.initial = "work"
    with pytest.raises(GraphError, match="no path leads from 'work' to 'init'"):
        _ = made.graph


# ---- what is not supported ----


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: made.add_model(object()), "runs are the models and are not registered; use a Driver"),
        (
            lambda made: setattr(made, "on_exception", [print]),
            "on_exception is not supported: an exception fires",
        ),
        (lambda made: setattr(made, "finalize_event", print), "finalize_event is not supported: an observer"),
        (lambda made: made.on_exception.append(print), "on_exception is not supported: an exception fires"),
        (lambda made: made.finalize_event.extend([print]), "finalize_event is not supported: an observer"),
        (
            lambda made: setattr(made.get_transitions("again")[0].conditions[0], "func", print),
            "replace it in the list",
        ),
    ],
)
def test_what_the_library_has_and_we_have_not_is_refused_with_what_to_do(change: Any, said: str) -> None:
    made = machine()
    with pytest.raises((GraphError, AttributeError), match=said):
        change(made)
    assert (made.graph, made.on_exception, made.finalize_event) == (TOY, [], [])
