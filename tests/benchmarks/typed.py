"""What events that are objects cost: a typed machine beside the kernel's own on the same table, per transition.

The kernel's own is a Driver that drives a Graph whose `enter_` hooks name the next event, as the six graphs of the
library do. The typed machine is asked for objects by its source, and looks their edges up by class. Both have one guard
and count their turns, the typed one in an action; nobody observes either. Processor time of the thread.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any, TypeAlias

from orchestrator.kernel.driver import Driver
from orchestrator.kernel.graph import Edge, Graph, bounding
from orchestrator.kernel.machine import bind
from orchestrator.kernel.run import Run
from orchestrator.kernel.typed import StateMachine

NAME = "typed machine"
AIM = 1.3


@dataclass(slots=True)
class Turns:
    """How many turns there are to be, and how many there were."""

    left: int
    iteration: int = 0


# ---- the kernel's own ----


class State(StrEnum):
    """Two states that take turns, and an end."""

    ASK = "ask"
    ACT = "act"
    DONE = "done"


class Event(StrEnum):
    """What leads from one to the other."""

    ASKED = "asked"
    ACTED = "acted"
    ENDED = "ended"


@bounding
def may_ask(turns: Turns) -> bool:
    """Allow a turn while any are left."""
    return turns.iteration < turns.left


GRAPH = Graph(
    name="turns",
    states=State,
    events=Event,
    initial=State.ASK,
    terminal=frozenset((State.DONE,)),
    context=Turns,
    edges=(
        Edge(Event.ASKED, (State.ASK,), State.ACT),
        Edge(Event.ACTED, (State.ACT,), State.ASK, may_ask),
        Edge(Event.ENDED, (State.ACT,), State.DONE),
    ),
)


class Hooks:
    """The work of the states."""

    async def enter_ask(self, _run: Run[Turns, None]) -> Event:
        """Ask."""
        return Event.ASKED

    async def enter_act(self, run: Run[Turns, None]) -> Event:
        """Act, until it is enough."""
        run.ctx.iteration += 1
        return Event.ACTED if run.ctx.iteration < run.ctx.left else Event.ENDED


def kernel() -> Callable[[int], int]:
    """Return what runs so many turns and returns how many transitions that were."""
    machine = bind(GRAPH, Hooks())
    driver = Driver(machine)

    def go(turns: int) -> int:
        run: Run[Turns, None] = Run(machine, "r", Turns(turns), None)
        asyncio.run(driver.drive(run))
        return run.seq

    return go


# ---- the typed machine ----


class Place(Enum):
    """The same states."""

    ASK = auto()
    ACT = auto()
    DONE = auto()


@dataclass(slots=True, frozen=True)
class Asked:
    """The same events."""


@dataclass(slots=True, frozen=True)
class Acted:
    """A turn is over."""


@dataclass(slots=True, frozen=True)
class Ended:
    """It is enough."""


Happening: TypeAlias = Asked | Acted | Ended
ASKED, ACTED, ENDED = Asked(), Acted(), Ended()


@bounding
def may_act(_event: Acted, turns: Turns) -> bool:
    """Allow a turn while any are left."""
    return turns.iteration < turns.left


def count(_event: Asked, turns: Turns) -> None:
    """Count a turn."""
    turns.iteration += 1


def source(place: Place, turns: Turns) -> Happening:
    """Return the next event."""
    if place is Place.ASK:
        return ASKED
    return ACTED if turns.iteration < turns.left else ENDED


async def async_source(place: Place, turns: Turns) -> Happening:
    """Return the next event."""
    return source(place, turns)


def typed() -> StateMachine[Place, Happening, Turns]:
    """Return the machine."""
    machine: StateMachine[Place, Happening, Turns] = StateMachine("turns")
    machine.state(Place.ASK).state(Place.ACT).state(Place.DONE).terminal(Place.DONE)
    machine.transition(Place.ASK, Asked, Place.ACT, action=count)
    machine.transition(Place.ACT, Acted, Place.ASK, guard=may_act)
    return machine.transition(Place.ACT, Ended, Place.DONE)


def sync_run() -> Callable[[int], int]:
    """Return the same for `run`."""
    machine = typed()
    return lambda turns: machine.run(Place.ASK, Turns(turns), source).transitions


def async_run() -> Callable[[int], int]:
    """Return the same for `arun` with an async source."""
    machine = typed()
    return lambda turns: asyncio.run(machine.arun(Place.ASK, Turns(turns), async_source)).transitions


# ---- measuring ----


@dataclass(frozen=True, slots=True)
class Figures:
    """Microseconds a transition, medians of the rounds; ratios to the kernel's own of the same round."""

    name: str
    kernel_us: float
    sync_us: float
    async_us: float
    sync_ratio: float
    async_ratio: float
    best_ratio: float
    """The dearer of the two, of the quickest round of each: what is left when nothing else runs on the machine."""


def measure(turns: int = 5_000, rounds: int = 15) -> Figures:
    """Measure, every contestant once in each round."""
    goers = (kernel(), sync_run(), async_run())
    samples = [[_seconds(go, turns) for go in goers] for _ in range(rounds + 1)][
        1:
    ]  # the first round warms up
    return _figures(samples)


def _seconds(go: Callable[[int], int], turns: int) -> float:
    began = time.thread_time()
    moves = go(turns)
    return (time.thread_time() - began) / moves


def _figures(samples: Sequence[Sequence[float]]) -> Figures:
    columns: list[Any] = list(zip(*samples, strict=True))
    own, sync, with_await = (statistics.median(column) * 1e6 for column in columns)
    ratios = [statistics.median(sample[at] / sample[0] for sample in samples) for at in (1, 2)]
    best = max(min(columns[1]), min(columns[2])) / min(columns[0])
    return Figures(NAME, own, sync, with_await, ratios[0], ratios[1], best)


def rows(one: Figures) -> list[str]:
    """Return the lines of the report."""
    return [
        "processor µs a transition: a graph of the kernel's own; the typed machine on the same table, sync and async",
        f"{'case':28}{'kernel':>7}{'sync':>7}{'async':>7}{'sync/k':>8}{'async/k':>8}{'best/k':>8}",
        (
            f"{one.name:28}{one.kernel_us:7.2f}{one.sync_us:7.2f}{one.async_us:7.2f}{one.sync_ratio:8.2f}"
            f"{one.async_ratio:8.2f}{one.best_ratio:8.2f}   (aim: at most {AIM})"
        ),
    ]
