"""One model request in a run of a mode: retried by the policy, each attempt published, its cost known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from orchestrator.errors import DeadlineExceeded, LLMError, StateTimeout
from orchestrator.kernel.record import LLMCall, OperationAttempt
from orchestrator.llm.attempt import attempt_row
from orchestrator.llm.message import NO_USAGE, Request, Response, Route, Usage, input_bound, output_limit
from orchestrator.llm.port import LLM
from orchestrator.llm.retry import RetryAttempt
from orchestrator.llm.usage import approximate_tokens
from orchestrator_callbacks.llm_loop.call_scope import complete_once
from orchestrator_callbacks.llm_loop.request_usage import (
    Pricing,
    interrupted,
    lost_output,
    note_unpriced,
    unreported,
    with_cost,
)
from orchestrator_callbacks.llm_loop.request_usage import estimated as as_estimate
from orchestrator_callbacks.llm_loop.turn import malformed, was_sent
from orchestrator_callbacks.rlm.budget_account import RequestUsage, estimated
from orchestrator_callbacks.rlm.deps import ModeRun, allowed
from orchestrator_guards import Verdict, cost_unknown
from orchestrator_guards.evaluation import row_of


class OwnModel:
    """The model of a run, paid from the run's budget. Raises LimitReached if that is used up."""

    def __init__(self, run: ModeRun) -> None:
        self._run = run

    async def complete(self, request: Request) -> Response:
        """Answer one request."""
        run, request = self._run, replace(request, route=Route())
        await allowed(run, run.deps.model)
        async with paid(run, own_pricing(run), request) as bill:
            response = await request_answer(run, run.deps.llm, own_pricing(run), request)
            bill.usage = response.usage or NO_USAGE  # never None here
        check_cost(run, response)
        return response


def own_pricing(run: ModeRun) -> Pricing:
    """Return the cost information about a run's own model."""
    return Pricing(run.deps.price, run.deps.llm, run.deps.model)


def paid(run: ModeRun, pricing: Pricing, request: Request) -> AbstractAsyncContextManager[RequestUsage]:
    """Reserve the maximum cost of a request in the run's budget until its usage is known.

    A lost answer is charged as an estimate: see `lost_output`. An interrupted one has a range: see `interrupted`.

    Raises LimitReached if a budget is used up, or if a limit bounds the cost and no price can be known.
    """
    if not pricing.known:
        _refuse(run, cost_unknown(1, model=pricing.model))
    need = replace(estimated(request.messages), cost_micros=pricing.most(request))
    output = lost_output(request.params, run.ctx.largest_answer, pricing)
    usage = Usage(input_bound(request.messages, request.tools), output)
    charge = as_estimate(usage, pricing, run.ctx.largest_cost)

    def stopped() -> Usage:
        if run.interruption is None or request.route is None:
            return charge
        return _range(run, pricing, request, request.route.in_flight(run.deps.clock.monotonic()))

    return run.deps.budget.request(need, charge, stopped)


def _range(
    run: ModeRun, pricing: Pricing, request: Request, seconds: float | None, partial: str = ""
) -> Usage:
    """Return the range of a request that was cancelled or timed out after so many seconds."""
    return interrupted(
        Usage(input_bound(request.messages, request.tools), approximate_tokens(len(partial))),
        seconds,
        pricing,
        limit=output_limit(request.params) or pricing.most_output,
        rate=run.ctx.fastest_rate,
        largest=run.ctx.largest_cost,
    )


