"""Typed machines: sync and async, threads, cancellation, journals."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, RunError, RunExists
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.fact import EventFailed, GuardEvaluated, RunCompleted, RunParked, Transition
from orchestrator.kernel.typed import ContextInUse, StateMachine, UnhandledEventError
from tests.kernel.typed_toy import Again, Facts, Finish, Go, Notes, Place, Toy, gives, names, plain, toy
from tests.tiers import examples

# ---- async ----


def both_kinds(**options: Any) -> Toy:
    """Every kind of callable once sync and once async; the async ones really wait."""

    async def note(word: str, notes: Notes) -> None:
        await asyncio.sleep(0)
        notes.add(word)

    async def small(event: Go, notes: Notes) -> bool:
        await note("guard", notes)
        return event.number < 5

    async def act(event: Go, notes: Notes) -> None:
        await note(f"go {event.number}", notes)

    machine: Toy = StateMachine("mixed", **options)
    machine.state(Place.START, on_exit=functools.partial(note, "exit start"))
    machine.state(Place.WORK, on_enter=lambda notes: note("enter work", notes))
    machine.state(Place.DONE, on_enter=lambda notes: notes.add("enter done")).terminal(Place.DONE)
    machine.transition(Place.START, Go, Place.WORK, guard=small, action=act)
    machine.transition(Place.START, Go, Place.DONE, guard=lambda e, c: e.number < 10)
    return machine.transition(Place.WORK, Finish, Place.DONE, action=lambda e, c: c.add("finish"))


async def waiting(place: Place, _notes: Notes) -> Go | Finish:
    await asyncio.sleep(0)
    return Go(1) if place is Place.START else Finish()


async def test_sync_and_async_callables_stand_beside_each_other_in_arun() -> None:
    state, notes = await both_kinds().arun(Place.START, Notes(), waiting)
    assert state is Place.DONE
    assert notes.lines == ["guard", "exit start", "go 1", "enter work", "finish", "enter done"]


async def test_arun_takes_a_sync_source() -> None:
    state, notes = await toy().arun(Place.START, Notes(), gives(Go(), Finish()))
    assert (state, notes.lines[-1]) == (Place.DONE, "enter done")


async def test_an_async_guard_that_says_no_leaves_the_event_to_the_next_edge_and_is_counted() -> None:
    facts = Facts()
    machine = both_kinds(observers=[facts])
    state, notes = await machine.arun(Place.START, Notes(), gives(Go(7)))
    assert (state, notes.lines) == (Place.DONE, ["guard", "exit start", "enter done"])
    answers = [(fact.guard, fact.result) for fact in facts.of(GuardEvaluated)]
    assert answers == [("small", "deny"), ("<lambda>", "allow")]
    with pytest.raises(UnhandledEventError):
        await machine.arun(Place.START, Notes(), gives(Go(11)))


async def test_what_an_async_guard_raises_reaches_the_caller_as_an_error_of_the_guard() -> None:
    async def fails(_event: Go, _notes: Notes) -> bool:
        await asyncio.sleep(0)
        raise LookupError("guard")

    facts = Facts()
    machine = plain(observers=[facts]).transition(Place.START, Go, Place.WORK, fails)
    machine.transition(Place.WORK, Go, Place.DONE)
    with pytest.raises(LookupError):
        await machine.arun(Place.START, Notes(), gives(Go()))
    assert [failed.reason for failed in facts.of(EventFailed)] == ["guard_error"]


class Asks:
    """An object that is called like an async function."""

    async def __call__(self, place: Place, notes: Notes) -> Go | Finish:
        return await waiting(place, notes)


@pytest.mark.parametrize("source", [waiting, Asks(), functools.partial(waiting)])
def test_a_sync_run_refuses_an_async_source_before_it_does_anything(source: Any) -> None:
    notes = Notes()
    with pytest.raises(ConfigError, match=r"the event source is async; use `await machine\.arun\(\.\.\.\)`"):
        toy().run(Place.START, notes, source)
    assert notes.lines == []


def test_a_source_whose_events_are_used_up_is_told_to_give_none() -> None:
    events = iter([Go()])
    with pytest.raises(RunError, match=r"raised StopIteration; it gives None when there is no event left"):
        toy().run(Place.START, Notes(), lambda place, notes: next(events))
    left = iter([Go()])
    assert toy().run(Place.START, Notes(), lambda place, notes: next(left, None)).reason == "stalled"


@pytest.mark.parametrize("source", [None, [Go()], iter([Go()])])
async def test_what_is_no_source_is_refused_before_anything_is_done(source: Any) -> None:
    notes = Notes()
    with pytest.raises(ConfigError, match=r"the event source is a .*; give a function of \(state, context\)"):
        toy().run(Place.START, notes, source)
    with pytest.raises(ConfigError, match="the event source is a"):
        await toy().arun(Place.START, notes, source)
    assert notes.lines == []


def test_a_sync_run_names_everything_of_the_machine_that_is_async() -> None:
    with pytest.raises(ConfigError) as caught:
        both_kinds().run(Place.START, Notes(), gives(Go(), Finish()))
    said = "on_exit of 'START', the guard of 'Go' in 'START', the action of 'Go' in 'START' are async"
    assert said in str(caught.value)


def test_a_callable_that_turns_out_to_wait_stops_a_sync_run_in_a_sentence() -> None:
    facts = Facts()
    machine = plain(observers=[facts]).transition(
        Place.START, Go, Place.WORK, action=lambda e, c: asyncio.sleep(0)
    )
    machine.transition(Place.WORK, Go, Place.DONE)
    with pytest.raises(ConfigError, match="a callable waited"):
        machine.run(Place.START, Notes(), gives(Go()))
    assert [parked.reason for parked in facts.of(RunParked)] == ["interrupted"]


async def test_a_sync_run_may_be_called_inside_a_running_loop() -> None:
    assert toy().run(Place.START, Notes(), gives(Go(), Finish()))[0] is Place.DONE


async def test_other_tasks_get_their_turn_while_a_source_never_waits() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(tick())
    await toy().arun(Place.WORK, Notes(), gives(*[Again()] * 1_000, Finish()))
    beside.cancel()
    assert ticks >= 10


# ---- cancellation ----


async def test_a_cancelled_arun_raises_cancelled_error_and_lets_the_context_go() -> None:
    reached = asyncio.Event()
    facts, notes = Facts(), Notes()
    machine = toy(observers=[facts])

    async def hangs(place: Place, given: Notes) -> Go:
        if place is Place.WORK:
            reached.set()
            await asyncio.Event().wait()
        return Go()

    task = asyncio.create_task(machine.arun(Place.START, notes, hangs))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert names(facts.of(Transition)) == [("START", "Go", "WORK")]
    assert [parked.state for parked in facts.of(RunParked)] == ["WORK"]
    assert facts.of(RunCompleted) == []
    assert (await machine.arun(Place.WORK, notes, gives(Finish())))[0] is Place.DONE


async def test_a_time_limit_round_arun_works() -> None:
    async def hangs(_place: Place, _notes: Notes) -> Go:
        await asyncio.Event().wait()
        return Go()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await toy().arun(Place.START, Notes(), hangs)


# ---- one context, one run ----


def test_a_context_is_in_use_while_it_is_run() -> None:
    machine, notes = toy(), Notes()

    def nested(_place: Place, given: Notes) -> Finish:
        machine.run(Place.START, given, gives(Go(), Finish()))
        return Finish()

    with pytest.raises(ContextInUse, match="give each run its own context"):
        machine.run(Place.WORK, notes, nested)
    assert machine.run(Place.START, notes, gives(Go(), Finish()))[0] is Place.DONE


def test_of_two_threads_that_run_one_context_one_is_refused() -> None:
    machine, notes = toy(), Notes()
    inside, go_on = threading.Event(), threading.Event()

    def holds(place: Place, _notes: Notes) -> Go | Finish:
        inside.set()
        assert go_on.wait(60)
        return Go() if place is Place.START else Finish()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(machine.run, Place.START, notes, holds)
        assert inside.wait(60)
        with pytest.raises(ContextInUse):
            machine.run(Place.START, notes, gives(Go(), Finish()))
        go_on.set()
        assert first.result()[0] is Place.DONE


@dataclass(frozen=True)
class Frozen:
    items: Any


@pytest.mark.parametrize(
    "context", [1, "", b"", True, 0.5, (), (1, ("a", None)), frozenset((1,)), Place.START, Frozen((1,))]
)
async def test_runs_may_share_a_context_that_nothing_can_change(context: Any) -> None:
    machine: StateMachine[str, int, Any] = StateMachine("door")
    machine.state("open").state("closed").terminal("closed").transition("open", int, "closed")
    together = asyncio.Barrier(3)

    async def push(_state: str, _context: Any) -> int:
        await together.wait()
        return 1

    ended = await asyncio.gather(*(machine.arun("open", context, push) for _ in range(3)))
    assert ended == [("closed", context)] * 3


@pytest.mark.parametrize("context", [[], {}, (1, []), Frozen([]), type("Count", (int,), {})(1), bytearray()])
async def test_runs_do_not_share_a_context_with_a_part_that_can_change(context: Any) -> None:
    if isinstance(context, int):
        context.total = 0  # type: ignore[attr-defined]
    machine: StateMachine[str, int, Any] = StateMachine("door")
    machine.state("open").state("closed").terminal("closed").transition("open", int, "closed")

    async def push(_state: str, given: Any) -> int:
        with pytest.raises(ContextInUse):
            await machine.arun("open", given, lambda state, _: 1)
        return 1

    assert (await machine.arun("open", context, push))[0] == "closed"


def test_one_machine_runs_in_many_threads_with_a_context_each() -> None:
    machine = toy()
    start = threading.Barrier(8)

    def work(number: int) -> list[str]:
        start.wait(60)
        last: list[str] = []
        for _ in range(20):
            events = [Again(number) for _ in range(50)]
            _, notes = machine.run(Place.START, Notes(), gives(Go(number), *events, Finish()))
            last = notes.lines
        return last

    with ThreadPoolExecutor(8) as pool:
        for number, lines in enumerate(pool.map(work, range(8))):
            assert lines.count(f"again {number}") == 50
            assert len(lines) == 1 + 52 * 3


async def test_one_machine_runs_in_many_tasks_with_a_context_each() -> None:
    machine = both_kinds()
    done = await asyncio.gather(*[machine.arun(Place.START, Notes(), waiting) for _ in range(50)])
    assert all(notes.lines[-1] == "enter done" and len(notes.lines) == 6 for _, notes in done)


def test_two_runs_without_a_context_are_no_conflict() -> None:
    machine: StateMachine[str, Go, None] = StateMachine("m")
    machine.state("a").state("b").terminal("b").transition("a", Go, "b")

    def source(state: str, _none: None) -> Go:
        machine.run("b", None, lambda s, c: None)
        return Go()

    assert machine.run("a", None, source)[0] == "b"


# ---- journals ----


async def test_a_run_is_journalled_with_each_transition_and_its_end() -> None:
    journal = MemoryJournal()
    machine = toy(journal=journal, codec=ContextCodec(Notes))
    await machine.arun(Place.START, Notes(), gives(Go(), Finish("x")), run_id="r1")
    records = await journal.load("r1")
    assert [record.kind for record in records] == [
        "created",
        "transition",
        "context",
        "transition",
        "context",
        "ended",
    ]
    assert records[0].body["context"]["lines"] == []
    assert [
        (r.body["source"], r.body["event"], r.body["dest"]) for r in records if r.kind == "transition"
    ] == [
        ("START", "Go", "WORK"),
        ("WORK", "Finish", "DONE"),
    ]
    assert (records[-1].body["outcome"], (await journal.head("r1")).status) == ("completed", "ended")
    with pytest.raises(RunExists):
        await machine.arun(Place.START, Notes(), gives(Go(), Finish()), run_id="r1")


async def test_a_run_that_failed_is_ended_in_the_journal_too() -> None:
    journal = MemoryJournal()
    with pytest.raises(UnhandledEventError):
        await toy(journal=journal).arun(Place.START, Notes(), gives(Finish()), run_id="r1")
    last = (await journal.load("r1"))[-1]
    assert (last.kind, last.body["outcome"], last.body["reason"]) == ("ended", "failed", "invalid_transition")


@pytest.mark.parametrize("inside", [False, True])
def test_a_sync_run_keeps_a_journal_that_needs_a_loop(inside: bool, tmp_path: Path) -> None:
    word: ContextVar[str] = ContextVar("word", default="none")
    journal = SqliteJournal(tmp_path / "journal.db")
    notes = Notes()
    machine = plain(journal=journal).transition(
        Place.START, Go, Place.DONE, action=lambda e, c: c.add(word.get())
    )
    machine.transition(Place.START, Finish, Place.WORK)

    def work() -> None:
        word.set("mine")
        assert machine.run(Place.START, notes, gives(Go()), run_id="r1")[0] is Place.DONE

    async def outer() -> None:
        work()

    if inside:
        asyncio.run(outer())
    else:
        work()
    assert notes.lines == ["mine"]

    async def stored() -> list[str]:
        found = SqliteJournal(tmp_path / "journal.db")
        try:
            return [record.kind for record in await found.load("r1")]
        finally:
            await found.close()

    assert asyncio.run(stored()) == ["created", "transition", "ended"]
    asyncio.run(journal.close())


# ---- against a plain model ----

EVENTS = st.lists(st.sampled_from([Go(), Again(), Finish()]), max_size=30)


def model(events: list[Any], bound: int) -> tuple[Place, int, bool]:
    """What a run is to do: where it ends, after how many transitions, and whether it raised."""
    table = {(Place.START, Go): Place.WORK, (Place.WORK, Again): Place.WORK, (Place.WORK, Finish): Place.DONE}
    place, moves, skipped = Place.START, 0, 0
    for event in events:
        if place is Place.DONE:
            break
        dest = table.get((place, type(event)))
        if dest is None:
            skipped += 1
            if skipped > bound:
                return place, moves, True
        else:
            place, moves, skipped = dest, moves + 1, 0
    return place, moves, False


@settings(max_examples=examples(200), deadline=None)
@given(EVENTS, st.integers(0, 4), st.booleans())
def test_any_sequence_of_events_does_what_the_table_says(
    events: list[Any], bound: int, through: bool
) -> None:
    facts = Facts()
    machine = toy(max_unhandled=bound, observers=[facts])

    def run() -> Any:
        if through:
            return asyncio.run(machine.arun(Place.START, Notes(), gives(*events)))
        return machine.run(Place.START, Notes(), gives(*events))

    place, moves, raised = model(events, bound)
    if raised:
        with pytest.raises(UnhandledEventError):
            run()
    else:
        done = run()
        assert (done[0], done.transitions) == (place, moves)
        assert done.reason == ("none" if place is Place.DONE else "stalled")
    assert len(facts.of(Transition)) == moves
    assert len(facts.of(RunCompleted)) == 1


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    toy(journal=MemoryJournal()).run(Place.START, Notes(), gives(Go(), Finish()))
    assert set(threading.enumerate()) <= before, "one of an earlier test may end meanwhile"
