"""The examples of the README of `transitions` on callbacks and conditions, rewritten for our machine.

Each section of that README that is about conditions, callbacks and their order, internal and reflexive transitions,
`may_`, `unless`, several conditions and exceptions in callbacks is here. What we do differently is a test that says so.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import pytest

from orchestrator.errors import GraphError, InTransition, InvalidEvent, Refused
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run


class Matter(StrEnum):
    SOLID = "solid"
    LIQUID = "liquid"
    GAS = "gas"
    PLASMA = "plasma"


class Change(StrEnum):
    MELT = "melt"
    EVAPORATE = "evaporate"
    SUBLIMATE = "sublimate"
    IONIZE = "ionize"
    TOUCH = "touch"
    STIR = "stir"


@dataclass
class Lump:
    """The model of that README: what was matter is the context of a run here."""

    iteration: int = 0
    flammable: bool = False
    hot: bool = True
    said: list[str] = field(default_factory=list)


LumpRun: TypeAlias = Run[Lump, None]
ROWS = (
    Edge(Change.MELT, Matter.SOLID, Matter.LIQUID),
    Edge(Change.EVAPORATE, Matter.LIQUID, Matter.GAS),
    Edge(Change.SUBLIMATE, Matter.SOLID, Matter.GAS),
    Edge(Change.IONIZE, Matter.GAS, Matter.PLASMA),
    Edge(Change.TOUCH, Matter.LIQUID, Matter.LIQUID, reenter=True),
    Edge(Change.STIR, Matter.LIQUID, Matter.LIQUID),
)


def matter(*removed: str, **hooks: Any) -> Machine:
    graph = Graph(
        "matter",
        Matter,
        Change,
        Matter.SOLID,
        ROWS,
        terminal=frozenset({Matter.PLASMA}),
        rest=frozenset({Matter.SOLID, Matter.LIQUID, Matter.GAS}),
        strict=False,
    )
    machine = Machine(graph, Hooks({name: (hook,) for name, hook in hooks.items()}, modules=(Named(),)))
    for event in removed:
        machine.remove_transition(event)
    return machine


class Named:
    """A hook module: callbacks may be given by the names that it has."""

    def is_flammable(self, lump: Lump) -> bool:
        return lump.flammable

    async def make_hissing_noises(self, run: LumpRun) -> None:
        run.ctx.said.append("HISSSS")


def says(text: str) -> Any:
    return lambda run: run.ctx.said.append(text)


async def lump(machine: Machine, **given: Any) -> tuple[Driver, LumpRun]:
    driver = Driver(machine)
    run: LumpRun = Run(machine, "lump", Lump(**given), None)
    await driver.start(run)
    return driver, run


# ---- states and transitions ----


async def test_a_trigger_moves_the_model_from_state_to_state() -> None:
    driver, run = await lump(matter())
    await driver.fire(run, Change.MELT)
    assert run.state is Matter.LIQUID
    await driver.fire(run, Change.EVAPORATE)
    assert run.cursor.state == "gas"


async def test_an_invalid_trigger_raises_and_names_what_is_possible() -> None:
    driver, run = await lump(matter())
    with pytest.raises(InvalidEvent, match="possible: 'melt', 'sublimate'"):
        await driver.fire(run, Change.EVAPORATE)
    assert run.cursor.state == "solid"


async def test_transitions_are_added_from_one_several_or_all_states() -> None:
    machine = matter()
    machine.add_transition("transmogrify", ["solid", "liquid", "gas"], "plasma")
    assert [row.source for row in machine.get_transitions("transmogrify")] == ["solid", "liquid", "gas"]
    machine.add_transition("to_liquid", "*", "liquid")
    assert len(machine.get_transitions("to_liquid")) == 4


async def test_a_reflexive_transition_runs_exit_and_enter_and_equal_sign_means_the_source() -> None:
    machine = matter(enter_liquid=_enters, leave_liquid=_leaves)
    driver, run = await lump(machine)
    await driver.fire(run, Change.MELT)
    await driver.fire(run, Change.TOUCH)
    assert run.ctx.said == ["enter liquid", "leave liquid", "enter liquid"]
    machine.add_transition("shake", ["liquid", "gas"], "=", after=says("shaken"))
    assert [(row.source, row.dest) for row in machine.get_transitions("shake")] == [
        ("liquid", "liquid"),
        ("gas", "gas"),
    ]


async def test_an_internal_transition_runs_neither_exit_nor_enter() -> None:
    machine = matter(enter_liquid=_enters, leave_liquid=_leaves)
    machine.events["stir"].add_callback("after", says("stirred"))
    driver, run = await lump(machine)
    await driver.fire(run, Change.MELT)
    await driver.fire(run, Change.STIR)
    assert run.ctx.said == ["enter liquid", "stirred"]


async def test_ordered_transitions_lead_through_the_states() -> None:
    machine = matter()
    machine.add_ordered_transitions(["solid", "liquid", "gas", "plasma"], loop=False)
    driver, run = await lump(machine)
    for _ in range(3):
        await driver.fire(run, machine.graph.events("next_state"))
    assert run.cursor.state == "plasma"


async def test_a_trigger_with_several_transitions_from_one_state_takes_the_first_that_is_allowed() -> None:
    machine = matter("melt")
    machine.add_transition("melt", "solid", "gas", conditions="is_flammable")
    machine.add_transition("melt", "solid", "liquid")
    for flammable, where in ((True, "gas"), (False, "liquid")):
        driver, run = await lump(machine, flammable=flammable)
        await driver.fire(run, Change.MELT)
        assert run.cursor.state == where


# ---- conditions ----


async def test_a_transition_whose_conditions_do_not_all_hold_is_refused_and_moves_nothing() -> None:
    machine = matter("melt")
    machine.add_transition("melt", "solid", "liquid", conditions=["is_flammable", _is_hot])
    for given, allowed in (
        ({"flammable": True}, True),
        ({"flammable": False}, False),
        ({"flammable": True, "hot": False}, False),
    ):
        driver, run = await lump(machine, **given)
        assert getattr(run, "may_melt")() is allowed  # noqa: B009 - a type checker does not know it
        if allowed:
            await driver.fire(run, Change.MELT)
        else:
            with pytest.raises(
                Refused
            ):  # the library returns False, and a caller who forgets to look goes wrong
                await driver.fire(run, Change.MELT)
        assert run.cursor.state == ("liquid" if allowed else "solid")


async def test_unless_is_a_condition_that_must_not_hold() -> None:
    machine = matter("melt")
    machine.add_transition("melt", "solid", "liquid", unless=["is_flammable"])
    assert (await lump(machine))[1].may("melt")
    driver, run = await lump(machine, flammable=True)
    with pytest.raises(Refused, match="guard not is_flammable said no"):
        await driver.fire(run, Change.MELT)


# ---- callbacks ----


async def test_callbacks_are_added_with_a_state_to_a_state_and_under_the_short_names_of_the_machine() -> None:
    machine = matter()
    machine.add_states(
        {"name": "vapour", "on_exit": ["make_hissing_noises"], "on_enter": says("enter vapour")}
    )
    machine.add_transition("boil", "liquid", "vapour")
    machine.add_transition("cool", "vapour", "plasma")
    machine.on_enter_liquid(says("enter liquid"))
    machine.on_exit_solid("make_hissing_noises")
    machine.before_melt(says("melting"))
    driver, run = await lump(machine)
    for event in ("melt", "boil", "cool"):
        await driver.fire(run, machine.graph.events(event))
    assert run.ctx.said == ["melting", "HISSSS", "enter liquid", "enter vapour", "HISSSS"]


async def test_sync_and_async_callbacks_of_a_slot_run_in_order_and_not_concurrently() -> None:
    async def slow(run: LumpRun) -> None:
        await asyncio.sleep(0.01)
        run.ctx.said.append("slow")

    machine = matter()
    machine.before_melt(slow)
    machine.before_melt(says("quick"))
    driver, run = await lump(machine)
    await driver.fire(run, Change.MELT)
    assert run.ctx.said == ["slow", "quick"]


async def test_named_callbacks_run_before_general_ones() -> None:
    machine = matter()
    machine.before_state_change = [says("general")]
    machine.before_melt(says("named"))
    driver, run = await lump(machine)
    await driver.fire(run, Change.MELT)
    assert run.ctx.said == ["named", "general"]


async def test_prepare_runs_also_for_a_transition_that_is_not_taken() -> None:
    machine = matter("melt")
    machine.add_transition("melt", "solid", "gas", conditions=["is_flammable"], prepare=says("first"))
    machine.add_transition("melt", "solid", "liquid", prepare=says("second"))
    driver, run = await lump(machine)
    await driver.fire(run, Change.MELT)
    assert (run.cursor.state, run.ctx.said) == ("liquid", ["first", "second"])


async def test_a_prepare_callback_that_a_later_transition_gets_after_the_first_event_runs() -> None:
    machine = matter("melt")
    machine.add_transition("melt", "solid", "gas", conditions=["is_flammable"])
    machine.add_transition("melt", "solid", "liquid")
    driver, run = await lump(machine)
    await driver.fire(run, Change.MELT)
    assert run.ctx.said == []
    machine.get_transitions("melt")[1].add_callback("prepare", says("second"))
    driver, run = await lump(machine)
    await driver.fire(run, Change.MELT)
    assert (run.cursor.state, run.ctx.said) == ("liquid", ["second"])


@pytest.mark.parametrize(
    ("slot", "where"),
    [("before", "solid"), ("on_exit", "solid"), ("on_enter", "liquid"), ("after", "liquid")],
)
async def test_an_exception_in_a_callback_reaches_the_caller_and_the_state_is_set_or_not(
    slot: str, where: str
) -> None:
    def broken(run: LumpRun) -> None:
        raise ValueError("oh no")

    machine = matter()
    state = {"on_exit": "solid", "on_enter": "liquid"}.get(slot)
    (row,) = machine.get_transitions("melt")
    getattr(machine.states[state] if state else row, slot).append(broken)
    driver, run = await lump(machine)
    with pytest.raises(ValueError, match="oh no"):
        await driver.fire(run, Change.MELT)
    assert run.cursor.state == where


# ---- where the asynchronous machine of the library does otherwise ----


async def test_a_cancellation_in_a_callback_is_not_swallowed() -> None:
    entered = asyncio.Event()

    async def waits(run: LumpRun) -> None:
        entered.set()
        await asyncio.Event().wait()

    machine = matter()
    machine.before_melt(waits)
    driver, run = await lump(machine)
    task = asyncio.create_task(driver.fire(run, Change.MELT))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.cursor.state == "solid"


async def test_a_second_trigger_is_refused_and_does_not_cancel_the_first() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def waits(run: LumpRun) -> None:
        entered.set()
        await leave.wait()

    machine = matter()
    machine.before_melt(waits)
    driver, run = await lump(machine)
    task = asyncio.create_task(driver.fire(run, Change.MELT))
    await entered.wait()
    with pytest.raises(InTransition):
        await driver.fire(run, Change.SUBLIMATE)
    leave.set()
    await task
    assert run.cursor.state == "liquid"


def test_auto_transitions_do_not_exist_because_every_edge_is_in_the_table() -> None:
    assert not [name for name in matter().events if name.startswith("to_")]


def test_models_are_not_registered() -> None:
    with pytest.raises(GraphError, match="runs are the models"):
        matter().add_model(Lump())


async def _enters(run: LumpRun) -> None:
    run.ctx.said.append(f"enter {run.cursor.state}")


async def _leaves(run: LumpRun) -> None:
    run.ctx.said.append(f"leave {run.cursor.state}")


def _is_hot(lump: Lump) -> bool:
    return lump.hot
