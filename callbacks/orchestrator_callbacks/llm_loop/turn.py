"""One model request: its content, its attempts, its answer in pieces, and the effect of the answer on the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from operator import sub
from typing import Any

from orchestrator.errors import DeadlineExceeded, LimitReached, LLMError, StateTimeout
from orchestrator.kernel.cancellation import TimeLimit, TimeLimitPassed, host_call, limited
from orchestrator.kernel.fact import Call, Follower, LLMCall, OperationAttempt
from orchestrator.kernel.run import Run
from orchestrator.llm.attempt import attempt_row
from orchestrator.llm.live_event import (
    ModelRequestRetried,
    ReasoningDelta,
    RunEvent,
    TextDelta,
    ToolArgumentsDelta,
)
from orchestrator.llm.message import (
    NO_USAGE,
    ArgumentsPiece,
    Message,
    ReasoningPiece,
    Request,
    Response,
    Route,
    ToolCall,
    Transcript,
    Usage,
    encodable,
)
from orchestrator.llm.port import LLM
from orchestrator.llm.retry import RetryAttempt, RetryPolicy, was_sent
from orchestrator.llm.usage import approximate_tokens
from orchestrator.machines.llm_loop.model import LoopContext, LoopEvent
from orchestrator.tools.spec import ToolSpec
from orchestrator_callbacks.llm_loop import answer, guidance, request_usage, turn_accounting
from orchestrator_callbacks.llm_loop.admission import refuse_unknown_tools, tool_schemas
from orchestrator_callbacks.llm_loop.budget_account import BudgetAccount
from orchestrator_callbacks.llm_loop.deps import LoopRun, through
from orchestrator_callbacks.llm_loop.request_usage import (
    charge_interrupted,
    lost_answer_usage,
    uncountable,
    usage_with_cost,
    with_cost,
)
from orchestrator_callbacks.llm_loop.turn_accounting import record_guards
from orchestrator_guards import retries


def model_scope(run: Run[Any, Any], model: str) -> AbstractContextManager[object] | None:
    """Return the context manager of a request that starts now."""
    services = run.control.services
    if services is None or services.around is None:
        return None
    iteration, at = run.ctx.iteration + 1, run.deps.clock.time()
    return services.around(Call(run.graph.name, run.run_id, "model", model, iteration, 0, at))


async def complete_once(run: Run[Any, Any], llm: LLM, model: str, request: Request) -> Response:
    """Call a model once, within the total time of a call. If it ignores a cancellation, it is abandoned.

    A model with a `total_timeout` of its own has no other one. The time in a rate limiter does not count. Raises
    LLMError (`timeout`) after that time, which is retried as an error of the connection is.
    """
    seconds = None
    if getattr(llm, "total_timeout", None) is None:
        seconds = run.call_seconds(run.deps.clock.monotonic())
    scope = model_scope(run, model)
    if scope is None:
        return await _completed(run, llm, model, request, seconds)
    with scope:
        return await _completed(run, llm, model, request, seconds)


async def _completed(
    run: Run[Any, Any], llm: LLM, model: str, request: Request, seconds: float | None
) -> Response:
    if seconds is None:
        return await host_call(llm.complete(request), "model", model)
    limit = TimeLimit()
    if request.route is not None:
        request.route.limit = limit
    try:
        work = partial(llm.complete, request)
        return await limited(work, None, run.deps.clock, limit, total=seconds, call=("model", model))
    except TimeLimitPassed as error:
        raise LLMError(f"model {model!r} gave {error}", kind="timeout") from error


def tool_scope(
    run: Run[Any, Any], ahead: int = 0
) -> Callable[[ToolSpec, int], AbstractContextManager[object]] | None:
    """Return the function that makes the context manager of a tool at a position.

    `ahead` is 1 if the facts about these tools have the iteration after the present one.
    """
    services = run.control.services
    if services is None or services.around is None:
        return None
    around = services.around

    def scope(spec: ToolSpec, position: int) -> AbstractContextManager[object]:
        iteration, at = run.ctx.iteration + ahead, run.deps.clock.time()
        return around(Call(run.graph.name, run.run_id, "tool", spec.name, iteration, position, at))

    return scope


class DeltaStream:
    """Requests one answer from the model in as many attempts as needed, and passes on its pieces meanwhile.

    Each attempt has its own listener. A piece that an adapter delivers after the end of its attempt is dropped,
    because the follower already knows that the answer starts again.
    """

    def __init__(self, run: LoopRun, follower: Follower) -> None:
        self._run = run
        self._follower = follower
        self._attempt = 0
        self._speaks = False
        self._began = 0.0
        self._first: float | None = None
        self.arrived = 0
        """Characters of the answer that the attempt has delivered."""
        self._waiting: list[RunEvent] = []
        """Events that wait for the append beside which the request was sent."""
        if run.writes.overlap is not None:
            run.writes.overlap.then.append(self._release)

    async def complete(self, request: Request) -> Response:
        """Make one attempt. A listener that a host's hook set on the request gets the pieces as well."""
        attempt = self._attempt = self._attempt + 1
        self.arrived = 0
        host, host_piece = request.on_delta, request.on_piece

        def on_delta(text: str) -> None:
            if host is not None:
                host(text)
            if text and self._speaks and attempt == self._attempt:
                self._said(text)

        def on_piece(piece: ReasoningPiece | ArgumentsPiece) -> None:
            if host_piece is not None:
                host_piece(piece)
            if piece.text and self._speaks and attempt == self._attempt:
                self._other(piece)

        self._speaks, self._began = True, self._run.deps.clock.monotonic()
        try:
            run = self._run
            followed = replace(request, on_delta=on_delta, on_piece=on_piece)
            return await complete_once(run, run.deps.llm, run.deps.model, followed)
        finally:
            self._speaks = False

    def take_first(self) -> float | None:
        """Return, once, the seconds from the start of the attempt to its first piece; None without one."""
        first, self._first = self._first, None
        return first

    def retried(self, number: int, reason: str, delay: float) -> None:
        """Report that an attempt failed and another one follows."""
        members = self._members() | {"attempt": number}
        self._send(ModelRequestRetried(**members, reason=reason, delay=delay))

    def answer_refused(self, reason: str) -> None:
        """Report that the last answer could not be used and is requested again."""
        ctx = self._run.ctx
        members = self._members() | {"iteration": ctx.iteration, "attempt": ctx.completion.retries}
        self._follower(ModelRequestRetried(**members, reason=reason))

    def _said(self, text: str) -> None:
        self._note_piece(text)
        self._send(TextDelta(**self._members(), text=encodable(text)))

    def _other(self, piece: ReasoningPiece | ArgumentsPiece) -> None:
        self._note_piece(piece.text)
        members, text = self._members(), encodable(piece.text)
        if isinstance(piece, ReasoningPiece):
            self._send(ReasoningDelta(**members, text=text))
        else:
            tool = encodable(piece.tool)
            self._send(ToolArgumentsDelta(**members, position=piece.position, tool=tool, text=text))

    def _send(self, event: RunEvent) -> None:
        run = self._run
        if run.writes.overlap is not None or self._waiting or run.control.detached:
            self._waiting.append(event)
        else:
            self._follower(event)

    def _release(self) -> None:
        held, self._waiting = self._waiting, []
        for event in held:
            self._follower(event)

    def _note_piece(self, text: str) -> None:
        self.arrived += len(text)
        if self._first is None:
            self._first = self._run.deps.clock.monotonic() - self._began

    def _members(self) -> dict[str, Any]:
        run = self._run
        iteration, at = run.ctx.iteration + 1, run.deps.clock.time()
        return {"run_id": run.run_id, "iteration": iteration, "attempt": self._attempt, "at": at}


