"""What the machine promises, and what it relies on in transitions 0.9.3."""

from __future__ import annotations

import inspect
import logging
from enum import StrEnum
from importlib.metadata import version
from typing import Any

import pytest
import transitions

from orchestrator.errors import InvalidEvent, RunError, UnknownEvent
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import CompiledTransition, Machine
from tests.kernel.toy import TOY, E, S, ToyRun, machine, new_run, nothing, rig

# ---- transitions ----


def test_the_version_is_the_one_these_tests_speak_of() -> None:
    assert version("transitions").startswith("0.9.")


def test_an_enum_member_is_filed_under_its_name_which_is_why_it_is_given_values() -> None:
    class Odd(StrEnum):
        FIRST = "first one"

    made = transitions.Machine(model=None, states=[Odd.FIRST], initial=Odd.FIRST, auto_transitions=False)
    assert list(made.states) == ["FIRST"]


async def test_nothing_is_logged_for_a_transition(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    a = rig()
    await a.driver.drive(a.run)
    assert caplog.records == []
    assert logging.getLogger("transitions").getEffectiveLevel() >= logging.WARNING


async def test_an_event_needs_a_run_that_a_driver_has() -> None:
    run = new_run(machine())
    event: Any = run.machine.events["start"]
    with pytest.raises(RunError, match=r"run 'r1' has no driver; fire events with Driver\.fire"):
        await event.trigger(run)
    assert run.cursor.state == "init"


async def test_a_hook_that_moves_the_run_keeps_the_transition_from_setting_the_state() -> None:
    async def meddle(run: ToyRun) -> None:
        run.cursor.state = "check"

    a = rig(before_start=meddle)
    await a.driver.start(a.run)
    with pytest.raises(transitions.MachineError, match="a hook moved the run from state 'init' to 'check'"):
        await a.driver.fire(a.run, E.START)
    assert a.run.cursor.state == "check"


# ---- the machine ----


def steps_of(made: Machine) -> list[CompiledTransition]:
    """Every step of a machine."""
    return [
        step
        for state in made.states
        for event in made.get_triggers(state)
        for step in made.steps(state, event)
    ]


def test_it_finds_the_step_of_a_state_and_event_given_as_members_or_text() -> None:
    made = machine()
    (step,) = made.steps(S.INIT, E.START)
    assert made.steps("init", "start") == (step,)
    assert (step.event, step.source, step.dest, step.internal) == (E.START, S.INIT, S.WORK, False)


def test_a_known_event_without_an_edge_names_what_is_allowed() -> None:
    with pytest.raises(InvalidEvent) as caught:
        machine().steps("init", "finish")
    error = caught.value
    assert (error.graph, error.state, error.event, error.allowed) == (
        "toy",
        "init",
        "finish",
        (E.FAIL, E.START),
    )


def test_an_unknown_event_names_what_is_known() -> None:
    with pytest.raises(UnknownEvent) as caught:
        machine().steps("init", "fly")
    error = caught.value
    assert (error.state, error.event) == ("init", "fly")
    assert error.known == tuple(sorted(event.value for event in E))


def test_events_from_a_state_are_sorted() -> None:
    made = machine()
    assert made.events_from("ask") == (E.ANSWER, E.FAIL, E.LATE, E.NOTE)
    assert made.events_from("lost") == ()


async def test_two_runs_share_one_machine() -> None:
    made = machine()
    one, other = new_run(made), new_run(made, run_id="r2")
    await Driver(made).start(one)
    await Driver(made).fire(one, E.START)
    assert (one.current, other.current) == (S.WORK, S.INIT)


def test_a_graph_without_hooks_compiles() -> None:
    assert Machine(TOY, Hooks({})).enter_hooks("work") == ()


def test_only_edges_into_pure_states_are_folded_and_not_where_a_host_has_a_hook() -> None:
    class Host:
        async def enter_check(self, run: object) -> None: ...

    assert [step.dest for step in steps_of(machine()) if step.folded] == [S.CHECK]
    assert not any(step.folded for step in steps_of(machine(extra=[Host()])))


def test_a_hosts_hook_before_a_commit_asks_for_what_is_folded_to_be_written_first() -> None:
    class Host:
        async def leave_check(self, run: object) -> None: ...

    made = machine(extra=[Host()])
    firsts = {step.source for step in steps_of(made) if step.settle_first}
    assert firsts == {S.CHECK}


def test_our_hooks_of_a_name_come_before_the_hosts() -> None:
    class Host:
        async def enter_work(self, run: object) -> None: ...

    host = Host()
    names = machine(extra=[host], enter_state=nothing).enter_hooks("work")
    assert [name for name, _ in names] == ["enter_work", "enter_work", "enter_state"]
    assert inspect.unwrap(names[1][1]) == host.enter_work
