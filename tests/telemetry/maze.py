"""Machines and journeys by chance: what a driver, its observers and its journal have to agree on, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, cast

from hypothesis import strategies as st

from orchestrator.errors import Refused
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.run import Run
from orchestrator_guards import Verdict

EVENTS = ("left", "right", "back")


@dataclass(frozen=True, slots=True)
class Plan:
    """One journey. Numbers choose among what there is, modulo how much there is."""

    states: int
    edges: Sequence[tuple[int, int, int, str]]
    """(source, event, dest, guard): guard is `none`, `allow`, `deny` or `raise`."""
    pure: frozenset[int]
    deeds: Sequence[str]
    """What the enter hooks do, one after the other; then each asks to stop."""
    park: bool
    crash_at: int
    """Number of the append that the journal fails at; 0: never."""


PLANS = st.builds(
    Plan,
    states=st.integers(2, 5),
    edges=st.lists(
        st.tuples(
            st.integers(0, 4),
            st.integers(0, 2),
            st.integers(0, 6),
            st.sampled_from(("none", "none", "none", "allow", "deny", "raise")),
        ),
        max_size=12,
    ),
    pure=st.frozensets(st.integers(0, 4)),
    deeds=st.lists(
        st.sampled_from(
            (
                *EVENTS,
                *EVENTS,
                "on",
                "on",
                "ask",
                "raise",
                "refuse",
                "stray",
                "cancel",
                "pause",
                "hang",
                "nothing",
            )
        ),
        max_size=25,
    ),
    park=st.booleans(),
    crash_at=st.sampled_from((0, 0, 0, 1, 2, 3, 5, 8)),
)


@dataclass(slots=True)
class Ctx:
    iteration: int = 0
    verdict: object = None


@dataclass(slots=True)
class Deps:
    deeds: list[str]
    hangs: asyncio.Event = field(default_factory=asyncio.Event)


def graph_of(plan: Plan) -> Graph:
    """Return a graph of the plan's states, one to wait in, and two to end in."""
    working = [f"w{number}" for number in range(plan.states)]
    named: Any = StrEnum
    names = [*working, "ask", "done", "failed"]
    states = cast("type[StrEnum]", named("Place", {name.upper(): name for name in names}))
    words = (*EVENTS, "on", "ask", "stop", "failure")
    events = cast("type[StrEnum]", named("Way", {word.upper(): word for word in words}))
    goals = [*working, "ask", "done"]
    chosen: dict[tuple[str, str], Edge] = {}
    for source, event, dest, guard in plan.edges:
        at, word = working[source % plan.states], EVENTS[event]
        chosen[at, word] = Edge(word, (at,), goals[dest % len(goals)], GUARDS[guard])
    return Graph(
        name="maze",
        states=states,
        events=events,
        initial=states("w0"),
        terminal=frozenset((states("done"), states("failed"))),
        waiting=frozenset((states("ask"),)),
        failure=events("failure"),
        pure=frozenset(states(working[number % plan.states]) for number in plan.pure),
        context=Ctx,
        strict=False,
        edges=(
            *chosen.values(),
            *(Edge("on", (here,), there) for here, there in pairwise(working)),
            Edge("ask", tuple(working), "ask"),
            Edge("left", ("ask",), "w0"),
            Edge("right", ("ask",), "ask"),
            Edge("stop", (*working, "ask"), "done"),
            Edge("failure", (*working, "ask"), "failed"),
        ),
    )


def _allow(ctx: Ctx) -> Verdict:
    return Verdict(True, "allow", 1, 2)


def _deny(ctx: Ctx) -> Verdict:
    return Verdict(False, "deny", 2, 2)


def _raise(ctx: Ctx) -> Verdict:
    raise ArithmeticError


GUARDS: dict[str, Callable[[Ctx], Verdict] | None] = {
    "none": None,
    "allow": _allow,
    "deny": _deny,
    "raise": _raise,
}


def machine_of(graph: Graph) -> Machine:
    """Bind hooks that do what the run's deeds say, next deed first."""

    async def enter(_self: object, run: Run[Ctx, Deps]) -> StrEnum | None:
        run.ctx.iteration += 1
        deed = run.deps.deeds.pop(0) if run.deps.deeds else "stop"
        return await DEEDS.get(deed, _go)(run, deed)

    working = {state for state in graph.states if graph.is_working(state)}
    hooks = type("Hooks", (), {f"enter_{state.value}": enter for state in working})
    return Machine(graph, collect(graph, hooks()))


async def _go(run: Run[Ctx, Deps], deed: str) -> StrEnum | None:
    await asyncio.sleep(0)
    there = {event.value for event in run.available_events()}
    return run.graph.events(deed if deed in there else "stop")


async def _break(run: Run[Ctx, Deps], deed: str) -> StrEnum | None:
    raise RuntimeError(deed)


async def _refuse(run: Run[Ctx, Deps], deed: str) -> StrEnum | None:
    raise Refused("not today")


async def _stray(run: Run[Ctx, Deps], deed: str) -> StrEnum | None:
    return run.graph.events("right")


async def _cancel(run: Run[Ctx, Deps], deed: str) -> StrEnum | None:
    run.cancel("caller")
    await asyncio.sleep(0)
    return run.graph.events("stop")


async def _pause(run: Run[Ctx, Deps], deed: str) -> StrEnum | None:
    run.mailbox.post(Signal(kind="pause"))
    return await _go(run, "left")


async def _hang(run: Run[Ctx, Deps], deed: str) -> StrEnum | None:
    run.deps.hangs.set()
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


DEEDS: dict[str, Callable[[Run[Ctx, Deps], str], Awaitable[StrEnum | None]]] = {
    "raise": _break,
    "refuse": _refuse,
    "stray": _stray,
    "cancel": _cancel,
    "pause": _pause,
    "hang": _hang,
}


async def journey(
    plan: Plan, run: Run[Ctx, Deps], driver: Driver, left: Callable[[Run[Ctx, Deps]], None]
) -> None:
    """Drive a run as long as anything happens: cancelled where it hangs, answered where it waits.

    `left` is called whenever the driver has returned.
    """
    for _ in range(len(plan.deeds) + 3):
        task = asyncio.ensure_future(driver.drive(run, park=plan.park))
        spins = 0
        while not task.done():
            await asyncio.sleep(0)
            spins += 1
            if run.deps.hangs.is_set() or spins > 3_000:
                run.deps.hangs.clear()
                task.cancel()
            elif spins % 40 == 0 and run.parked:
                _answer(run, spins)
        if not task.cancelled():
            task.exception()  # what a lost journal or an impossible machine raises is the caller's
        left(run)
        if run.ended or run.control.detached:
            return
        _answer(run, len(run.deps.deeds))


def _answer(run: Run[Ctx, Deps], number: int) -> None:
    if run.control.pause_request is not None:
        run.mailbox.post(Signal(kind="resume"))
        return
    run.mailbox.post(Signal(run.graph.events(("right", "left", "stop")[number % 3])))