WRAP_UP = (
    "A limit of this run is reached ({limit}). Tools are no longer available. "
    "Give your final answer now, from what you have; say what is missing."
)


def compose(run: LoopRun) -> Request:
    """Return the next request. Warnings, guidance and the wrap-up notice are part of it but not of the history."""
    ctx, deps = run.ctx, run.deps
    notices: tuple[Message, ...] = tuple(guidance.guidance(ctx)) if ctx.limits.guidance else ()
    if ctx.progress.warning:
        notices += (Message("user", ctx.progress.warning),)
    if ctx.wrapping_up and ctx.verdict is not None:
        notices += (Message("user", WRAP_UP.format(limit=ctx.verdict.explain())),)
    return Request(
        Transcript(ctx.messages, notices),
        deps.tools.offers,
        "none" if ctx.wrapping_up else "auto",
        deps.output.schema if deps.output else None,
        deps.params,
        route=Route(),
    )


async def next_request(run: LoopRun) -> Request:
    """Return the next request after the host's hooks. A request that can cost too much becomes the wrap-up request.

    Raises LimitReached if the cost limit does not allow that one either, or if no price can be known.
    """
    ctx = run.ctx
    if run.deps.tools.collections:
        await run.deps.tools.refresh()
        if not ctx.iteration:
            refuse_unknown_tools(ctx.limits, run.deps.tools)
    for _ in range(2):  # the second request is the wrap-up turn, which may use its reserved share
        request = compose(run)
        if "before_llm_request" in run.deps.points:
            request = await through(run, "before_llm_request", request)
        if not ctx.limits.max_cost and run.deps.account is None:
            return request
        refusal = request_usage.cost_refusal(run, request)
        if refusal is None:
            return request
        ctx.verdict = refusal
        if refusal.guard != "cost" or not turn_accounting.grant_turn(run):
            break
    raise LimitReached(refusal)


