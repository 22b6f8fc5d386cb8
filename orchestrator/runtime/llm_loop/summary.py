"""Totals of a run of the loop, for `run.completed` and the budget metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.kernel.run import Run
from orchestrator.machines.llm_loop.model import LoopContext


def summary(run: Run[LoopContext, Any]) -> dict[str, Any]:
    """Return tokens, cost, counts, and the used share of each enabled limit."""
    spent = run.ctx.spent
    used = spent.total
    return {
        "tokens_in": used.input_tokens,
        "tokens_out": used.output_tokens,
        "cost": used.cost,
        "tool_calls": spent.tool_calls,
        "retries": spent.retries,
        "restarts": spent.restarts,
        "compactions": spent.compactions,
        "budget_used": {name: round(used / limit, 4) for name, used, limit in _budgets(run.ctx) if limit},
    }


def _budgets(ctx: LoopContext) -> Iterator[tuple[str, float, float]]:
    spent, limits = ctx.spent, ctx.limits
    total = spent.total
    yield "iterations", ctx.iteration, limits.max_iterations
    yield "input_tokens", total.input_tokens, limits.max_input_tokens
    yield "output_tokens", total.output_tokens, limits.max_output_tokens
    yield "cost", total.cost_for_limits, limits.max_cost_micros
    yield "time", spent.seconds, limits.max_seconds
    yield "tool_calls", spent.tool_calls, limits.max_tool_calls
    yield "retries", spent.retries, limits.max_retries
