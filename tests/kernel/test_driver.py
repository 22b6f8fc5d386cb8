from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from orchestrator.errors import InTransition, InvalidEvent, RunExists
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import (
    EventFailed,
    Fact,
    GuardEvaluated,
    RecordsWritten,
    RunCompleted,
    RunParked,
    RunStarted,
    Transition,
)
from orchestrator.kernel.graph import Edge, Graph, bounding
from orchestrator.kernel.journal import Draft, Lease
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.testing.clock import FakeClock
from orchestrator_guards.verdict import Verdict
from tests.kernel.toy import TOY, Context, E, Facts, S, ToyRun, machine, new_run, nothing, rig


async def test_a_run_goes_from_its_initial_state_to_a_terminal_one() -> None:
    a = rig(E.AGAIN, E.FINISH)
    await a.driver.drive(a.run)
    assert a.run.ended
    assert a.run.state == S.DONE
    assert a.facts.path == ["start", "did", "again", "did", "finish"]
    assert [fact.seq for fact in a.facts.of(Transition)] == [1, 2, 3, 4, 5]
    (started,) = a.facts.of(RunStarted)
    (ended,) = a.facts.of(RunCompleted)
    assert (started.origin, a.facts.all[0], a.facts.all[-1]) == ("new", started, ended)
    assert (ended.outcome, ended.reason, ended.transitions, ended.iterations) == ("completed", "none", 5, 2)


async def test_an_ended_run_is_left_alone_and_refuses_events() -> None:
    a = rig()
    await a.driver.drive(a.run)
    told = len(a.facts.all)
    await a.driver.drive(a.run)
    assert len(a.facts.all) == told
    assert a.run.available_events() == ()
    for attempt in (a.driver.fire(a.run, E.FAIL), a.driver.drive(a.run, E.FAIL)):
        with pytest.raises(InvalidEvent):
            await attempt
    a.run.cancel()
    assert a.run.interruption is None


async def test_the_event_given_to_drive_is_fired_in_place_of_the_hooks_choice() -> None:
    a = rig()
    await a.driver.drive(a.run, E.FAIL)
    assert a.facts.path == ["fail"]


async def test_a_second_drive_of_the_same_run_is_in_transition() -> None:
    caught: list[str] = []

    async def nested(run: ToyRun) -> None:
        for attempt in (driver.drive(run), driver.fire(run, E.FAIL), driver.drive(run, E.FAIL)):
            with pytest.raises(InTransition) as refused:
                await attempt
            caught.append(refused.value.event)

    a = rig(before_did=nested)
    driver = a.driver
    await a.driver.drive(a.run)
    assert caught == ["drive", "fail", "fail"]
    assert a.run.state == S.DONE


async def test_one_driver_carries_two_runs_at_once() -> None:
    a = rig()
    other = new_run(a.run.machine, E.AGAIN, run_id="r2")
    await asyncio.gather(a.driver.drive(a.run), a.driver.drive(other))
    assert (a.run.seq, other.seq) == (3, 5)


async def test_a_run_can_be_carried_on_by_hand() -> None:
    a = rig()
    event = await a.driver.start(a.run)
    path = []
    while event is not None:
        path.append(event)
        event = await a.driver.fire(a.run, event)
    assert path == [E.START, E.DID, E.FINISH]
    assert a.run.ended
    assert len(a.facts.of(RunCompleted)) == 1


async def test_a_run_started_by_hand_can_be_driven_on() -> None:
    a = rig()
    assert await a.driver.start(a.run) == E.START
    await a.driver.drive(a.run)
    assert a.run.state == S.DONE
    assert len(a.facts.of(RunStarted)) == 1


async def test_a_run_is_started_once() -> None:
    a = rig(journal=MemoryJournal())
    await a.driver.start(a.run)
    with pytest.raises(RunExists):
        await a.driver.start(a.run)
    with pytest.raises(RunExists):
        await a.driver.drive(new_run(a.run.machine))
    assert len(a.facts.of(RunStarted)) == 1


