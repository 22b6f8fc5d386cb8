"""One request to a model in a run of a mode: tried again as the policy allows, every try a fact, its price known."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from orchestrator.errors import DeadlineExceeded, LLMError, StateTimeout
from orchestrator.kernel.record import Attempt, LLMCall
from orchestrator.messages import NO_USAGE, Request, Response, Route, Usage, input_bound, output_bound
from orchestrator.ports import LLM
from orchestrator.retry import Tried
from orchestrator_callbacks.llm_loop.bill import cost_of, note_unpriced, priced
from orchestrator_callbacks.llm_loop.turn import malformed
from orchestrator_callbacks.rlm.deps import ModeRun, allowed
from orchestrator_callbacks.rlm.purse import estimated


class OwnModel:
    """The model of a run: what it is asked is paid out of the run's purse. Raises LimitReached where that is empty."""

    def __init__(self, run: ModeRun) -> None:
        self._run = run

    async def complete(self, request: Request) -> Response:
        """Answer one request."""
        run = self._run
        await allowed(run, run.deps.model)
        async with run.deps.purse.request(estimated(request.messages), bound(run, request)) as bill:
            response = await asked(run, run.deps.llm, request)
            bill.usage = response.usage
        return response


def bound(run: ModeRun, request: Request) -> Usage:
    """Return the most that an answer may use, as far as it is known: what is charged where it never comes."""
    usage = Usage(input_bound(request.messages, request.tools), output_bound(request.params))
    whole: Any = run
    return replace(usage, cost=cost_of(whole, usage, None))


async def asked(run: ModeRun, llm: LLM, request: Request) -> Response:
    """Ask a model and tell observers of each try. The usage of the answer has its cost. Raises the last error."""
    deps, route = run.deps, Route()
    tries: list[Tried] = []

    def tried(one: Tried) -> None:
        tries.append(one)
        if one.outcome != "ok":
            _failed(run, one, route)

    began = deps.clock.monotonic()
    try:
        response: Any = await deps.retry.call(
            llm.complete, replace(request, route=route), on_attempt=tried, clock=deps.clock
        )
    except asyncio.CancelledError:
        cut = isinstance(run.interruption, StateTimeout | DeadlineExceeded)
        _tell(run, "timeout" if cut else "cancelled", deps.clock.monotonic() - began, route)
        raise
    except Exception:
        run.ctx.fault = "llm_error"
        raise
    seconds = tries[-1].seconds if tries else deps.clock.monotonic() - began
    if (fault := malformed(response)) is not None:
        run.ctx.fault = "llm_error"
        _tell(run, "malformed", seconds, route)
        raise LLMError(f"the model gave {fault}", kind="malformed")
    whole: Any = run  # the bill asks for nothing that a run of the loop has and this one has not
    answer: Response = replace(response.encodable(), usage=priced(whole, response))
    if answer.usage.cost is None:
        note_unpriced(whole, answer)
    _tell(run, "ok", seconds, route, answer)
    run.ctx.fault = None
    return answer


def _failed(run: ModeRun, one: Tried, route: Route) -> None:
    _tell(run, one.kind or "other", one.seconds, route)
    outcome = "retry" if one.outcome == "retry" else "exhausted"
    run.emit(Attempt(run.graph.name, run.run_id, "llm", one.number, outcome, one.kind, one.delay))


def _tell(run: ModeRun, outcome: str, seconds: float, route: Route, response: Response | None = None) -> None:
    usage = response.usage if response else NO_USAGE
    model, queued = route.take()
    whole: Any = run
    run.emit(
        LLMCall(
            run.graph.name,
            run.run_id,
            run.cursor,
            run.ctx.iteration + 1,
            model or run.deps.model,
            outcome,
            max(0.0, seconds - queued) if queued else seconds,
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_input_tokens,
            usage.reasoning_tokens,
            cost_of(whole, usage, response.model) if response else None,
            response.finish_reason if response else None,
            len(response.tool_calls) if response else 0,
            at=run.deps.clock.time() - seconds,
            queued=queued,
        )
    )
