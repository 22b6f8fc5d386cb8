"""looplab/fsm's contract: eight slots in its order, and what a veto or an error in each leaves behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import InTransition, InvalidEvent, NoTransition, Refused, UnknownEvent
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import EventFailed, Fact, RunStarted, Transition
from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.journal import NO_HASH, Draft, Lease
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run


class State(StrEnum):
    START = "start"
    END = "end"


class Event(StrEnum):
    RUN = "run"
    STAY = "stay"
    AGAIN = "again"
    BACK = "back"


GRAPH = Graph(
    name="looplab",
    states=State,
    events=Event,
    initial=State.START,
    rest=frozenset(State),
    edges=(
        Edge(Event.RUN, (State.START,), State.END),
        Edge(Event.STAY, (State.START,), State.START),
        Edge(Event.AGAIN, (State.START,), State.START, reenter=True),
        Edge(Event.BACK, (State.END,), State.START),
    ),
)

AHEAD = ("before_run", "before_event", "leave_start", "leave_state")
BEHIND = ("enter_end", "enter_state", "after_run", "after_event")
SLOTS = AHEAD + BEHIND
GOLDEN = [*AHEAD, "journal start", "told end", *BEHIND]
MODES = pytest.mark.parametrize("strict", [False, True], ids=["kind", "strict"])


class Context:
    iteration = 0


class Stage:
    """A run whose hooks, journal and observer write down that they were called, and in which state."""

    def __init__(self, strict: bool, faults: dict[str, Exception] | None = None) -> None:
        self.log: list[str] = []
        self.facts: list[Fact] = []
        self.backend = "list"
        self._faults = faults or {}
        names = {*SLOTS, "enter_start", "before_stay", "after_stay", "before_again", "after_again"}
        hooks = SimpleNamespace(**{name: self._hook(name) for name in names})
        self.run: Run[Context, None] = Run(Machine(GRAPH, collect(GRAPH, hooks)), "r", Context(), None)
        self.driver = Driver(self.run.machine, observers=(self,), journal=self, strict=strict)

    def _hook(self, name: str) -> Any:
        async def hook(run: Run[Context, None]) -> None:
            self.log.append(name)
            if name in self._faults and run.started_at is not None and run.step is not None:
                raise self._faults[name]

        return hook

    def observe(self, fact: Fact) -> None:
        self.facts.append(fact)
        if isinstance(fact, Transition):
            self.log.append(f"told {self.run.state}")

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        self.log.append("created")
        return Lease(run_id, owner, 1, 0, NO_HASH)

    async def release(self, lease: Lease) -> None: ...

    def append(self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None) -> None:
        self.log.append(f"journal {self.run.state}")

    async def fire(self, event: Event) -> list[str]:
        """Fire one event of a started run and return what that alone wrote down."""
        if self.run.started_at is None:
            await self.driver.start(self.run)
        self.log.clear()
        await self.driver.fire(self.run, event)
        return self.log


# ---- order ----


@MODES
async def test_the_eight_slots_run_in_looplabs_order_round_journal_and_observers(strict: bool) -> None:
    assert await Stage(strict).fire(Event.RUN) == GOLDEN


@MODES
async def test_an_edge_that_reenters_its_state_runs_all_eight(strict: bool) -> None:
    assert await Stage(strict).fire(Event.AGAIN) == [
        *("before_again", "before_event", "leave_start", "leave_state", "journal start", "told start"),
        *("enter_start", "enter_state", "after_again", "after_event"),
    ]


INTERNAL = ["before_stay", "before_event", "journal start", "told start", "after_stay", "after_event"]


async def test_an_edge_that_stays_runs_before_and_after_only() -> None:
    stage = Stage(strict=False)
    assert await stage.fire(Event.STAY) == INTERNAL
    assert [fact.internal for fact in stage.facts if isinstance(fact, Transition)] == [True]


async def test_in_strict_mode_an_edge_that_stays_runs_the_same_and_raises_no_transition() -> None:
    stage = Stage(strict=True)
    with pytest.raises(NoTransition) as caught:
        await stage.fire(Event.STAY)
    assert stage.log == INTERNAL
    assert (caught.value.graph, caught.value.state, caught.value.event) == ("looplab", "start", "stay")
    assert not any(isinstance(fact, EventFailed) for fact in stage.facts)
    assert stage.run.can(Event.RUN)


async def test_the_initial_states_enter_hooks_run_when_the_run_is_created() -> None:
    stage = Stage(strict=False)
    await stage.driver.start(stage.run)
    assert stage.log == ["created", "enter_start", "enter_state"]
    assert [type(fact) for fact in stage.facts] == [RunStarted]


async def test_the_first_event_creates_the_run_if_nobody_has() -> None:
    stage = Stage(strict=False)
    await stage.driver.fire(stage.run, Event.RUN)
    assert stage.log == ["created", "enter_start", "enter_state", *GOLDEN]


async def test_general_hooks_can_tell_which_edge_they_are_on() -> None:
    seen: list[tuple[str, str, str]] = []

    async def note(run: Run[Context, None]) -> None:
        assert run.step is not None
        seen.append((run.step.event, run.step.source, run.step.dest))

    hooks = SimpleNamespace(before_event=note, after_event=note)
    run: Run[Context, None] = Run(Machine(GRAPH, collect(GRAPH, hooks)), "r", Context(), None)
    await Driver(run.machine).fire(run, Event.RUN)
    assert seen == [("run", "start", "end")] * 2


# ---- veto ----


@MODES
@pytest.mark.parametrize("slot", AHEAD)
async def test_a_veto_before_the_commit_changes_nothing(slot: str, strict: bool) -> None:
    stage = Stage(strict, {slot: Refused("not today")})
    with pytest.raises(Refused) as caught:
        await stage.fire(Event.RUN)
    assert stage.log == list(AHEAD[: AHEAD.index(slot) + 1])
    assert (stage.run.state, stage.run.seq, stage.run.cursor.pending_event) == (State.START, 0, None)
    error = caught.value
    assert (error.graph, error.state, error.event, error.reason) == ("looplab", "start", "run", "not today")
    (failed,) = [fact for fact in stage.facts if isinstance(fact, EventFailed)]
    assert (failed.event, failed.state, failed.reason, failed.hook, failed.committed) == (
        *("run", "start", "refused", slot),
        False,
    )


@MODES
@pytest.mark.parametrize("slot", BEHIND)
async def test_after_the_commit_it_is_too_late_for_a_veto(slot: str, strict: bool) -> None:
    stage = Stage(strict, {slot: Refused("too late")})
    with pytest.raises(Refused, match="too late"):
        await stage.fire(Event.RUN)
    assert stage.log == [*AHEAD, "journal start", "told end", *BEHIND[: BEHIND.index(slot) + 1]]
    assert (stage.run.state, stage.run.seq) == (State.END, 1)


@MODES
@pytest.mark.parametrize("slot", ["before_stay", "before_event"])
async def test_a_veto_on_an_edge_that_stays_is_refused_in_both_modes(slot: str, strict: bool) -> None:
    stage = Stage(strict, {slot: Refused("no")})
    with pytest.raises(Refused):
        await stage.fire(Event.STAY)
    assert stage.run.seq == 0


# ---- errors ----


@MODES
@pytest.mark.parametrize("slot", SLOTS)
async def test_an_error_reaches_the_caller_and_the_state_is_that_of_its_slot(slot: str, strict: bool) -> None:
    error = ValueError(slot)
    stage = Stage(strict, {slot: error})
    with pytest.raises(ValueError, match=slot) as caught:
        await stage.fire(Event.RUN)
    committed = slot in BEHIND
    assert caught.value is error
    assert stage.run.state == (State.END if committed else State.START)
    assert stage.log == GOLDEN[: GOLDEN.index(slot) + 1]
    (failed,) = [fact for fact in stage.facts if isinstance(fact, EventFailed)]
    assert (failed.reason, failed.hook, failed.committed, failed.error) == (
        *("callback_error", slot, committed),
        error,
    )


@pytest.mark.parametrize("slot", SLOTS)
async def test_after_an_error_in_any_slot_the_run_takes_the_next_event(slot: str) -> None:
    stage = Stage(False, {slot: ValueError(slot)})
    with pytest.raises(ValueError, match=slot):
        await stage.fire(Event.RUN)
    stage._faults.clear()
    event = Event.BACK if slot in BEHIND else Event.RUN
    assert stage.run.can(event)
    await stage.fire(event)
    assert stage.run.state == (State.START if slot in BEHIND else State.END)


@MODES
@pytest.mark.parametrize("slot", ["after_stay", "after_event"])
async def test_an_error_after_an_edge_that_stays_comes_before_no_transition(slot: str, strict: bool) -> None:
    stage = Stage(strict, {slot: ValueError(slot)})
    with pytest.raises(ValueError, match=slot):
        await stage.fire(Event.STAY)


async def test_an_event_without_an_edge_or_outside_the_graph_is_refused_before_any_hook() -> None:
    stage = Stage(strict=False)
    await stage.driver.start(stage.run)
    stage.log.clear()
    with pytest.raises(InvalidEvent):
        await stage.driver.fire(stage.run, Event.BACK)
    with pytest.raises(UnknownEvent):
        await stage.driver.fire(stage.run, State.END)
    assert stage.log == []
    assert [fact.reason for fact in stage.facts if isinstance(fact, EventFailed)] == [
        "undeclared_edge",
        "unknown_event",
    ]


async def test_an_event_inside_a_hook_is_in_transition() -> None:
    caught: list[InTransition] = []

    async def nested(run: Run[Context, None]) -> None:
        try:
            await driver.fire(run, Event.BACK)
        except InTransition as error:
            caught.append(error)

    hooks = SimpleNamespace(enter_end=nested)
    run: Run[Context, None] = Run(Machine(GRAPH, collect(GRAPH, hooks)), "r", Context(), None)
    driver = Driver(run.machine)
    await driver.fire(run, Event.RUN)
    assert [(error.graph, error.state, error.event) for error in caught] == [("looplab", "end", "back")]
    assert run.state == State.END
