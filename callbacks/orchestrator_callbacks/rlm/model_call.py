"""The handles of a run of code mode or tools mode, its budget, and its calls of models.

Each run of a tree has a budget, which it shares with its queries and child runs: usage below counts in every budget
above, and `llm_loop.budget_account` decides when a request is sent. Before it is sent, the usage with an estimate for
every answer in flight is recorded (`announce`), so that a crash does not lose it. Handles are live, some per run, and
never stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from orchestrator.errors import DeadlineExceeded, LimitReached, LLMError, StateTimeout
from orchestrator.kernel.fact import LLMCall, OperationAttempt
from orchestrator.kernel.run import Run
from orchestrator.kernel.typed import TypedMachine
from orchestrator.llm.attempt import attempt_row
from orchestrator.llm.message import (
    NO_USAGE,
    Message,
    Request,
    Response,
    Route,
    Usage,
    input_bound,
    output_limit,
)
from orchestrator.llm.port import LLM, Clock, Price
from orchestrator.llm.retry import RetryAttempt, RetryPolicy
from orchestrator.llm.usage import approximate_tokens
from orchestrator.machines.rlm.model import ModeContext, RlmLimits
from orchestrator_callbacks.llm_loop.budget_account import PayingAccount, ReservationQueue
from orchestrator_callbacks.llm_loop.deps import ServiceHost
from orchestrator_callbacks.llm_loop.request_usage import (
    Pricing,
    interrupted,
    lost_output,
    note_unpriced,
    requires_price,
    unreported,
    with_cost,
)
from orchestrator_callbacks.llm_loop.request_usage import estimated as as_estimate
from orchestrator_callbacks.llm_loop.turn import complete_once, malformed, may_be_billed, reported_usage
from orchestrator_guards import (
    Verdict,
    cost_unknown,
    sub_calls,
)
from orchestrator_guards.evaluation import Row, row_of

# ---- budgets ----


# ruff: noqa: SLF001 - budgets of one tree access each other


@dataclass(slots=True)
class RequestUsage:
    """The usage of one request, set by its caller."""

    usage: Usage = NO_USAGE


class RunBudget(PayingAccount):
    """The budget of one run; `lender` is the budget of its parent run."""

    def __init__(
        self, limits: RlmLimits, *, lender: RunBudget | None = None, usage: Usage = NO_USAGE, calls: int = 0
    ) -> None:
        self._limits = limits
        self._lender = lender
        self.flying: list[Usage] = []
        self._charges: list[Usage] = []
        """What is charged for the requests in flight if their answers are lost."""
        self._queue: ReservationQueue = ReservationQueue() if lender is None else lender._queue
        self.usage = usage
        """Usage of the run and all its child runs."""
        self.calls = calls
        """Queries below the run."""
        self.unpriced: Verdict | None = None
        """Why the cost is unknown: an answer, here or below, had no price."""
        self.record: Callable[[Sequence[Row]], None] = lambda _: None
        """Set on the budget of a run: records the evaluations of guards about its requests."""
        self.announce: Callable[[], Awaitable[None]] | None = None
        """Set on the outermost budget: records `committed` before each request here or below is sent."""

    @property
    def committed(self) -> Usage:
        """The usage if the answers to all requests in flight are lost."""
        return sum(self._charges, self.usage)

    @property
    def limits(self) -> RlmLimits:
        """The limits of the run."""
        return self._limits

    @property
    def all_limits(self) -> tuple[RlmLimits, ...]:
        """The limits of the run and of the runs above it, the nearest first."""
        return tuple(purse._limits for purse in self._all())

    @property
    def used(self) -> Usage:
        """The usage of the run and all below it."""
        return self.usage

    def add(self, usage: Usage) -> None:
        """Count usage here and in every budget above."""
        for purse in self._all():
            purse.usage = purse.usage + usage
        self._queue.serve()

    def refuse(self, verdict: Verdict) -> None:
        """Block further requests, here and above, if a limit bounds the cost: the cost of an answer is unknown.

        Raises LimitReached if there is such a limit.
        """
        bound = [purse for purse in self._all() if requires_price(purse._limits)]
        for purse in bound:
            purse.unpriced = verdict
        if bound:
            raise LimitReached(verdict)

    def refusal(self, need: Usage = NO_USAGE) -> Verdict | None:
        """Return the refusal of a request by a limit, here or above, that is used up or below its cost; else None."""
        verdicts = (purse.own_refusal(need, []) for purse in self._all())
        return next((verdict for verdict in verdicts if verdict is not None), None)

    def own_refusal(self, need: Usage, rows: list[Row]) -> Verdict | None:
        """Return the refusal by a limit of this budget; budgets above are not asked. Adds the evaluations to `rows`."""
        if self.unpriced is None:
            return PayingAccount.own_refusal(self, need, rows)
        rows.append(row_of(self.unpriced))
        return self.unpriced

    def count_call(self) -> None:
        """Count one query. Raises LimitReached, without counting it, if no query is left here or above."""
        for purse in self._all():
            verdict = sub_calls(purse.calls, purse._limits.max_sub_calls)
            self.record((row_of(verdict),))
            if not verdict:
                raise LimitReached(verdict)
        for purse in self._all():
            purse.calls += 1

    @contextlib.asynccontextmanager
    async def request(
        self, need: Usage, charge: Usage | None = None, interrupted: Callable[[], Usage] | None = None
    ) -> AsyncIterator[RequestUsage]:
        """Wait until a request of about `need` fits, and count its usage afterwards.

        Args:
            need: Estimated usage. Its cost is the maximum cost; a request of unknown cost is sent alone.
            charge: Estimate that is counted if a crash loses the answer; `need` by default.
            interrupted: Returns what is counted if the request is cancelled; `charge` by default.

        Raises:
            LimitReached: A limit is used up or cannot cover the request.
            Exception: Any error of `announce`.
        """
        purses = tuple(self._all())
        made = self._queue.request(purses, need)
        try:
            refusal = await made.answer
            self.record(made.rows)
        except BaseException:
            self._queue.withdraw(made)
            raise
        if refusal is not None:
            raise LimitReached(refusal)
        charge = need.as_estimate() if charge is None else charge
        for purse in purses:
            purse._charges.append(charge)
        bill = RequestUsage()
        try:
            outermost = purses[-1]
            if outermost.announce is not None:
                await outermost.announce()
            try:
                yield bill
            except asyncio.CancelledError:
                bill.usage = charge if interrupted is None else interrupted()
                raise
        finally:
            for purse in purses:
                purse._charges.remove(charge)
            self._queue.release(purses, need)
            self.add(bill.usage)

    # ---- private ----

    def _all(self) -> Iterator[RunBudget]:
        purse: RunBudget | None = self
        while purse is not None:
            yield purse
            purse = purse._lender


def estimated(messages: Iterable[Message]) -> Usage:
    """Return the estimated usage of a request at four characters per token. The length of the answer is unknown."""
    chars = sum(len(message.text) for message in messages)
    return Usage(approximate_tokens(chars), 0)


# ---- handles of a run ----


Source: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
"""(state, context) -> the next event."""


@dataclass(slots=True)
class HostReference:
    """The current engine of all runs of an Rlm and their child runs."""

    host: ServiceHost | None = None


@dataclass(slots=True, kw_only=True)
class ModeDeps:
    """Handles of one run."""

    llm: LLM
    model: str
    """The configured model name, for labels and logs."""
    retry: RetryPolicy
    clock: Clock
    budget: RunBudget
    price: Price | None = None
    unpriced: set[tuple[str, float]] = field(default_factory=set)
    params: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    """Returns the event that leaves each state."""
    hosted: HostReference = field(default_factory=HostReference)
    turnstile: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of several concurrent queries one waits for the engine, so that a run is parked once."""


