"""Outcome and reason of a run of the loop, from terminal state, error and verdict."""

from __future__ import annotations

from typing import Any, TypeGuard

from orchestrator.errors import (
    CancelRequested,
    DeadlineExceeded,
    LimitReached,
    Refused,
    RejectRequested,
)
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.failing import completed, reason_of
from orchestrator.machines.llm_loop.model import LoopContext, LoopState
from orchestrator_guards import Verdict

BUDGET_OF = {
    "iterations": "max_iterations",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cost": "cost",
    "cost_unknown": "cost_unknown",
    "elapsed": "time",
    "tool_calls": "tool_calls",
    "tool_cap": "tool_calls",
    "tool_errors": "tool_errors",
    "retries": "retries",
}
"""Guard -> reason of `budget_exceeded`."""

STALL_OF = {"no_progress": "stalled", "repeated_success": "repeated_success"}
"""Guard -> reason of `no_progress`."""


def ending(run: Run[LoopContext, Any]) -> Ending:
    """Return outcome and reason of a run in a terminal state."""
    ctx, error = run.ctx, run.error
    if run.state == LoopState.FINALIZE and error is None:
        return _answered(ctx)
    if isinstance(error, RejectRequested):
        return Ending(Outcome.REJECTED, "operator")
    if isinstance(error, CancelRequested):
        return Ending(Outcome.CANCELLED, error.reason)
    if isinstance(error, DeadlineExceeded):
        return Ending(Outcome.BUDGET_EXCEEDED, "time")
    verdict = refusal(run)
    return Ending(Outcome.FAILED, reason_of(run, error)) if verdict is None else _of_verdict(verdict)


def _answered(ctx: LoopContext) -> Ending:
    if ctx.wrapping_up and ctx.verdict is not None:
        end = _of_verdict(ctx.verdict)
        return end if end.outcome is Outcome.FAILED else Ending(Outcome.PARTIAL, end.reason)
    if ctx.completion.incomplete:
        return Ending(Outcome.PARTIAL, ctx.completion.incomplete)
    return completed(ctx.output, "memory_degraded" if ctx.degraded else "none")


def refusal(run: Run[LoopContext, Any]) -> Verdict | None:
    """Return the refusal that ended a run early, if any. Guards on a host's own edges count too.

    A run that failed during wrap-up ended by the limit that started the wrap-up. A hook that fails after the end
    changes nothing.
    """
    ctx, error = run.ctx, run.error
    if isinstance(error, LimitReached | Refused) and _is_limit(error.verdict):
        return error.verdict
    ran_out = run.failure is None or run.failure.state == LoopState.TERMINATE_ERROR
    return ctx.verdict if ctx.wrapping_up or ran_out else None


def _is_limit(verdict: object) -> TypeGuard[Verdict]:
    return isinstance(verdict, Verdict) and verdict.guard in (*BUDGET_OF, *STALL_OF)


def _of_verdict(verdict: Verdict) -> Ending:
    if verdict.guard in STALL_OF:
        return Ending(Outcome.NO_PROGRESS, STALL_OF[verdict.guard])
    if verdict.guard in BUDGET_OF:
        return Ending(Outcome.BUDGET_EXCEEDED, BUDGET_OF[verdict.guard])
    return Ending(Outcome.FAILED, "policy_stop")  # a host's own guard with its own name