async def test_a_run_that_its_journal_knows_leaves_nothing_behind() -> None:
    a = rig(journal=MemoryJournal())
    await a.driver.drive(a.run)
    again = new_run(a.run.machine)
    told = len(a.facts.all)
    with pytest.raises(RunExists, match="r1"):
        await a.driver.drive(again)
    assert len(a.facts.all) == told
    assert not again.control.driving
    assert again.started_at is None


async def test_a_stored_run_goes_on_with_the_enter_hooks_of_its_state() -> None:
    a = rig()
    a.run.cursor.state, a.run.cursor.seq, a.run.cursor.started_at, a.run.cursor.parked = "work", 1, 0.0, True
    await a.driver.drive(a.run)
    assert a.facts.path == ["did", "finish"]
    assert a.facts.of(Transition)[0].seq == 2
    assert [fact.origin for fact in a.facts.of(RunStarted)] == ["resumed"]


async def test_the_last_enter_hook_that_answers_decides() -> None:
    class Host:
        async def enter_check(self, run: ToyRun) -> Any:
            return E.ASKED

    a = rig(E.FINISH, extra=[Host()], enter_state=nothing)
    await a.driver.drive(a.run)
    assert a.facts.path == ["start", "did", "asked"]


async def test_guards_are_asked_once_and_told() -> None:
    def guard(_: Context) -> Verdict:
        asked.append(1)
        return Verdict(ok=True, guard="turns", observed=7, limit=9)

    asked = list[int]()
    edges = tuple(
        type(edge)(edge.event, edge.sources, edge.dest, guard if edge.when else None) for edge in TOY.edges
    )
    graph = Graph("toy", S, E, S.INIT, edges, TOY.terminal, waiting=TOY.waiting, failure=E.FAIL, strict=False)
    a = rig(E.AGAIN, graph=graph)
    await a.driver.drive(a.run)
    (told,) = a.facts.of(GuardEvaluated)
    assert (told.event, told.guard, told.result, told.observed, told.limit) == (
        "again",
        "guard",
        "allow",
        7,
        9,
    )
    assert asked == [1]
    assert a.facts.of(Transition)[2].guard == "guard"


async def test_a_denied_guard_fails_a_working_state() -> None:
    a = rig(E.AGAIN, turns=1)
    await a.driver.drive(a.run)
    assert a.run.state == S.LOST
    assert [fact.result for fact in a.facts.of(GuardEvaluated)] == ["deny"]
    assert str(a.run.error) == "toy: event 'again' in state 'check' refused: guard may_work said no"
    assert [(fact.event, fact.reason, fact.hook) for fact in a.facts.of(EventFailed)] == [
        ("again", "refused", "when:may_work")
    ]


async def test_an_observer_that_raises_is_counted_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def observe(self, fact: Fact) -> None:
            raise ValueError("observer")

    made = machine()
    heard = rig().facts
    driver = Driver(made, observers=(Broken(), heard))
    run = new_run(made)
    await driver.drive(run)
    assert run.state == S.DONE
    assert driver.observer_errors == {"Broken": len(heard.all)}
    assert caplog.messages == ["observer Broken raised ValueError"]


async def test_an_observer_whose_receiver_is_a_new_function_each_time_fails_no_run() -> None:
    class Fresh:
        def observe(self, fact: Fact) -> None:
            raise AssertionError("not asked for")

        def hears(self, kind: type[Fact]) -> Callable[[Any], None]:
            return lambda fact: 1 / 0  # type: ignore[return-value]

    made = machine()
    driver = Driver(made, observers=(Fresh(),))
    run = new_run(made)
    await driver.drive(run)
    assert run.state == S.DONE
    assert sum(driver.observer_errors.values()) > 0