ModeRun: TypeAlias = Run[ModeContext, ModeDeps]
_READS = "PROMPTING"
"""The state of both modes that calls no model: it parses the last reply."""


async def allowed(run: ModeRun, model: str) -> None:
    """Return when requests to a model are allowed in the middle of a state; the run is parked until then.

    It waits in this process even if runs are otherwise left for another process, because its work in this state is
    not stored.
    """
    host = run.deps.hosted.host
    if host is None:
        return
    async with run.deps.turnstile:
        stays = run.control.waits_in_place
        run.wait_in_place(enabled=True)
        try:
            await host.may_ask(run, model)
        finally:
            run.wait_in_place(enabled=stays)


async def next_event(run: ModeRun) -> Any:
    """Return the event of the run's source, under its name in the graph.

    Raises UnhandledEventError if the current state has no edge for the event, or the source returns none.
    """
    machine, deps = cast("TypedMachine", run.machine), run.deps
    if deps.source is None:
        raise RuntimeError("a run of a mode needs an event source")
    host = deps.hosted.host
    if not run.control.waits_in_place and host is not None and run.cursor.state != _READS:
        await host.may_ask(run, deps.model)  # no work is done yet that another process would have to repeat
    try:
        event = await deps.source(machine.objects[run.cursor.state], run.ctx)
    finally:
        run.ctx.usage, run.ctx.sub_calls = deps.budget.usage, deps.budget.calls
    name = machine.event_name(run.cursor.state, type(event))
    if not machine.candidates(run.cursor.state, type(event)):
        raise machine.unhandled(run.cursor.state, name)
    run.set_event_object(event)
    return name


