"""Tokens and cost of the agents: limits before each call, charges after it.

A call of an agent is charged when it ends, also if it failed. What an agent does not report is an estimate: tokens
from the texts of the call, the cost from the price table. A cost that remains unknown stays None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.errors import LimitReached
from orchestrator.kernel.record import BudgetChecked
from orchestrator.llm.usage import Usage, approximate_tokens
from orchestrator.machines.ralph.model import RoleCall
from orchestrator.machines.ralph.ports import AgentRequest
from orchestrator_callbacks.llm_loop.request_usage import Pricing
from orchestrator_callbacks.ralph.deps import RalphRun
from orchestrator_guards import Verdict, cost, cost_unknown, first_refusal, tokens
from orchestrator_guards.evaluation import row_of
from orchestrator_guards.money import in_currency


def check_limits(run: RalphRun) -> None:
    """Evaluate the limits on tokens and cost before a call. Raises LimitReached."""
    verdicts = [*_tokens(run), *_cost(run)]
    if not verdicts:
        return
    run.attach_guards([row_of(one) for one in verdicts])
    run.emit(BudgetChecked(run.graph.name, run.run_id, run.cursor.state, run.ctx.iteration, verdicts))
    refusal = first_refusal(verdicts)
    if refusal is not None:
        raise LimitReached(refusal)


def _tokens(run: RalphRun) -> list[Verdict]:
    used, limit = run.ctx.usage, run.ctx.limits.max_tokens
    return [tokens(used.input_tokens + used.output_tokens, limit)] if limit else []


def _cost(run: RalphRun) -> list[Verdict]:
    ctx, limits = run.ctx, run.ctx.limits
    if not limits.max_cost:
        return []
    found = [cost(ctx.usage.cost_for_limits, limits.max_cost_micros)]
    if limits.on_unknown_cost == "stop":
        unknown = next((one for one in ctx.agent_calls if one.usage.cost_micros is None), None)
        if unknown is not None:
            found.append(cost_unknown(1, model=unknown.model or unknown.agent or unknown.role.value))
    return found


def remaining_cost(run: RalphRun) -> float | None:
    """Return the rest of the limit on cost; None if there is none."""
    ctx = run.ctx
    if not ctx.limits.max_cost:
        return None
    return in_currency(max(0, ctx.limits.max_cost_micros - (ctx.usage.cost_for_limits)))


def last_call(run: RalphRun, request: AgentRequest) -> RoleCall | None:
    """Return the last call of the role of a request for its task."""
    work = request.role, request.task_id
    return next((one for one in reversed(run.ctx.agent_calls) if (one.role, one.task_id) == work), None)


def charge_call(run: RalphRun, request: AgentRequest, answer: object) -> None:
    """Add the usage of a call that ended; `answer` is None if it failed. Durable with the next record."""
    ctx = run.ctx
    if not request.calls:
        request.spend(_estimate(request, answer))
    known = {one.child_run_id for one in ctx.agent_calls if one.child_run_id is not None}
    calls = [_priced(run, one) for one in request.calls if one.child_run_id not in known]
    new = [replace(one, failed=True) for one in calls] if answer is None else calls
    for one in new:
        ctx.usage += one.usage
        if one.agent:
            run.note("coding_agent", _record(request, one))
    ctx.agent_calls = (*ctx.agent_calls, *new)


def _estimate(request: AgentRequest, answer: object) -> Usage:
    return Usage(_tokens_of(request.input), 0 if answer is None else _tokens_of(answer)).as_estimate()


def _tokens_of(given: object) -> int:
    text = given if isinstance(given, str) else json.dumps(given, default=str)
    return approximate_tokens(len(text))


def _priced(run: RalphRun, call: RoleCall) -> RoleCall:
    """Return a call whose cost is an estimate by the price table, if it has none. Raises ConfigError."""
    usage = call.usage
    if usage.cost_micros is not None or not call.model:
        return call
    micros = Pricing(run.deps.price, None, call.model).cost(usage, None)
    if micros is None:
        return call
    return replace(call, usage=replace(usage, cost_micros=micros, estimated_cost_micros=micros))


def _record(request: AgentRequest, call: RoleCall) -> Mapping[str, Any]:
    """Return the record of a call of a coding agent."""
    body: dict[str, Any] = {"call": request.key, "agent": call.agent, "usage": call.usage.short()}
    return body | {name: value for name in ("model", "session") if (value := getattr(call, name))}