async def test_without_observers_and_journal_a_run_counts_its_transitions_all_the_same() -> None:
    made = machine()
    run = new_run(made, E.AGAIN)
    await Driver(made).drive(run)
    assert (run.state, run.seq, run.writes.unpublished, run.writes.drafts) == (S.DONE, 5, [], [])


class _Transitions:
    """An observer that receives transitions only."""

    def __init__(self) -> None:
        self.all: list[Fact] = []

    def observe(self, fact: Fact) -> None:
        raise AssertionError("not asked for")

    def hears(self, kind: type[Fact]) -> Callable[[Any], None] | None:
        return self.all.append if kind is Transition else None


async def test_a_run_knows_which_facts_are_received_with_a_follower_too() -> None:
    made, heard = machine(), _Transitions()
    driver = Driver(made, observers=(heard,))
    for follower in (None, list[object]().append):
        run = new_run(made, E.AGAIN)
        run.follow(follower)
        heard.all.clear()
        await driver.drive(run)
        assert run.writes.observed_kinds == {Transition}
        assert [type(fact) for fact in heard.all] == [Transition] * 5


async def test_a_follower_receives_every_record_once_it_is_durable_and_nothing_else() -> None:
    made, journal, items = machine(), MemoryJournal(), list[Any]()
    run = new_run(made, E.AGAIN)
    run.follow(items.append)
    await Driver(made, journal=journal).drive(run)
    assert {type(item) for item in items} == {RecordsWritten}
    received = [record.kind for item in items for record in item.records]
    assert received == [record.kind for record in await journal.load(run.run_id)]


async def test_a_follower_that_raises_is_counted_and_the_observers_receive_the_facts() -> None:
    def broken(written: object) -> None:
        raise ValueError("follower")

    made, heard = machine(), _Transitions()
    driver = Driver(made, observers=(heard,), journal=MemoryJournal())
    run = new_run(made)
    run.follow(broken)
    await driver.drive(run)
    assert run.state == S.DONE
    assert {type(fact) for fact in heard.all} == {Transition}
    assert driver.observer_errors["function"] >= len(heard.all)


async def test_ending_and_summary_are_the_compositions() -> None:
    a = rig()
    driver = Driver(
        a.run.machine,
        observers=(a.facts,),
        ending=lambda run: Ending(Outcome.PARTIAL, "cost"),
        summary=lambda run: {"turns": run.ctx.iteration},
    )
    await driver.drive(a.run)
    (ended,) = a.facts.of(RunCompleted)
    assert (ended.outcome, ended.reason, ended.summary) == ("partial", "cost", {"turns": 1})
    assert a.run.ending == Ending(Outcome.PARTIAL, "cost")


async def test_an_ending_that_raises_is_told_and_the_run_ends_as_an_internal_failure() -> None:
    def broken(run: object) -> Ending:
        raise KeyError("table")

    a = rig()
    await Driver(a.run.machine, observers=(a.facts,), ending=broken).drive(a.run)
    assert a.run.ended
    (ended,) = a.facts.of(RunCompleted)
    assert (ended.outcome, ended.reason) == ("failed", "internal")
    assert a.run.ending == Ending(Outcome.FAILED, "internal")
    assert len(a.facts.of(EventFailed)) == 1


async def test_hooks_that_never_wait_do_not_keep_other_tasks_out() -> None:
    async def init(run: ToyRun) -> E:
        asyncio.get_running_loop().call_soon(let_in.append, True)
        return E.START

    async def work(run: ToyRun) -> E:
        run.ctx.iteration += 1
        return E.DID

    async def check(run: ToyRun) -> E:
        return E.FINISH if let_in else E.AGAIN

    let_in: list[bool] = []
    a = rig(enter_init=init, enter_work=work, enter_check=check, turns=10_000)
    await a.driver.drive(a.run)
    assert a.run.state == S.DONE


