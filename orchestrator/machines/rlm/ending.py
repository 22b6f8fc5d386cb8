"""Outcome and reason of a run of code mode or tools mode, from its context and its error.

A run that a StoppingPolicy stopped is `partial`, with the model's last response as output. A run at its limit of
turns is also `partial` if the model answered the final request, and so is a run whose answer is incomplete.
"""

from __future__ import annotations

from typing import Any

from orchestrator.errors import CancelRequested, DeadlineExceeded, LimitReached
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.failing import completed, reason_of
from orchestrator.machines.llm_loop.ending import BUDGET_OF
from orchestrator.machines.rlm.model import ModeContext
from orchestrator_guards import Verdict


def ending(run: Run[ModeContext, Any]) -> Ending:
    """Return outcome and reason of a finished run."""
    ctx, error = run.ctx, run.error
    if error is None:
        return _of_context(ctx)
    if isinstance(error, CancelRequested):
        return Ending(Outcome.CANCELLED, error.reason)
    if isinstance(error, DeadlineExceeded):
        return Ending(Outcome.BUDGET_EXCEEDED, "time")
    verdict = error.verdict if isinstance(error, LimitReached) else None
    if isinstance(verdict, Verdict) and verdict.guard in BUDGET_OF:
        return Ending(Outcome.BUDGET_EXCEEDED, BUDGET_OF[verdict.guard])
    return Ending(Outcome.FAILED, reason_of(run, error))


def _of_context(ctx: ModeContext) -> Ending:
    if ctx.policy_stop:
        return Ending(Outcome.PARTIAL if output_of(ctx) else Outcome.FAILED, "policy_stop")
    if ctx.max_iterations_reached:
        answered = ctx.final_answer is not None and ctx.final_answer.strip()
        return Ending(Outcome.PARTIAL if answered else Outcome.BUDGET_EXCEEDED, "max_iterations")
    if ctx.incomplete == "truncated" or (ctx.incomplete and (ctx.final_answer or "").strip()):
        return Ending(Outcome.PARTIAL, ctx.incomplete)
    return completed(ctx.final_answer, "none")


def output_of(ctx: ModeContext) -> str | None:
    """Return the answer of a run; for a run that a policy stopped, the model's last response."""
    if ctx.final_answer is None and ctx.policy_stop:
        return ctx.last_response
    return ctx.final_answer


def finish_reason(ctx: ModeContext, end: Ending) -> str:
    """Return the first that applies of `policy_stop`, `max_iterations` and `stop`; else the reason of the early end."""
    if end.outcome in (Outcome.COMPLETED, Outcome.PARTIAL) or ctx.policy_stop or ctx.max_iterations_reached:
        return ctx.finish_reason
    return end.reason
