"""Changes of a live machine: several at once, invalid ones, and what records and observers say about them."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import GraphError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import AdmissionRejected, EventFailed, RunParked, TableRejected
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.typed import StateMachine
from tests.kernel.toy import TOY, E, Facts, ToyRun, machine, may_work, moves, new_run, nothing, rig
from tests.kernel.typed_toy import toy


def described(made: Machine) -> Any:
    """Everything that decides in a table, with the identity of its parts."""
    return (
        made.graph.describe(),
        [
            (id(row), row.source, row.dest, list(row.conditions), list(row.before))
            for row in made.get_transitions()
        ],
        {name: (id(state), list(state.on_enter), list(state.on_exit)) for name, state in made.states.items()},
        {name: (id(event), list(event.transitions)) for name, event in made.events.items()},
        (list(made.before_state_change), list(made.enter_state), made.initial),
    )


def break_table(made: Machine) -> None:
    """Leave a cycle without a budget guard, which lint refuses."""
    made.get_transitions("again")[0].conditions.clear()


def mend_table(made: Machine) -> None:
    made.get_transitions("again")[0].conditions.append(made.transition_cls.condition_cls(may_work))


# ---- several changes at once ----


async def test_a_block_of_changes_is_linted_at_its_end_and_takes_effect_at_the_next_trigger() -> None:
    a = rig(E.AGAIN)
    made = a.run.machine
    await a.driver.start(a.run)
    with made.changing() as changed:
        assert changed is made
        break_table(made)
        assert made.graph is TOY, "lint does not see a table that is not complete"
        mend_table(made)
        made.add_transition("note", "check", "done")
    assert made.graph.fingerprint != TOY.fingerprint
    assert made.changes == ("added edge 'note' from 'check' to 'done'",)


def _raises(made: Machine) -> None:
    raise OSError("disk full")


def _adds_a_state(made: Machine) -> None:
    made.add_states({"name": "review", "on_enter": nothing})
    made.add_transition("approve", "check", "review")


def _removes_an_event(made: Machine) -> None:
    made.remove_transition("fail")


def _changes_parts(made: Machine) -> None:
    (row,) = made.get_transitions("did")
    row.dest = "done"
    row.before.append(nothing)
    made.states["work"].on_enter.clear()
    made.states["work"].on_exit.append(nothing)
    made.enter_state = nothing
    made.initial = "work"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (break_table, GraphError),
        (_raises, OSError),
        (_adds_a_state, GraphError),
        (_removes_an_event, GraphError),
        (_changes_parts, GraphError),
    ],
)
async def test_a_block_that_fails_leaves_the_table_as_it_was(
    change: Callable[[Machine], None], error: type[Exception]
) -> None:
    a = rig(E.AGAIN)
    made = a.run.machine
    made.add_transition("note", "check", "done")  # an earlier change stays
    before, graph = described(made), made.graph

    def all_changes() -> None:
        with made.changing():
            made.add_transition("late", "check", "lost")
            change(made)

    with pytest.raises(error):
        all_changes()
    assert described(made) == before
    assert made.graph is graph
    assert a.facts.of(TableRejected) == []
    await a.driver.drive(a.run)
    assert a.facts.path == ["start", "did", "again", "did", "finish"]


async def test_runs_follow_the_old_table_until_the_block_ends() -> None:
    a = rig(E.AGAIN)
    made = a.run.machine
    await a.driver.start(a.run)
    with made.changing():
        made.remove_transition("did")
        made.get_transitions("start")[0].dest = "done"
        await a.driver.fire(a.run, E.START)
        assert a.run.cursor.state == "work"
        await a.driver.fire(a.run, E.DID)
        made.add_transition("did", "work", "check")
        made.get_transitions("start")[0].dest = "work"
    assert a.facts.path == ["start", "did"]
    assert made.changes == ("other order of edges",)


def test_blocks_do_not_nest_and_a_block_may_repair_an_invalid_table() -> None:
    made = machine()
    break_table(made)
    with pytest.raises(GraphError, match="unbounded_cycle"):
        _ = made.graph
    with made.changing():
        mend_table(made)
        with pytest.raises(GraphError, match="make all changes in one block"):
            made.changing().__enter__()
    assert made.graph is TOY


# ---- an invalid table ----


async def test_an_invalid_change_parks_runs_before_their_event_and_repaired_they_end_as_they_would_have() -> (
    None
):
    journal, facts = MemoryJournal(), Facts()
    reached, resume = asyncio.Event(), asyncio.Event()
    arrived = list[str]()

    async def enter_check(run: ToyRun) -> E:
        arrived.append(run.run_id)
        if len(arrived) == 20:
            reached.set()
        await resume.wait()
        return E.FINISH

    made = machine(enter_check=enter_check)
    driver = Driver(made, observers=(facts,), journal=journal)
    runs = [new_run(made, run_id=f"r{number}") for number in range(20)]
    driving = [asyncio.create_task(driver.drive(run)) for run in runs]
    await reached.wait()
    break_table(made)
    resume.set()
    await asyncio.gather(*driving)
    assert [(run.parked, run.ended, run.cursor.pending_event, run.error) for run in runs] == [
        (True, False, E.FINISH, None)
    ] * 20
    assert [fact.reason for fact in facts.of(RunParked)] == ["invalid_table"] * 20
    assert facts.of(EventFailed) == []
    (rejected,) = facts.of(TableRejected)
    assert rejected.graph == "toy"
    assert [problem.split(":")[0] for problem in rejected.problems] == ["unbounded_cycle", "unbounded_cycle"]
    for run in runs:
        last, before = (await journal.load(run.run_id))[-1:-3:-1]
        assert (last.kind, last.body["reason"]) == ("parked", "invalid_table")
        assert last.body["why"] == rejected.problems[0]
        assert before.body["event"] == "did"
    late = new_run(made, run_id="late")
    with pytest.raises(GraphError, match="unbounded_cycle"):
        await driver.drive(late)
    assert [(fact.run_id, fact.reason) for fact in facts.of(AdmissionRejected)] == [("late", "invalid_table")]
    assert late.started_at is None
    for run in runs:  # a run that is resumed too early stays where it is
        await driver.drive(run)
    assert len(facts.of(TableRejected)) == 1
    mend_table(made)
    await asyncio.gather(*(driver.drive(run) for run in runs))
    assert {run.cursor.state for run in runs} == {"done"}
    assert len(arrived) == 20, "no work was repeated"
    assert all(
        [body["event"] for body in moves(journal, run.run_id)] == ["start", "did", "finish"] for run in runs
    )
    assert not any("fingerprint" in body for run in runs for body in moves(journal, run.run_id))


async def test_each_episode_of_an_invalid_table_is_published_once() -> None:
    a = rig()
    made = a.run.machine
    for _ in range(2):
        break_table(made)
        for attempt in range(3):
            made.get_transitions("note")[0].add_callback(
                "before", nothing
            )  # a further change of the same table
            with pytest.raises(GraphError):
                await a.driver.drive(new_run(made, run_id=f"r{attempt}"))
        mend_table(made)
        await a.driver.drive(new_run(made, run_id="r"))
    assert len(a.facts.of(TableRejected)) == 2


async def test_a_single_event_under_an_invalid_table_is_refused_and_the_run_stays_where_it_is() -> None:
    a = rig()
    await a.driver.start(a.run)
    break_table(a.run.machine)
    with pytest.raises(GraphError, match="unbounded_cycle"):
        await a.driver.fire(a.run, E.START)
    assert (a.run.cursor.state, a.run.parked) == ("init", False)
    mend_table(a.run.machine)
    await a.driver.fire(a.run, E.START)
    assert a.run.cursor.state == "work"


async def test_a_run_cannot_be_deposited_under_an_invalid_table() -> None:
    a = rig(journal=MemoryJournal())
    break_table(a.run.machine)
    with pytest.raises(GraphError):
        await a.driver.deposit(a.run, {})
    assert [fact.reason for fact in a.facts.of(AdmissionRejected)] == ["invalid_table"]


# ---- what the records say ----


async def test_the_next_transition_after_a_change_names_the_table_and_the_head_follows() -> None:
    journal = MemoryJournal()
    a = rig(journal=journal)
    made = a.run.machine

    async def enter_work(run: ToyRun) -> E:
        made.add_transition("note", "check", "done")
        return E.DID

    made.states["work"].on_enter[:] = [enter_work]
    changed = made.graph
    await a.driver.drive(a.run)
    start, did, finish = moves(journal)
    assert (await journal.load("r1"))[0].body["fingerprint"] == changed.fingerprint
    assert "fingerprint" not in start
    assert did["fingerprint"] == made.graph.fingerprint != changed.fingerprint
    assert did["table_changes"] == [
        "added edge 'note' from 'check' to 'done'",
        "added callbacks enter_work in on_enter of work",
    ]
    assert "fingerprint" not in finish
    assert (await journal.head("r1")).fingerprint == made.graph.fingerprint


async def test_a_change_that_is_taken_back_before_the_next_step_leaves_no_trace() -> None:
    journal = MemoryJournal()
    a = rig(journal=journal)
    made = a.run.machine

    async def enter_work(run: ToyRun) -> E:
        made.add_transition("note", "check", "done")
        made.remove_transition("note", "check")
        return E.DID

    made.states["work"].on_enter.insert(0, enter_work)
    await a.driver.drive(a.run)
    assert not any("fingerprint" in body for body in moves(journal))


async def test_a_run_that_parks_after_a_change_says_so_too() -> None:
    journal = MemoryJournal()
    a = rig(E.ASKED, journal=journal)
    made = a.run.machine

    async def enter_check(run: ToyRun) -> E:
        return E.ASKED

    async def enter_ask(run: ToyRun) -> None:
        made.add_transition("note", "check", "done")

    made.states["check"].on_enter[:] = [enter_check]
    made.states["ask"].on_enter[:] = [enter_ask]
    await a.driver.drive(a.run)
    parked = (await journal.load("r1"))[-1]
    assert (parked.kind, parked.body["fingerprint"]) == ("parked", made.graph.fingerprint)
    assert (await journal.head("r1")).fingerprint == made.graph.fingerprint


def test_changes_name_every_kind_of_part() -> None:
    made = machine()

    async def enter_review(run: ToyRun) -> str:
        return "approve"

    with made.changing():
        made.add_states({"name": "review", "on_enter": enter_review})
        made.get_transitions("finish")[0].dest = "review"
        made.add_transition("approve", "review", "done", conditions=[may_work])
        made.add_transition("fail", "review", "lost")
        made.add_transition("finish", "ask", None)
    assert made.changes == (
        "removed edge 'finish' from 'check' to 'done'",
        "added state 'review'",
        "added event 'approve'",
        "added edge 'finish' from 'check' to 'review'",
        "added edge 'approve' from 'review' to 'done' if may_work",
        "added edge 'fail' from 'review' to 'lost'",
        "added edge 'finish' from 'ask' to 'ask', internal",
        "added failure event 'fail' of 'review'",
        "added callbacks enter_review in on_enter of review",
    )


# ---- copies ----


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))],  # noqa: S301 - made here
)
def test_a_typed_machine_is_copied_and_pickled_before_and_after_a_run(duplicate: Any, has_run: bool) -> None:
    made: StateMachine[str, int, list[str]] = StateMachine("door")
    made.state("open").state("closed").terminal("closed").transition("open", int, "closed", action=_pushed)
    if has_run:
        made.run("open", [], lambda state, notes: 1)
    assert duplicate(made).run("open", [], lambda state, notes: 1) == ("closed", ["pushed"])


def _pushed(_event: int, notes: list[str]) -> None:
    notes.append("pushed")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("make", [machine, lambda: toy().machine()])
def test_a_machine_cannot_be_copied_and_says_what_to_do(make: Any, duplicate: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be copied or pickled: it has live callbacks.*bind that"):
        duplicate(make())