async def request_answer(run: ModeRun, llm: LLM, pricing: Pricing, request: Request) -> Response:
    """Call a model and publish each attempt. Raises the last error.

    The usage of the answer includes its cost; an estimate takes the place of one that the server did not report.
    """
    deps, route = run.deps, request.route or Route()
    tries: list[RetryAttempt] = []

    def tried(one: RetryAttempt) -> None:
        tries.append(one)
        if one.outcome != "ok":
            if one.kind == "timeout" and was_sent(one.error):
                elapsed, partial = route.in_flight(deps.clock.monotonic()), getattr(one.error, "partial", "")
                deps.budget.add(_range(run, pricing, request, elapsed, partial))
            _failed(run, one, route)
        route.since = None

    def complete(request: Request) -> Awaitable[Response]:
        route.since, route.waiting = deps.clock.monotonic(), False
        return complete_once(run, llm, pricing.model, request)

    began = deps.clock.monotonic()
    try:
        response: Any = await deps.retry.call(
            complete,
            replace(request, route=route),
            on_attempt=tried,
            clock=deps.clock,
        )
    except asyncio.CancelledError:
        cut = isinstance(run.interruption, StateTimeout | DeadlineExceeded)
        earlier = sum(one.seconds + one.delay for one in tries)
        seconds = max(0.0, deps.clock.monotonic() - began - earlier)
        _publish_call(run, "timeout" if cut else "cancelled", seconds, route)
        raise
    except Exception:
        run.ctx.fault = "llm_error"
        raise
    seconds = tries[-1].seconds if tries else deps.clock.monotonic() - began
    if (fault := malformed(response)) is not None:
        run.ctx.fault = "llm_error"
        _publish_call(run, "malformed", seconds, route)
        raise LLMError(f"the model gave {fault}", kind="malformed")
    if response.usage is None:
        sent = input_bound(request.messages, request.tools)
        usage = unreported(response, sent, pricing, run.ctx.largest_cost, run.deps.budget.all_limits)
    else:
        usage = with_cost(pricing, response.usage, response.model)
        if (active := seconds - (route.queued or 0.0)) > 0:
            rate = round(usage.output_tokens / active, 3)
            run.ctx.fastest_rate = max(run.ctx.fastest_rate, rate)
    answer: Response = replace(response.encodable(), usage=usage)
    _publish_call(run, "ok", seconds, route, answer, usage=None if response.usage is None else usage)
    ctx = run.ctx
    ctx.fault = None
    ctx.largest_answer = max(ctx.largest_answer, usage.output_tokens)
    ctx.largest_cost = max(ctx.largest_cost, usage.cost_micros or 0)
    return answer


def check_cost(run: ModeRun, response: Response) -> None:
    """Check the cost of an answer. Raises LimitReached if it is unknown and a limit bounds the cost."""
    if response.usage is None or response.usage.cost_micros is None:
        whole: Any = run  # note_unpriced uses nothing that only a run of the loop has
        note_unpriced(whole, response)
        _refuse(run, cost_unknown(1, model=(response.model or run.deps.model)[:_LONGEST]))


def _refuse(run: ModeRun, verdict: Verdict) -> None:
    """Record that a cost is unknown, and refuse further requests if a limit bounds the cost."""
    run.attach_guards((row_of(verdict),))
    run.deps.budget.refuse(verdict)


_LONGEST = 120
"""Maximum characters of a name from outside."""


def _failed(run: ModeRun, one: RetryAttempt, route: Route) -> None:
    _publish_call(run, one.kind or "other", one.seconds, route, wait=one.delay, error=one.error)
    outcome = "retry" if one.outcome == "retry" else "exhausted"
    run.emit(OperationAttempt(run.graph.name, run.run_id, "llm", one.number, outcome, one.kind, one.delay))


def _publish_call(
    run: ModeRun,
    outcome: str,
    seconds: float,
    route: Route,
    response: Response | None = None,
    *,
    usage: Usage | None = NO_USAGE,
    wait: float = 0.0,
    error: Exception | None = None,
) -> None:
    """Record and publish one attempt. `usage` is as reported; `wait` is the seconds until the next one."""
    unreported_usage, usage = usage is None, usage or NO_USAGE
    model, queued = route.take()
    seconds = max(0.0, seconds - queued) if queued else seconds
    kind = "" if outcome == "ok" else outcome
    run.attach_attempt(attempt_row(run.deps.clock, seconds, kind, wait, model))
    run.emit(
        LLMCall(
            run.graph.name,
            run.run_id,
            run.cursor.state,
            run.ctx.iteration + 1,
            model or run.deps.model,
            outcome,
            seconds,
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_input_tokens,
            usage.reasoning_tokens,
            usage.cost,
            response.finish_reason if response else None,
            len(response.tool_calls) if response else 0,
            at=run.deps.clock.time() - seconds,
            queued=queued,
            usage_unreported=unreported_usage,
            error=error,
        )
    )