def ask(run: LoopRun, request: Request) -> Coroutine[Any, Any, Response]:
    """Call the model with the retries of the policy. Every attempt is published; the last error is raised itself.

    Raises LimitReached from that error if the policy would retry but the run has no retries left, and if the runs
    above have no budget left.
    """
    account = run.deps.account
    return _tried(run, request) if account is None else _within(account, run, request)


async def _within(account: BudgetAccount, run: LoopRun, request: Request) -> Response:
    """Call the model within the budget of the runs above. A charge for interrupted requests counts there, too."""
    most = request_usage.max_request_cost(run, request)
    need = replace(lost_answer_usage(run), cost_micros=most, estimated_cost_micros=most or 0)
    try:
        await account.reserve(need)
    except LimitReached as refused:
        run.ctx.verdict = refused.verdict
        raise
    before, used = run.ctx.spent.usage, NO_USAGE
    try:
        response = await _tried(run, request)
        used = usage_with_cost(run, response)
    finally:
        account.settle(need, used + run.ctx.spent.usage.combined(before, sub))
    return response


async def _tried(run: LoopRun, request: Request) -> Response:
    ctx, deps = run.ctx, run.deps
    route = request.route or Route()
    deltas = None if run.control.follower is None else DeltaStream(run, run.control.follower)
    step = run.cursor.step
    if deltas is not None and step is not None and step.event == LoopEvent.COMPLETION_RETRY:
        deltas.answer_refused(answer.retry_reason(ctx))  # its record is durable now

    attempts = _Attempts(run, deltas, route)
    tries = attempts.made
    policy = _with_retries_left(ctx, deps.retry) if ctx.limits.max_retries else deps.retry
    if request.route is not route:  # a request of a host's hook has no route
        request = replace(request, route=route)
    started = deps.clock.monotonic()
    try:
        response: object = await policy.call(
            attempts.complete, request, on_attempt=attempts.note, clock=deps.clock
        )
    except asyncio.CancelledError:
        # Interrupted by a limit: the model hung, and the run was not cancelled.
        cut = isinstance(run.interruption, StateTimeout | DeadlineExceeded)
        earlier = sum(one.seconds + one.delay for one in tries)
        now, charged = deps.clock.monotonic(), 0
        if run.interruption is not None:  # else another process resumes the run and charges it there
            arrived = 0 if deltas is None else approximate_tokens(deltas.arrived)
            charged = charge_interrupted(run, route.in_flight(now), arrived)
        seconds = max(0.0, now - started - earlier)
        _report_call(run, "timeout" if cut else "cancelled", seconds, deltas, route, charged=charged)
        raise
    except Exception as error:
        ctx.fault = "llm_error"
        if len(tries) == policy.attempts < deps.retry.attempts and tries[-1].outcome == "exhausted":
            ctx.verdict = retries(ctx.spent.retries, ctx.limits.max_retries)
            record_guards(run, (ctx.verdict,))
            raise LimitReached(ctx.verdict) from error
        raise
    seconds = tries[-1].seconds if tries else deps.clock.monotonic() - started
    if (fault := malformed(response)) is not None or not isinstance(response, Response):
        ctx.fault = "llm_error"
        _report_call(run, "malformed", seconds, deltas, route)
        raise LLMError(f"the model gave {fault}", kind="malformed")
    if response.usage and (active := seconds - (route.queued or 0.0)) > 0:
        ctx.spent.fastest_rate = max(ctx.spent.fastest_rate, round(response.usage.output_tokens / active, 3))
    _report_call(run, "ok", seconds, deltas, route, response)
    return response.encodable()


