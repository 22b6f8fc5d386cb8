"""Cases of the tests of `transitions` 0.9.3 whose end is another one here; the README of the kernel lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import transitions
from transitions.core import listify

from orchestrator.errors import GraphError, InTransition, InvalidEvent, UnknownEvent
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.machine import Machine, MachineTransition
from orchestrator.kernel.run import Run
from tests.kernel.toy import TOY, Context, E, ToyRun, hooks, machine, new_run, rig


async def test_a_destination_that_is_no_state_is_an_invalid_table() -> None:
    made = machine()
    made.add_transition("note", "check", "unknown")
    with pytest.raises(GraphError, match="edge dest 'unknown' is not declared"):
        new_run(made).may("note")


def test_an_initial_state_that_is_added_by_its_name_has_to_lead_somewhere() -> None:
    made = machine()
    made.initial = "nowhere"
    with pytest.raises(GraphError, match="no path leads from 'nowhere' to 'init'"):
        _ = made.graph


@pytest.mark.parametrize("name", ["is_false", "nothing"])
def test_a_property_of_the_model_is_no_condition(name: str) -> None:
    made = machine()
    made.remove_transition("start")
    made.add_transition("start", "init", "work", conditions=name)
    with pytest.raises(GraphError, match=f"callback {name!r} is in no hook module"):
        _ = made.graph


def test_a_callback_by_a_path_that_does_not_exist_is_an_invalid_table() -> None:
    made = machine()
    made.states["done"].add_callback("enter", "tests.kernel.toy.absent")
    with pytest.raises(GraphError, match=r"callback 'tests\.kernel\.toy\.absent' is in no hook module"):
        _ = made.graph


async def test_a_method_of_the_context_is_no_callback_by_its_name() -> None:
    entered = list[str]()

    class Model(Context):
        def on_enter_work(self) -> None:
            entered.append("work")

    made = machine()
    run = Run(made, "r1", Model(), None)
    await Driver(made).drive(run)
    assert (run.cursor.state, entered) == ("done", [])


async def test_a_run_ends_in_a_final_state_and_no_event_leaves_it() -> None:
    a = rig()
    await a.driver.drive(a.run)
    assert a.run.ended
    with pytest.raises(InvalidEvent):
        await a.driver.fire(a.run, E.FAIL)
    assert a.run.cursor.state == "done"


async def test_an_invalid_trigger_is_never_ignored() -> None:
    a = rig()
    a.run.machine.ignore_invalid_triggers = True
    for state in a.run.machine.states.values():
        state.ignore_invalid_triggers = True
    await a.driver.start(a.run)
    with pytest.raises(InvalidEvent):
        await a.driver.fire(a.run, E.FINISH)
    fly: Any = "fly"
    with pytest.raises(UnknownEvent):
        await a.driver.fire(a.run, fly)


@pytest.mark.parametrize("name", ["to_done", "to_init", "may_to_done", "is_init", "trigger", "dispatch_all"])
def test_a_run_has_no_methods_of_triggers_and_states(name: str) -> None:
    assert not hasattr(new_run(machine()), name)


async def test_a_callback_cannot_trigger_an_event_and_returns_it_instead() -> None:
    errors = list[InTransition]()

    async def enter_work(run: ToyRun) -> E:
        try:
            await Driver(run.machine).fire(run, E.DID)
        except InTransition as error:
            errors.append(error)
        return E.DID

    a = rig(enter_work=enter_work)
    await a.driver.drive(a.run)
    assert (a.run.cursor.state, len(errors)) == ("done", 1)


async def test_a_state_that_a_callback_adds_is_reached_by_the_event_that_it_returns() -> None:
    async def enter_work(run: ToyRun) -> str:
        with run.machine.changing():
            run.machine.add_states({"name": "extra", "on_enter": lambda run: "did"})
            run.machine.add_transition("detour", "work", "extra")
            run.machine.add_transition("did", "extra", "check")
            run.machine.add_transition("fail", "extra", "lost")
        return "detour"

    a = rig(enter_work=enter_work)  # type: ignore[arg-type]  # an event that the enum does not have yet
    await a.driver.drive(a.run)
    assert a.facts.path == ["start", "detour", "did", "finish"]


async def test_a_transition_class_of_the_host_is_used() -> None:
    class Owned(MachineTransition):
        def __init__(self, *args: Any, owner: str = "", **options: Any) -> None:
            super().__init__(*args, **options)
            self.owner = owner

    class Ours(Machine):
        transition_cls = Owned

    made = Ours(TOY, collect(TOY, hooks()))
    made.add_transition("note", "check", "done", owner="sales")
    assert [row.owner for row in made.get_transitions("note", "check")] == ["sales"]
    run = new_run(made)
    await Driver(made).drive(run)
    assert run.cursor.state == "done"


def test_what_the_library_keeps_for_itself_is_the_same() -> None:
    assert issubclass(Machine, transitions.Machine)
    assert [*map(listify, (4, None, (4, 5)))] == [[4], [], (4, 5)]
    made = machine()
    kinds: list[tuple[str, tuple[str | None, str | None]]] = [
        ("on_exit_foobar", ("on_exit", "foobar")),
        ("before_stuff", ("before", "stuff")),
        ("totallyinvalid", (None, None)),
    ]
    assert [made._identify_callback(name) for name, _ in kinds] == [found for _, found in kinds]
    read: Callable[[str], object] = made.__getattr__
    with pytest.raises(AttributeError):
        read("before_no_such_transition")
