"""The table of the loop, what was decided about it (P1 to P14), and the table of endings."""

from __future__ import annotations

import io
from dataclasses import fields
from typing import Any

import pytest

from orchestrator.errors import (
    CancelRequested,
    DeadlineExceeded,
    JournalError,
    LimitReached,
    LLMError,
    Refused,
    StateTimeout,
    UnknownEvent,
)
from orchestrator.kernel.fact import FAILURES, EventFailed
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import REASONS, Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Message
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.graph import (
    BUDGET_OF,
    LLM_LOOP,
    STALL_OF,
    ending,
    may_continue,
    may_restart,
)
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext, LoopEvent, LoopState
from orchestrator.providers.scripted import call
from orchestrator.telemetry.log import TransitionLog
from orchestrator_guards import Verdict
from tests.runtime.stage import Notebook, agent, path

MACHINE = Machine(LLM_LOOP, Hooks({}))


def test_an_event_that_no_row_has_is_unknown() -> None:
    with pytest.raises(UnknownEvent, match="unknown event 'clarify'"):
        MACHINE.steps("init", "clarify")


# ---- what was decided ----


async def test_p01_results_travel_on_the_typed_context() -> None:
    names = {item.name for item in fields(LoopContext)}
    assert {"response", "results", "output", "verdict"} <= names


def test_p02_guards_stand_on_the_edges_back_to_the_model() -> None:
    guarded = {(edge.event, edge.when) for edge in LLM_LOOP.edges if edge.when is not None}
    assert guarded == {
        (LoopEvent.BUDGET_OK, may_continue),
        (LoopEvent.COMPLETION_RETRY, may_continue),
        (LoopEvent.RESTART_LOOP, may_restart),
    }


async def test_p02_a_hosts_before_budget_ok_may_still_veto() -> None:
    class Policy:
        async def before_budget_ok(self, run: Run[Any, Any]) -> None:
            raise Refused("not on a Friday")

    result = await agent([call("x"), "done"], hooks=[Policy()]).run("go")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "policy_stop")
    assert "not on a Friday" in str(result.error)


def test_p03_failure_leads_from_every_state_but_the_last() -> None:
    assert all(
        LLM_LOOP.failure_event(state) is LoopEvent.FAILURE
        for state in LoopState
        if state != "terminate_error"
    )
    assert LLM_LOOP.failure_event(LoopState.TERMINATE_ERROR) is None


async def test_p05_the_last_iteration_ends_in_the_state_that_asks_the_guards() -> None:
    result = await agent([call("x")], limits=Limits(max_iterations=1)).run("go")
    assert (result.transitions[-1].source, result.transitions[-1].event) == (
        "update_budgets",
        "budget_exceeded",
    )


async def test_p05_the_entry_check_is_a_net_under_them() -> None:
    class Late:
        async def after_budget_ok(self, run: Run[LoopContext, Any]) -> None:
            asked.append(run.ctx.iteration)

        async def before_budget_ok(self, run: Run[LoopContext, Any]) -> None:
            run.ctx.iteration = 99  # after the guards have been asked

    asked: list[int] = []
    result = await agent([call("x")], hooks=[Late()], limits=Limits(max_iterations=50)).run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "max_iterations")
    assert isinstance(result.error, LimitReached)
    assert (path(result.transitions)[-1], asked) == ("failure", [])


def test_p06_limits_are_numbers() -> None:
    assert not [item.name for item in fields(Limits) if "bool" in str(item.type)]


def test_p07_the_figures_of_the_seed_are_the_defaults_of_the_retry_policy() -> None:
    policy = RetryPolicy()
    assert (policy.attempts, policy.base, policy.max_delay, policy.deadline, policy.jitter) == (
        4,
        0.1,
        10,
        300,
        0.05,
    )


async def test_p08_there_is_one_line_for_each_transition_at_level_info() -> None:
    stream = io.StringIO()
    result = await agent([call("x"), "done"], observers=[TransitionLog(stream, level="info")]).run("go")
    assert stream.getvalue().count('"msg":"fsm.transition"') == len(result.transitions)


async def test_p10_restart_loop_is_an_event_of_ours_and_off() -> None:
    assert LoopEvent.RESTART_LOOP in LLM_LOOP.events
    assert Limits().max_restarts == 0


async def test_p12_memory_is_stored_before_success_is_declared() -> None:
    memory = Notebook()

    class Last:
        async def after_completion_success(self, run: Run[Any, Any]) -> None:
            assert memory.stored

    assert (await agent(["done"], memory=memory, hooks=[Last()]).run("go")).outcome is Outcome.COMPLETED


async def test_p13_results_are_appended_before_budgets_are_checked() -> None:
    seen = []

    class Order:
        async def after_tools_executed(self, run: Run[LoopContext, Any]) -> None:
            seen.append(run.ctx.messages[-1].role)

    await agent([call("x"), "done"], hooks=[Order()]).run("go")
    assert seen == ["tool"]


# ---- endings ----