# ---- calls ----


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
    need = replace(estimated(request.messages), cost_micros=pricing.max_request_cost(request))
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
    """Return the range of a request that ended without its answer after so many seconds."""
    return interrupted(
        Usage(input_bound(request.messages, request.tools), approximate_tokens(len(partial))),
        seconds,
        pricing,
        limit=output_limit(request.params) or pricing.most_output,
        rate=run.ctx.fastest_rate,
        largest=run.ctx.largest_cost,
    )


def _charge_failed(run: ModeRun, pricing: Pricing, request: Request, one: RetryAttempt, route: Route) -> int:
    """Add the usage of a failed attempt that may be billed to the budget; return its least cost in millionths, or 0."""
    partial: str = getattr(one.error, "partial", "")
    if (reported := reported_usage(one)) is not None:
        charged = with_cost(pricing, reported, route.model)
    elif may_be_billed(one, len(partial)):
        elapsed = route.in_flight(run.deps.clock.monotonic())
        charged = _range(run, pricing, request, elapsed, partial)
    else:
        return 0
    run.deps.budget.add(charged)
    return charged.cost_micros or 0


async def request_answer(run: ModeRun, llm: LLM, pricing: Pricing, request: Request) -> Response:
    """Call a model and publish each attempt. Raises the last error.

    The usage of the answer includes its cost; an estimate takes the place of one that the server did not report.
    """
    deps, route = run.deps, request.route or Route()
    tries: list[RetryAttempt] = []

    def tried(one: RetryAttempt) -> None:
        tries.append(one)
        if one.outcome != "ok":
            kind, least = one.kind or "other", _charge_failed(run, pricing, request, one, route)
            _publish_call(
                run, kind, one.seconds, route, wait=one.delay, error=one.error, estimated_cost=least
            )
            outcome = "retry" if one.outcome == "retry" else "exhausted"
            run.emit(
                OperationAttempt(run.graph.name, run.run_id, "llm", one.number, outcome, one.kind, one.delay)
            )
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
        now = deps.clock.monotonic()
        seconds = max(0.0, now - began - earlier)
        stopped = run.interruption is not None  # then `paid` charges the same
        least = _range(run, pricing, request, route.in_flight(now)).cost_micros or 0 if stopped else 0
        _publish_call(run, "timeout" if cut else "cancelled", seconds, route, estimated_cost=least)
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
    reported = response.usage is not None
    least = 0 if reported else usage.cost_micros or 0
    _publish_call(run, "ok", seconds, route, answer, usage=usage if reported else None, estimated_cost=least)
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
    estimated_cost: int = 0,
) -> None:
    """Record and publish one attempt.

    `usage` is as reported; `wait` is the seconds until the next one; `estimated_cost` is in millionths.
    """
    unreported_usage, usage = usage is None, usage or NO_USAGE
    done = route.take()
    model, queued = done.model, done.queued
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
            estimated_cost_micros=estimated_cost,
            response_model=response.model if response else None,
            response_id=done.response_id,
            server=done.server,
        )
    )