def _charge_failed(run: LoopRun, one: RetryAttempt, route: Route, arrived: int) -> int:
    """Add the usage of a failed attempt that may be billed; return its least cost in millionths, else 0.

    It is the reported one, or a range. `arrived` is the number of characters of its answer that its listener got.
    """
    if (reported := reported_usage(one)) is not None:
        used = with_cost(request_usage.pricing(run), reported, route.model)
        run.ctx.spent.usage = run.ctx.spent.usage + used
        return used.cost_micros or 0
    arrived = max(arrived, len(getattr(one.error, "partial", "")))
    if not may_be_billed(one, arrived):
        return 0
    return charge_interrupted(run, route.in_flight(run.deps.clock.monotonic()), approximate_tokens(arrived))


class _Attempts:
    """The attempts of one request. A waiting run keeps this: closures with their cells would be four times as large."""

    __slots__ = ("_deltas", "_route", "_run", "made")

    def __init__(self, run: LoopRun, deltas: DeltaStream | None, route: Route) -> None:
        self._run, self._deltas, self._route = run, deltas, route
        self.made: list[RetryAttempt] = []

    def complete(self, request: Request) -> Awaitable[Response]:
        """Start an attempt."""
        run, route = self._run, self._route
        route.since, route.waiting = run.deps.clock.monotonic(), False
        if self._deltas is None:
            return complete_once(run, run.deps.llm, run.deps.model, request)
        return self._deltas.complete(request)

    def note(self, one: RetryAttempt) -> None:
        """Note an attempt that has ended; charge it if it may be billed, and report it, if it has failed."""
        run, route = self._run, self._route
        self.made.append(one)
        if one.outcome != "ok":
            arrived = 0 if self._deltas is None else self._deltas.arrived
            _report_failure(run, one, self._deltas, route, _charge_failed(run, one, route, arrived))
        route.since = None


def reported_usage(one: RetryAttempt) -> Usage | None:
    """Return the usage that the server reported of a failed attempt; None if it reported none that can be true."""
    used: object = getattr(one.error, "usage", None)
    if not isinstance(used, Usage) or uncountable(used) is not None:
        return None
    return used if used.input_tokens else None


def may_be_billed(one: RetryAttempt, arrived: int) -> bool:
    """Return whether the server may bill a failed attempt: part of an answer arrived, or none came to a sent request.

    `arrived` is the number of characters of that part.
    """
    unanswered = one.kind in _WITHOUT_ANSWER and getattr(one.error, "status", None) is None
    return arrived > 0 or (unanswered and was_sent(one.error))


def malformed(response: object) -> str | None:  # noqa: PLR0911 - a return for each fault
    """Return the fault in a model's result, so that the error names the model's adapter; None if it is valid."""
    if not isinstance(response, Response):
        return f"a {type(response).__name__}, not a Response"
    usage: object = response.usage
    calls: object = response.tool_calls
    content: object = response.content
    refusal: object = response.refusal
    if not isinstance(content, _CONTENT):
        return f"content of type {type(content).__name__}; it must be text, a list of parts, or None"
    if isinstance(content, list) and not all(isinstance(part, Mapping) for part in content):
        return "content whose parts are not all mappings, as OpenAI's are"
    if refusal is not None and not isinstance(refusal, str):
        return f"a refusal of type {type(refusal).__name__}; it must be text or None"
    if (fault := uncountable(usage)) is not None:
        return fault
    if not isinstance(calls, tuple):
        return "tool_calls that are not a tuple of ToolCall"
    for call in calls:
        if not isinstance(call, ToolCall):
            return "tool_calls that are not a tuple of ToolCall"
        texts: tuple[object, ...] = call.id, call.name, call.arguments
        if not (isinstance(texts[0], str) and isinstance(texts[1], str) and isinstance(texts[2], str)):
            return "a ToolCall whose id, name and arguments are not all text (arguments are JSON text)"
    return None


_CONTENT = (str, list, type(None))
_WITHOUT_ANSWER = ("timeout", "connection")
"""Kinds of failures after which it is not known whether the server has worked on the request."""


def _with_retries_left(ctx: LoopContext, policy: RetryPolicy) -> RetryPolicy:
    """Return the policy with at most the retries that the run's own budget has left."""
    left = max(0, ctx.limits.max_retries - ctx.spent.retries)
    return replace(policy, attempts=min(policy.attempts, left + 1))