def ended(
    error: Exception | None = None,
    *,
    state: str = "terminate_error",
    reason: str = "callback_error",
    failed_in: str = "await_llm",
    verdict: Verdict | None = None,
    **members: Any,
) -> Ending:
    ctx = LoopContext([Message("user", "go")], Limits(), 1, verdict=verdict, **members)
    run: Run[LoopContext, Any] = Run(MACHINE, "r", ctx, None)
    run.cursor.state, run.cursor.error = state, error
    if error is not None:
        run.cursor.failure = EventFailed("llm_loop", "r", failed_in, "failure", reason, 0.0, 0)
    return ending(run)


def refused(guard: str) -> Verdict:
    return Verdict(ok=False, guard=guard, observed=1, limit=1)


def test_a_run_in_finalize_is_complete_degraded_or_partial() -> None:
    assert ended(state="finalize") == Ending(Outcome.COMPLETED, "none")
    assert ended(state="finalize", degraded=True) == Ending(Outcome.COMPLETED, "memory_degraded")
    partial = ended(state="finalize", wrapping_up=True, verdict=refused("cost"))
    assert partial == Ending(Outcome.PARTIAL, "cost")


@pytest.mark.parametrize(("guard", "reason"), BUDGET_OF.items())
def test_a_used_up_budget_has_its_own_reason(guard: str, reason: str) -> None:
    assert ended(verdict=refused(guard)) == Ending(Outcome.BUDGET_EXCEEDED, reason)
    assert ended(LimitReached(refused(guard))) == Ending(Outcome.BUDGET_EXCEEDED, reason)


@pytest.mark.parametrize(("guard", "reason"), STALL_OF.items())
def test_a_stall_is_no_progress(guard: str, reason: str) -> None:
    assert ended(verdict=refused(guard)) == Ending(Outcome.NO_PROGRESS, reason)


def test_every_reason_is_in_the_closed_table() -> None:
    assert set(BUDGET_OF.values()) | {"tokens"} == REASONS[Outcome.BUDGET_EXCEEDED], (
        "tokens is the pipeline's"
    )
    assert set(STALL_OF.values()) == REASONS[Outcome.NO_PROGRESS]


@pytest.mark.parametrize("by", ["caller", "shutdown"])
def test_a_cancelled_run_says_by_whom_whatever_else_was_the_matter(by: str) -> None:
    assert ended(CancelRequested(by), verdict=refused("cost")) == Ending(Outcome.CANCELLED, by)


def test_a_deadline_is_a_budget_of_time() -> None:
    assert ended(DeadlineExceeded(3)) == Ending(Outcome.BUDGET_EXCEEDED, "time")


@pytest.mark.parametrize(
    ("error", "fault", "reason", "expected"),
    [
        (LLMError("x"), None, "callback_error", "llm_error"),
        (ValueError(), "llm_error", "callback_error", "llm_error"),
        (ValueError(), "memory_error", "callback_error", "memory_error"),
        (ValueError(), "completion_invalid", "callback_error", "completion_invalid"),
        (StateTimeout("init", 1), "llm_error", "timeout", "state_timeout"),
        (JournalError("x"), "llm_error", "journal_error", "journal_error"),
        (ValueError(), None, "callback_error", "callback_error"),
        (ValueError(), None, "guard_error", "guard_error"),
        (ValueError(), None, "undeclared_edge", "invalid_transition"),
        (
            UnknownEvent(graph="g", state="s", event="e", known=()),
            None,
            "unknown_event",
            "invalid_transition",
        ),
        (Refused("no"), None, "refused", "policy_stop"),
        (Refused("no", verdict=False), None, "refused", "policy_stop"),
        (Refused("no", verdict=refused("host's own")), None, "refused", "policy_stop"),
        (ValueError(), None, "timeout", "internal"),
    ],
)
def test_a_failed_run_has_the_reason_of_its_first_error(
    error: Exception, fault: str | None, reason: str, expected: str
) -> None:
    assert reason in FAILURES
    assert ended(error, reason=reason, fault=fault) == Ending(Outcome.FAILED, expected)
    assert expected in REASONS[Outcome.FAILED]


def test_a_run_that_failed_while_a_limit_stood_against_it_failed_unless_it_was_wrapping_up() -> None:
    verdict = refused("tool_cap")
    assert ended(ValueError(), verdict=verdict) == Ending(Outcome.FAILED, "callback_error")
    assert ended(ValueError(), verdict=verdict, wrapping_up=True) == Ending(
        Outcome.BUDGET_EXCEEDED, "tool_calls"
    )


def test_a_hook_that_fails_after_the_end_changes_nothing() -> None:
    late = ended(ValueError(), failed_in="terminate_error", verdict=refused("cost"))
    assert late == Ending(Outcome.BUDGET_EXCEEDED, "cost")


def test_a_terminated_run_that_nobody_can_explain_is_an_internal_failure() -> None:
    assert ended() == Ending(Outcome.FAILED, "internal")
