"""After a turn: errors, successes, fingerprints, what follows from a stall, and whether the run goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.llm.message import Message, Usage
from orchestrator.machines.llm_loop.limits import OFF, Limits
from orchestrator.machines.llm_loop.model import Completion, ContextUse
from orchestrator.providers.scripted import call
from orchestrator.tools.result import ToolOutcome, ToolResult
from orchestrator_callbacks.llm_loop import turn_accounting
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_guards import Verdict
from tests.callbacks.stand import USER, answered, loop_run

STUCK = replace(OFF, max_restarts=1, restart_stall_threshold=2, max_no_progress=3)
COST = Verdict(ok=False, guard="cost", observed=2, limit=1)


def turn(run: LoopRun, *texts: str, tool: str = "look", outcome: ToolOutcome = "ok") -> LoopRun:
    """One more turn: a call for each text, with that result."""
    calls = [call(tool, n=n) for n, _ in enumerate(texts)]
    answered(run, *calls)
    run.ctx.results = [
        ToolResult(one, n, text, outcome) for n, (one, text) in enumerate(zip(calls, texts, strict=True))
    ]
    turn_accounting.account(run)
    return run


def test_errors_are_counted_in_a_row_and_cleared_by_a_success() -> None:
    run = loop_run()
    turn(run, "x", outcome="error")
    turn(run, "x", outcome="timeout", tool="LOOK")
    assert run.ctx.progress.error_streaks == {"look": 2}
    turn(run, "fine")
    assert run.ctx.progress.error_streaks == {}


def test_a_result_that_says_it_failed_is_an_error() -> None:
    assert turn(loop_run(), '{"success": false}').ctx.progress.error_streaks == {"look": 1}


def test_a_refused_call_is_neither_an_error_nor_a_success_of_its_tool() -> None:
    run = turn(loop_run(), "not run", outcome="denied")
    assert run.ctx.progress.error_streaks == {}
    assert run.ctx.progress.successes == {}


@pytest.mark.parametrize(("second", "times"), [("same", 2), ("other", 1)])
def test_equal_successes_are_counted_by_call_and_result(second: str, times: int) -> None:
    run = turn(loop_run(), "same")
    turn(run, second)
    assert run.ctx.progress.successes["look"].times == times


def test_an_error_between_two_equal_successes_begins_the_count_anew() -> None:
    run = turn(loop_run(), "same")
    turn(run, "x", outcome="error")
    turn(run, "same")
    assert run.ctx.progress.successes["look"].times == 1


def test_without_a_progress_guard_no_turn_is_kept() -> None:
    assert not turn(loop_run(), "same").ctx.turns


def test_repeats_are_warned_of_then_blocked_then_refused() -> None:
    run = loop_run(limits=replace(OFF, max_no_progress=3))
    states = []
    for _ in range(4):
        turn(run, "same")
        states.append((bool(run.ctx.progress.warning), run.ctx.progress.expected is not None))
    assert states == [(False, False), (True, False), (True, True), (False, False)]


def test_a_blocked_turn_counts_as_the_repeat_it_was() -> None:
    run = loop_run(limits=replace(OFF, max_no_progress=3))
    for _ in range(3):
        turn(run, "same")
    turn(run, "not run", outcome="denied")
    assert len(set(run.ctx.turns)) == 1
    assert len(run.ctx.turns) == 4


def test_something_else_after_a_warning_makes_it_good() -> None:
    run = loop_run(limits=replace(OFF, max_no_progress=3))
    for _ in range(3):
        turn(run, "same")
    turn(run, "other")
    assert (run.ctx.progress.expected, run.ctx.progress.warning) == (None, "")


@pytest.mark.parametrize(("turns", "stuck"), [(2, False), (3, True), (4, True)])
def test_two_repeats_are_stuck_at_a_threshold_of_two(turns: int, stuck: bool) -> None:
    run = loop_run(limits=STUCK)
    for _ in range(turns):
        turn(run, "same")
    assert turn_accounting.is_stuck(run.ctx) is stuck


@pytest.mark.parametrize(
    "limits", [replace(STUCK, max_restarts=0), replace(STUCK, restart_stall_threshold=0)]
)
def test_without_restarts_nothing_is_stuck(limits: Limits) -> None:
    run = loop_run(limits=limits)
    for _ in range(4):
        turn(run, "same")
    assert not turn_accounting.is_stuck(run.ctx)


def test_a_run_starts_over_only_where_nothing_but_the_stall_refuses() -> None:
    run = loop_run(limits=STUCK)
    for _ in range(3):
        turn(run, "same")
    stalled = Verdict(ok=False, guard="no_progress", observed=3, limit=3)
    assert turn_accounting.grant_restart(run, [])
    assert turn_accounting.grant_restart(run, [stalled])
    assert not turn_accounting.grant_restart(run, [stalled, COST])
    run.ctx.wrapping_up = True
    assert not turn_accounting.grant_restart(run, [])
    run.ctx.wrapping_up, run.ctx.spent.restarts = False, 1
    assert not turn_accounting.grant_restart(run, [])


def test_starting_over_keeps_what_was_spent_and_nothing_that_was_said() -> None:
    run = loop_run(limits=STUCK)
    for _ in range(3):
        turn(run, "same")
    ctx = run.ctx
    ctx.spent.usage, ctx.completion, ctx.context = Usage(10), Completion(2, 1), ContextUse(80, 100, 2)
    shown = ctx.messages
    turn_accounting.start_over(ctx)
    assert ctx.messages == [USER]
    assert len(shown) == 4, "requests hold views of the old list"
    assert (ctx.iteration, ctx.spent.usage, ctx.spent.restarts) == (3, Usage(10), 1)
    assert (ctx.completion, ctx.response, ctx.results) == (Completion(), None, [])
    assert not ctx.turns
    assert ctx.context == ContextUse(0, 100, 0, 3)


@pytest.mark.parametrize(
    ("verdict", "turns", "iteration", "goes_on", "wraps_up"),
    [
        (None, 0, 1, True, False),
        (COST, 0, 1, False, False),
        (COST, 1, 1, True, True),
        (COST, 1, 5, False, False),
    ],
)
def test_a_run_goes_on_or_wraps_up_or_ends(
    verdict: Verdict | None, turns: int, iteration: int, goes_on: bool, wraps_up: bool
) -> None:
    run = loop_run(limits=replace(OFF, wrap_up_turns=turns, max_iterations=5))
    run.ctx.verdict, run.ctx.iteration = verdict, iteration
    assert turn_accounting.grant_turn(run) is goes_on
    assert run.ctx.wrapping_up is wraps_up
    if wraps_up:
        assert not turn_accounting.grant_turn(run), "there is one such turn"


@pytest.mark.parametrize(
    ("began", "entered", "seconds"), [(0.0, 5.0, 5.0), (2.0, 5.0, 3.0), (None, 5.0, 0.0)]
)
def test_time_is_counted_from_the_start_even_from_second_zero(
    began: float | None, entered: float, seconds: float
) -> None:
    run = loop_run()
    run.cursor.started_at, run.cursor.entered_at = began, entered
    turn_accounting.note_time(run)
    assert run.ctx.spent.seconds == seconds


def test_unfinished_calls_are_left_out() -> None:
    run = answered(loop_run(Message("assistant", "hm")), call("look", n=1))
    run.ctx.results = [None]
    turn_accounting.account(run)
    assert not run.ctx.progress.successes