def _report_failure(
    run: LoopRun, one: RetryAttempt, deltas: DeltaStream | None, route: Route, charged: int
) -> None:
    kind = one.kind or "other"
    _report_call(run, kind, one.seconds, deltas, route, wait=one.delay, error=one.error, charged=charged)
    if one.outcome == "retry":
        run.ctx.spent.retries += 1
        if deltas is not None:
            deltas.retried(one.number, one.kind or "other", one.delay)
    outcome = "retry" if one.outcome == "retry" else "exhausted"
    run.emit(OperationAttempt(run.graph.name, run.run_id, "llm", one.number, outcome, one.kind, one.delay))


def _report_call(  # noqa: PLR0917 - four callers, all here
    run: LoopRun,
    outcome: str,
    seconds: float,
    deltas: DeltaStream | None,
    route: Route,
    response: Response | None = None,
    wait: float = 0.0,
    error: Exception | None = None,
    charged: int = 0,
) -> None:
    """Record and publish one attempt.

    `wait` is the seconds until the next one, `charged` the least cost of an interrupted one.
    """
    # Not by `take()`: this is on the path of each request, observed or not.
    model, queued, server, response_id = route.model, route.queued, route.server, route.response_id
    route.model = route.queued = route.server = route.response_id = None  # for the next one
    if queued:
        seconds = max(0.0, seconds - queued)  # the limiter may have another clock
    run.attach_attempt(attempt_row(run.deps.clock, seconds, outcome, wait, model))
    if LLMCall not in run.writes.observed_kinds:
        return
    usage = usage_with_cost(run, response) if response and response.usage is not None else NO_USAGE
    if response and response.usage is None:
        charged = usage_with_cost(run, response).cost_micros or 0
    limit, used = run.ctx.context.limit, None
    if limit and response and response.usage is not None:
        used = (usage.input_tokens + usage.output_tokens) / limit
    first = deltas.take_first() if deltas else None
    if queued and first is not None:
        first = max(0.0, first - queued)
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
            first,
            context_used=used,
            at=run.deps.clock.time() - seconds,  # published as soon as it is over
            queued=queued,
            usage_unreported=response is not None and response.usage is None,
            error=error,
            estimated_cost_micros=charged,
            response_model=response.model if response else None,
            response_id=response_id,
            server=server,
        )
    )


def take(run: LoopRun, response: Response) -> None:
    """Add an answer to the transcript, the usage and the context size. An unreported usage is estimated.

    Raises LimitReached for an answer of unknown cost if a limit bounds the cost.
    """
    ctx = run.ctx
    known = response.usage
    usage = known if known is not None and run.deps.price is None else usage_with_cost(run, response)
    if known is None:
        response = replace(response, usage=usage)  # as in the journal: a restored run has the estimate, too
    ctx.response, ctx.results = response, []
    ctx.iteration += 1
    spent = ctx.spent
    spent.usage = spent.usage + usage
    spent.largest_answer = max(spent.largest_answer, usage.output_tokens)
    if usage.cost_micros is not None and usage.cost_micros > spent.largest_cost:
        spent.largest_cost = usage.cost_micros
    if spent.below is not None:
        spent.below.before = spent.below.usage
    ctx.context.tokens = usage.input_tokens + usage.output_tokens
    ctx.progress.warning = ""
    ctx.messages.append(response.message())
    answered = {
        "iteration": ctx.iteration,
        "model": response.model or run.deps.model,
        "usage": usage.short(),
        "finish_reason": response.finish_reason,
    }
    if spent.retries:
        answered["retries"] = spent.retries
    if usage.estimated_input_tokens or not (usage.input_tokens or usage.output_tokens):
        answered["unreported"] = True  # the usage is an estimate; of a custom model that reports 0, no token
    if (attempts := run.take_attempts()) is not None:
        answered["attempts"] = attempts
    if ctx.iteration == 1 and run.deps.tools.offers:
        answered["offered"] = run.store(tool_schemas(run.deps.tools.offers))
    run.note("answer", answered)
    if usage.cost_micros is None and (
        run.deps.price is not None or ctx.limits.max_cost or run.deps.account is not None
    ):  # otherwise no limit counts the cost, and none was to be known
        refusal = request_usage.unknown_cost_refusal(run, response)
        if refusal is not None:
            ctx.verdict = refusal
            record_guards(run, (refusal,))
            raise LimitReached(refusal)