async def test_an_observer_that_stops_a_run_keeps_the_state_it_was_told_of_from_working() -> None:
    class Stopper:
        def observe(self, fact: Fact) -> None:
            if isinstance(fact, Transition) and fact.dest == "work":
                run.cancel()

    made = machine()
    run = new_run(made)
    await Driver(made, observers=(Stopper(),)).drive(run)
    assert (run.state, run.ctx.iteration) == (S.LOST, 0)


async def test_the_verdict_of_the_context_stands_on_the_edge_that_ends_the_run() -> None:
    a = rig()
    made = a.run.machine
    run = new_run(made)

    class Judged:
        iteration, plan, turns, verdict = 0, list[E](), 9, "stalled"

    run.ctx = Judged()  # type: ignore[assignment]
    await a.driver.drive(run)
    assert [fact.verdict for fact in a.facts.of(Transition)] == [None, None, "stalled"]
    assert a.facts.of(RunCompleted)[0].verdict == "stalled"


async def test_a_parked_run_with_nothing_to_do_is_not_told_again() -> None:
    a = rig(E.ASKED)
    await a.driver.drive(a.run)
    told = len(a.facts.all)
    await a.driver.drive(a.run)
    assert len(a.facts.all) == told
    assert [fact.reason for fact in a.facts.of(RunParked)] == ["waiting"]


# ---- what the kernel itself costs ----


class Stopwatch(FakeClock):
    """Time passes where a test says that work was done."""

    def __init__(self) -> None:
        super().__init__()
        self.worked = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.worked


class StrollingJournal(MemoryJournal):
    """Each append takes two seconds of the clock."""

    def __init__(self, clock: Stopwatch) -> None:
        super().__init__()
        self.clock = clock

    def append(self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None) -> None:
        self.clock.worked += 2
        super().append(lease, drafts, blobs)


@pytest.mark.parametrize("journalled", [True, False])
async def test_a_transition_tells_how_long_its_state_lasted_and_what_it_cost_the_kernel(
    journalled: bool,
) -> None:
    clock, facts = Stopwatch(), Facts()

    def dear_guard(ctx: Context) -> bool:
        clock.worked += 0.5
        return ctx.iteration < 2

    async def hook(run: ToyRun) -> None:
        clock.worked += 8

    async def work(run: ToyRun) -> E:
        run.ctx.iteration += 1
        clock.worked += 4
        return E.DID

    graph = TOY.extend(
        without=[("check", "again")], edges=[Edge(E.AGAIN, (S.CHECK,), S.WORK, bounding(dear_guard))]
    )
    made = machine(graph, before_again=hook, leave_work=hook, enter_work=work, after_did=hook)
    journal = StrollingJournal(clock) if journalled else None
    run = new_run(made, E.AGAIN)
    await Driver(made, observers=(facts,), journal=journal, clock=clock).drive(run)
    told = [(fact.event, fact.dwell, fact.overhead) for fact in facts.of(Transition)]
    written = 2.0 if journalled else 0.0
    worked = ("did", 12.0 + written, 0.0)
    assert told == [("start", 0.0, 0.0), worked, ("again", 16.5, 0.5), worked, ("finish", 8.0, 0.0)]
    assert [fact.seconds for fact in facts.of(RunCompleted)] == [48.5 + 4 * written]


async def test_what_it_cost_is_no_part_of_which_transition_it_was() -> None:
    first, again = rig(E.AGAIN), rig(E.AGAIN)
    for each in (first, again):
        await each.driver.drive(each.run)
    one, other = first.facts.of(Transition)[0], again.facts.of(Transition)[0]
    assert one == dataclasses.replace(one, overhead=1.0)
    assert one == other


async def test_a_run_that_is_printed_says_which_it_is_and_where_and_nothing_of_its_context() -> None:
    a = rig()
    assert repr(a.run) == f"<run {a.run.run_id!r} of toy, in 'init'>"
    await a.driver.drive(a.run)
    assert repr(a.run) == f"<run {a.run.run_id!r} of toy, in 'done'>"
