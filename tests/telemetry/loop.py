"""A small machine that loops, may be refused, fails and parks; driven by the real driver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import Fact, Observer
from orchestrator.kernel.graph import Edge, Graph, bounding
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.journal import JournalWriter
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending
from orchestrator.kernel.run import Run
from orchestrator.testing.clock import FakeClock
from orchestrator_guards import Verdict

CANARY = "sk-canary-9f8e7d6c5b4a"


class State(StrEnum):
    BEGIN = "begin"
    THINK = "think"
    ACT = "act"
    ASK = "ask"
    DONE = "done"
    FAILED = "failed"


class Event(StrEnum):
    GO = "go"
    CALL = "call"
    AGAIN = "again"
    NOTE = "note"
    STOP = "stop"
    WAIT = "wait"
    ANSWER = "answer"
    FAILURE = "failure"


@dataclass(slots=True)
class Context:
    iteration: int = 0
    most: int = 3
    rounds: int = 2
    verdict: Verdict | None = None


@bounding
def turns(ctx: Context) -> Verdict:
    return Verdict(ctx.iteration < ctx.most, "iterations", ctx.iteration, ctx.most)


LOOP = Graph(
    name="loop",
    states=State,
    events=Event,
    initial=State.BEGIN,
    terminal=frozenset((State.DONE, State.FAILED)),
    failure=Event.FAILURE,
    waiting=frozenset((State.ASK,)),
    context=Context,
    dwell={State.ASK: None, State.THINK: (60.0, Event.FAILURE)},
    edges=(
        Edge(Event.GO, (State.BEGIN,), State.THINK),
        Edge(Event.CALL, (State.THINK,), State.ACT),
        Edge(Event.AGAIN, (State.ACT,), State.THINK, turns),
        Edge(Event.WAIT, (State.ACT,), State.ASK),
        Edge(Event.NOTE, (State.ASK,), State.ASK),
        Edge(Event.ANSWER, (State.ASK,), State.THINK),
        Edge(Event.STOP, (State.THINK,), State.DONE),
        Edge(Event.FAILURE, (State.BEGIN, State.THINK, State.ACT, State.ASK), State.FAILED),
    ),
)

Act = Callable[["Run[Context, Deps]"], Awaitable[Event | None]]


@dataclass(slots=True)
class Deps:
    clock: FakeClock
    act: Act | None = None
    """What happens in `act`; without it the loop goes round."""
    facts: list[Fact] = field(default_factory=list)


class Hooks:
    async def enter_begin(self, run: Run[Context, Deps]) -> Event:
        return Event.GO

    async def enter_think(self, run: Run[Context, Deps]) -> Event:
        await run.deps.clock.sleep(2)
        run.ctx.iteration += 1
        return Event.STOP if run.ctx.iteration > run.ctx.rounds else Event.CALL

    async def enter_act(self, run: Run[Context, Deps]) -> Event | None:
        await run.deps.clock.sleep(0.25)
        return await run.deps.act(run) if run.deps.act else Event.AGAIN


def machine(*hosted: object) -> Machine:
    return Machine(LOOP, collect(LOOP, Hooks(), extra=hosted))


@dataclass(slots=True)
class Rig:
    """One driver with a fake clock, and the observers under test."""

    observers: Iterable[Observer]
    summary: Callable[[Any], Any] | None = None
    ending: Callable[[Any], Ending] | None = None
    journal: JournalWriter | None = None
    hosted: tuple[object, ...] = ()
    clock: FakeClock = field(default_factory=lambda: FakeClock(auto=True))

    def driver(self) -> Driver:
        return Driver(
            machine(*self.hosted),
            observers=self.observers,
            journal=self.journal,
            clock=self.clock,
            ending=self.ending,
            summary=self.summary,
        )

    def run(self, run_id: str = "r1", act: Act | None = None, **ctx: Any) -> Run[Context, Deps]:
        return Run(machine(*self.hosted), run_id, Context(**ctx), Deps(self.clock, act))

    async def drive(self, run_id: str = "r1", act: Act | None = None, **ctx: Any) -> Run[Context, Deps]:
        run = self.run(run_id, act, **ctx)
        await self.driver().drive(run)
        return run
