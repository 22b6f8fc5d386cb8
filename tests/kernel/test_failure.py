"""One failure path: whatever raises, in whatever state, becomes the failure event or reaches the caller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transitions import MachineError

from orchestrator.errors import InvalidEvent, Refused, RunError, UnknownEvent
from orchestrator.kernel.fact import EventFailed, GuardEvaluated, RunCompleted, RunParked, Transition
from orchestrator.kernel.graph import Edge
from tests.kernel.toy import TOY, Context, E, Hook, Rig, S, ToyRun, nothing, raises, rig

BOOM = ValueError("boom")


def raises_once(error: Exception) -> Hook:
    """A `leave_` hook runs again on the way out that failure takes."""
    errors = [error]

    async def hook(run: ToyRun) -> None:
        if errors:
            raise errors.pop()

    return hook


def failures(a: Rig) -> list[tuple[str, str, str, str | None, bool]]:
    return [(f.state, f.event, f.reason, f.hook, f.committed) for f in a.facts.of(EventFailed)]


@pytest.mark.parametrize(
    ("hook", "state", "event", "committed"),
    [
        ("enter_init", "init", "fail", False),
        ("before_start", "init", "start", False),
        ("leave_init", "init", "start", False),
        ("before_did", "work", "did", False),
        ("enter_work", "work", "start", True),
        ("after_start", "work", "start", True),
        ("leave_work", "work", "did", False),
        ("enter_check", "check", "did", True),
        ("after_did", "check", "did", True),
        ("before_finish", "check", "finish", False),
        ("enter_done", "done", "finish", True),
        ("after_finish", "done", "finish", True),
    ],
)
async def test_an_error_fires_the_failure_event_from_the_state_it_happened_in(
    hook: str, state: str, event: str, committed: bool
) -> None:
    faults: Any = {hook: raises_once(BOOM)}
    a = rig(**faults)
    await a.driver.drive(a.run)
    assert a.run.state == S.LOST
    assert a.run.error is BOOM
    assert failures(a) == [(state, event, "callback_error", hook, committed)]
    assert a.run.failure is a.facts.of(EventFailed)[0]
    last = a.facts.of(Transition)[-1]
    assert (last.source, last.event, last.dest) == (state, "fail", "lost")
    (ended,) = a.facts.of(RunCompleted)
    assert (ended.outcome, ended.error) == ("failed", BOOM)


@pytest.mark.parametrize("hook", ["before_fail", "before_event", "leave_work", "leave_state"])
@pytest.mark.parametrize("error", [Refused("stay"), ValueError("hook")], ids=["veto", "error"])
async def test_no_hook_can_keep_a_failed_run_from_failing(hook: str, error: Exception) -> None:
    async def fragile(run: ToyRun) -> None:
        if run.step is not None and run.step.event == E.FAIL:
            raise error

    faults: Any = {"enter_work": raises(BOOM), hook: fragile}
    a = rig(**faults)
    await a.driver.drive(a.run)
    assert a.run.state == S.LOST
    assert a.run.error is BOOM
    assert [fact.hook for fact in a.facts.of(EventFailed)] == ["enter_work", hook]


@pytest.mark.parametrize("hook", ["after_fail", "enter_state"])
async def test_an_error_in_a_terminal_state_without_a_failure_edge_is_told_and_the_run_stays_ended(
    hook: str,
) -> None:
    async def fragile(run: ToyRun) -> None:
        if run.state == S.LOST:
            raise BOOM

    faults: Any = {"enter_work": raises(KeyError("first")), hook: fragile}
    a = rig(**faults)
    await a.driver.drive(a.run)
    assert a.run.ended
    assert a.run.state == S.LOST
    assert isinstance(a.run.error, KeyError)
    assert [fact.hook for fact in a.facts.of(EventFailed)] == ["enter_work", hook]
    assert len(a.facts.of(RunCompleted)) == 1


async def test_an_error_in_a_clean_terminal_state_is_the_runs_error() -> None:
    edges = tuple(replace(e, sources=tuple(s for s in e.sources if s != S.DONE)) for e in TOY.edges)
    graph = replace(TOY, edges=edges, failure=E.FAIL)
    a = rig(graph=graph, after_finish=raises(BOOM))
    await a.driver.drive(a.run)
    assert (a.run.state, a.run.error) == (S.DONE, BOOM)
    assert a.facts.of(RunCompleted)[0].outcome == "failed"


@pytest.mark.parametrize(
    ("choice", "kind", "reason"),
    [(E.START, InvalidEvent, "undeclared_edge"), ("fly", UnknownEvent, "unknown_event")],
)
async def test_a_hook_that_asks_for_an_impossible_event_fails_the_run(
    choice: Any, kind: type[Exception], reason: str
) -> None:
    async def check(run: ToyRun) -> Any:
        return choice

    a = rig(enter_check=check)
    await a.driver.drive(a.run)
    assert a.run.state == S.LOST
    assert isinstance(a.run.error, kind)
    assert failures(a) == [("check", str(choice), reason, "", False)]


async def test_what_a_waiting_states_own_hook_raises_is_no_refused_request() -> None:
    a = rig(E.ASKED, enter_ask=raises(Refused("from within")))
    await a.driver.drive(a.run)
    assert a.run.state == S.LOST
    assert isinstance(a.run.error, Refused)
    assert failures(a) == [("ask", "asked", "refused", "enter_ask", True)]


async def test_a_hook_that_moves_the_cursor_itself_cannot_make_a_run_fail_for_ever() -> None:
    async def meddle(run: ToyRun) -> None:
        run.cursor.state = "check" if run.cursor.state == "work" else "work"

    a = rig(enter_work=raises(BOOM), before_fail=meddle)
    with pytest.raises(MachineError):
        await a.driver.drive(a.run)
    assert not a.run.control.driving


async def test_a_working_state_that_nothing_leaves_fails() -> None:
    a = rig(enter_work=nothing)
    await a.driver.drive(a.run)
    assert a.run.state == S.LOST
    assert isinstance(a.run.error, RunError)
    assert "nothing leaves the working state 'work'" in str(a.run.error)


async def test_a_guard_that_raises_fails_the_run_as_a_guard_error() -> None:
    def broken(ctx: Context) -> bool:
        raise BOOM

    edge = Edge(E.AGAIN, (S.CHECK,), S.WORK, broken)
    a = rig(E.AGAIN, graph=TOY.extend(without=[("check", "again")], edges=[edge], strict=False))
    await a.driver.drive(a.run)
    assert failures(a) == [("check", "again", "guard_error", "when:broken", False)]
    assert [fact.result for fact in a.facts.of(GuardEvaluated)] == ["error"]
    assert a.run.error is BOOM


async def test_a_guard_that_raises_on_the_failure_edge_counts_as_a_refusal() -> None:
    def broken(ctx: Context) -> bool:
        raise KeyError("guard")

    graph = TOY.extend(
        without=[("work", "fail")],
        edges=[Edge(E.FAIL, (S.WORK,), S.DONE, broken), Edge(E.FAIL, (S.WORK,), S.LOST)],
    )
    a = rig(graph=graph, enter_work=raises(BOOM))
    await a.driver.drive(a.run)
    assert (a.run.state, a.run.error) == (S.LOST, BOOM)
    assert [fact.reason for fact in a.facts.of(EventFailed)] == ["callback_error", "guard_error"]


# ---- exceptions reach the caller ----


async def test_without_a_failure_event_an_error_reaches_the_caller_of_drive_and_can_be_tried_again() -> None:
    faults = [BOOM]

    async def work(run: ToyRun) -> E:
        if faults:
            raise faults.pop()
        return E.DID

    a = rig(graph=replace(TOY, failure=None, strict=False, dwell={S.ASK: None}), enter_work=work)
    with pytest.raises(ValueError, match="boom") as caught:
        await a.driver.drive(a.run)
    assert caught.value is BOOM
    assert (a.run.state, a.run.error, a.run.control.driving) == (S.WORK, None, False)
    assert [fact.reason for fact in a.facts.of(RunParked)] == ["interrupted"]
    await a.driver.drive(a.run)
    assert a.run.state == S.DONE


async def test_without_a_failure_event_a_stop_reaches_the_caller() -> None:
    async def work(run: ToyRun) -> E:
        run.stop(BOOM)
        return E.DID

    a = rig(graph=replace(TOY, failure=None, strict=False, dwell={S.ASK: None}), enter_work=work)
    with pytest.raises(ValueError, match="boom"):
        await a.driver.drive(a.run)
    assert a.run.state == S.WORK


async def test_an_error_where_no_failure_edge_is_reaches_the_caller() -> None:
    edges = [edge for edge in TOY.edges if edge.event != E.FAIL]
    graph = replace(TOY, edges=(*edges, Edge(E.FAIL, (S.INIT,), S.LOST)), dwell={}, strict=False)
    a = rig(graph=graph, enter_work=raises(BOOM))
    with pytest.raises(ValueError, match="boom"):
        await a.driver.drive(a.run)
    assert a.run.state == S.WORK


async def test_a_failure_edge_that_a_guard_can_refuse_does_not_count_as_one() -> None:
    edge = Edge(E.FAIL, (S.WORK,), S.LOST, lambda _: False)
    graph = TOY.extend(without=[("work", "fail")], edges=[edge], strict=False)
    a = rig(graph=graph, enter_work=raises(BOOM))
    with pytest.raises(ValueError, match="boom"):
        await a.driver.drive(a.run)
    assert a.run.state == S.WORK
