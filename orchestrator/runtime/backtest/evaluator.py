"""Evaluate the guards of a recorded run again, in order, under any policy.

The functions of the loop itself decide: those that its hooks call at the same places. Only the numbers come from the
records. No model, no tool, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from orchestrator.machines.llm_loop.graph import may_continue, may_restart, verdicts, whole_budgets
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import ContextUse, LoopContext, LoopEvent, RunUsage
from orchestrator.runtime.backtest.policy import HostGuardCall, Policy
from orchestrator.runtime.backtest.trace import Kind, Point, Row, RunTrace
from orchestrator_callbacks.llm_loop import compaction, turn_accounting
from orchestrator_callbacks.llm_loop.admission import verdicts_for
from orchestrator_callbacks.llm_loop.answer import decide_retry, retry_verdicts
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_callbacks.llm_loop.guard_record import record_guards
from orchestrator_callbacks.llm_loop.request_usage import requires_price
from orchestrator_guards import (
    Verdict,
    completion_retries,
    cost_unknown,
    elapsed,
    first_refusal,
    request_cost,
    reserve,
    retries,
)
from orchestrator_guards.evaluation import given, row_of

STOP: Final = "stop"
WRAP_UP: Final = "wrap_up"
RESTART: Final = "restart"
"""Ends of a decision: the run ends, it gets its last turn, it starts again from its first messages."""


class Unknowable(Exception):
    """The records of a run do not have an input that the policy needs."""


class Decision(NamedTuple):
    """The result of the guards at one point."""

    kind: Kind
    end: str = ""
    """STOP, WRAP_UP, RESTART, or "": the run continues."""
    verdict: Verdict | None = None
    """The refusal behind `end`, or the first refusal of a call."""
    denied: tuple[int, ...] = ()
    """Positions of the calls that may not run."""
    blocked: bool = False
    """The calls repeat earlier ones without progress, so none runs."""
    notices: tuple[tuple[object, ...], ...] = ()
    """What the next request has beside the conversation: equal notices are equal messages to the model."""
    warned: bool = False
    window: int = 0
    """Fingerprints in the window of the progress guard."""
    rows: Sequence[Row] = ()


class _PolicyRun:
    """The part of a run that the functions of the loop use to decide."""

    def __init__(self, limits: Limits) -> None:
        self.ctx = LoopContext(messages=[], limits=limits, base=0)
        self.rows: list[Row] = []
        self._decided: object = None

    def attach_guards(self, rows: Sequence[Row], decided: object = None) -> None:
        """Keep the rows of evaluations, as `Run.attach_guards` does."""
        self.rows += rows
        self._decided = decided

    def ask_edge(self, guard: Callable[[LoopContext], Verdict]) -> None:
        """Evaluate the guard of an edge. Its row is kept unless it returns the verdict of the last row again."""
        verdict = guard(self.ctx)
        if verdict is not self._decided:
            self.attach_guards((row_of(verdict),))


class Evaluator:
    """The decisions of one run under one policy, one point after the other. An end is followed by no further point."""

    def __init__(self, trace: RunTrace, policy: Policy) -> None:
        self._policy = policy
        self._digests = trace.digests
        self._own = _PolicyRun(Limits())
        self._run = cast("LoopRun", self._own)
        self._ctx = self._own.ctx
        self._recorded: object = None
        self._window = 0
        self._blocked = False
        """Whether this turn's calls repeat earlier ones, so that none of them runs."""
        self._guards = cast("Sequence[HostGuardCall]", policy.guards)

    def decide(self, point: Point) -> Decision:
        """Return the decision at the next point. Raises Unknowable, ConfigError."""
        ctx, own = self._ctx, self._own
        if point.limits is not self._recorded:
            self._recorded = point.limits
            ctx.limits = self._policy.over(point.limits, digests=self._digests)
        own.rows = []
        ctx.iteration = point.iteration
        ctx.decision = None
        ctx.spent = RunUsage(
            point.usage,
            None,
            point.seconds,
            point.tool_calls,
            point.retries,
            point.restarts,
            point.compactions,
        )
        late = self._late(point)
        match point.kind:
            case "calls" | "completion" if late is not None:
                return Decision(point.kind, STOP, late, rows=own.rows)
            case "request":
                return self._request(point)
            case "calls":
                return self._calls(point)
            case "turn":
                return self._turn(point)
            case _:
                return self._completion(point)

    def _late(self, point: Point) -> Verdict | None:
        """Return the refusal of a run that was interrupted in the state before this record; None if it was not."""
        most = self._ctx.limits.max_seconds
        return elapsed(most, most) if most and point.t > most else None

    # ---- a request ----

    def _request(self, point: Point) -> Decision:
        ctx, own = self._ctx, self._own
        refusal = None
        if point.checked:
            asked = whole_budgets(ctx)
            record_guards(self._run, asked)
            refusal = first_refusal(asked)
        wraps = False
        if refusal is None:
            refusal, wraps = self._cost(point)
        if refusal is None or wraps:
            later = self._parents_refusal(point)
            if later is None:  # a refusal is falsy
                later = self._late(point)
            if later is None:
                later = self._after_answer(point)
            refusal, wraps = (refusal, wraps) if later is None else (later, False)
        if refusal is not None and not wraps:
            return Decision("request", STOP, refusal, rows=own.rows)
        notices = self._notices(point)
        ctx.progress.warning = ""
        return Decision("request", WRAP_UP if wraps else "", refusal, notices=notices, rows=own.rows)

    def _cost(self, point: Point) -> tuple[Verdict | None, bool]:
        """Return the refusal of a request that can cost too much, and whether it becomes the wrap-up request."""
        ctx, limits = self._ctx, self._ctx.limits
        if not limits.max_cost or not point.most:
            return None, False
        first: Verdict | None = None
        for number in range(2):
            most = point.most[min(number, len(point.most) - 1)]
            share = limits.wrap_up_share if limits.wrap_up_turns and not ctx.wrapping_up else 0.0
            inputs = ctx.spent.total.cost_for_limits, most, reserve(limits.max_cost_micros, share)
            verdict = request_cost(*inputs)
            self._own.attach_guards((given(verdict, request_cost, *inputs),))
            if verdict:
                break
            first = ctx.verdict = verdict
            if number or not turn_accounting.may_go_on(self._run):
                return verdict, False
        return first, first is not None

    def _parents_refusal(self, point: Point) -> Verdict | None:
        """Return the refusal of the request by a parent run, whose limits and usage stay as recorded."""
        self._own.attach_guards(point.by_parents)
        return next((Verdict(*row[:4]) for row in point.by_parents if not row[0]), None)

    def _after_answer(self, point: Point) -> Verdict | None:
        """Return the refusal by the limits that are checked with the answer: retries, and an unknown cost."""
        limits = self._ctx.limits
        if limits.max_retries:
            refused = next((row for row in point.rows if row[1] == "retries"), None)
            if refused is not None:
                verdict = retries(int(refused[2]), limits.max_retries)
                self._own.attach_guards((row_of(verdict),))
                return None if verdict else verdict
            if point.retries > limits.max_retries:
                return retries(limits.max_retries, limits.max_retries)
        if point.unpriced and requires_price(limits):
            if not any(row[1] == "cost_unknown" for row in point.rows):
                raise Unknowable("the cost of its answers is unknown, so no run with max_cost could start")
            verdict = cost_unknown(1)
            self._own.attach_guards((row_of(verdict),))
            return verdict
        return None

    def _notices(self, point: Point) -> tuple[tuple[object, ...], ...]:
        """Return what decides the messages of a request beside the conversation."""
        ctx, limits = self._ctx, self._ctx.limits
        found: list[tuple[object, ...]] = []
        failed, worked = point.results or (0, 0)
        if limits.guidance and failed:
            found.append(("guidance", min(limits.guidance, failed), min(limits.guidance, worked)))
        if ctx.progress.warning:
            found.append(("warning", ctx.progress.warning))
        if ctx.wrapping_up and ctx.verdict is not None:
            found.append(("wrap_up", ctx.verdict.explain()))
        tokens, window, compacted_at = point.context or (0, 0, 0)
        ctx.context = ContextUse(tokens, limits.context_limit or window, 0, compacted_at)
        ctx.messages = _SOME if point.iteration else []
        if compaction.is_due(ctx):
            found.append(("compaction",))
        return tuple(found)

    # ---- the calls of an answer ----

    def _calls(self, point: Point) -> Decision:
        ctx, own = self._ctx, self._own
        expected = ctx.progress.expected
        keys = tuple(sorted(call.key for call in point.calls))
        blocked = self._blocked = expected is not None and keys == expected.calls
        if blocked or ctx.wrapping_up:
            return Decision(
                "calls",
                denied=tuple(range(len(point.calls))),
                blocked=blocked and not ctx.wrapping_up,
                rows=own.rows,
            )
        ctx.spent.by_tool = dict(point.by_tool)
        denied: list[int] = []
        for position, call in enumerate(point.calls):
            successes = call.successes if ctx.limits.max_repeated_success else 0
            if successes and call.policy is None:
                raise Unknowable(
                    "the meaning of repeated calls of its tools is unknown: it was recorded with "
                    "max_repeated_success 0"
                )
            asked, rows = verdicts_for(ctx, call.tool, successes, cast("Any", call.policy))
            own.rows += rows
            refusal = first_refusal(asked)
            if refusal is None:
                ctx.spent.tool_calls += 1
                ctx.spent.by_tool[call.tool] = ctx.spent.by_tool.get(call.tool, 0) + 1
                continue
            denied.append(position)
            if ctx.verdict is None:
                ctx.verdict = refusal
        said = (("denied", ctx.verdict),) if denied and ctx.limits.wrap_up_turns else ()
        return Decision("calls", "", ctx.verdict, tuple(denied), notices=said, rows=own.rows)

    # ---- decisions about another turn ----

    def _turn(self, point: Point) -> Decision:
        ctx, run = self._ctx, self._run
        moved = self._add_turn(point, ctx.limits.max_no_progress or ctx.limits.max_restarts)
        self._window = len(ctx.turns)
        asked = verdicts(ctx, moved)
        record_guards(run, asked)
        if self._guards and not ctx.wrapping_up:
            asked[-1:-1] = [guard.evaluate(ctx) for guard in self._guards]
        if ctx.verdict is not None:
            asked.insert(0, ctx.verdict)
        wrapped = ctx.wrapping_up
        event = turn_accounting.decide_turn(run, asked)
        refusal = first_refusal(asked)
        if event == LoopEvent.RESTART_LOOP:
            self._own.ask_edge(may_restart)
            turn_accounting.start_over(ctx)
            return self._decided("turn", RESTART, refusal)
        if event == LoopEvent.BUDGET_OK:
            self._own.ask_edge(may_continue)
        return self._decided("turn", self._end(event == LoopEvent.BUDGET_OK, wrapped), refusal)

    def _completion(self, point: Point) -> Decision:
        ctx, run = self._ctx, self._run
        most = ctx.limits.completion_retries
        allowed = completion_retries(
            point.completions, most or -1
        )  # 0 is unlimited for the guard, but off here
        record_guards(run, (allowed,))
        if not allowed:
            return self._decided("completion", STOP, allowed)
        moved = self._add_turn(point, ctx.limits.max_no_progress)
        self._window = len(ctx.turns)
        asked = retry_verdicts(ctx, moved)
        if ctx.verdict is None or ctx.wrapping_up:
            record_guards(run, asked)
            asked[-1:-1] = [guard.evaluate(ctx) for guard in self._guards if not ctx.wrapping_up]
        wrapped = ctx.wrapping_up
        error = decide_retry(run, asked)
        if error is None:
            self._own.ask_edge(may_continue)
        end = self._end(error is None, wrapped)
        return self._decided("completion", end, first_refusal(asked))._replace(notices=(("feedback", most),))

    def _add_turn(self, point: Point, enabled: int) -> Verdict | None:
        """Add the fingerprint of the turn; return the verdict of the progress guard, if it is enabled."""
        ctx = self._ctx
        if point.streaks is None:
            if ctx.limits.max_tool_errors:
                raise Unknowable("a restart lost its error counts: it was recorded with max_tool_errors 0")
        elif not self._blocked:  # a blocked call counts neither as an error nor as a success
            ctx.progress.error_streaks = dict(point.streaks)
        self._blocked = False
        if not enabled:
            return None
        if point.turn is None:
            raise Unknowable("its turns have no fingerprints: it was recorded with max_no_progress 0")
        return turn_accounting.add_turn(ctx, point.turn)

    def _end(self, goes_on: bool, wrapped: bool) -> str:  # noqa: FBT001 - two states of the run
        if not goes_on:
            return STOP
        return WRAP_UP if self._ctx.wrapping_up and not wrapped else ""

    def _decided(self, kind: Kind, end: str, refusal: Verdict | None) -> Decision:
        warned = bool(self._ctx.progress.warning)
        return Decision(kind, end, refusal, warned=warned, window=self._window, rows=self._own.rows)


_SOME: Final = cast("Any", [None])
"""Stands for the messages of a run, of which only the number counts here."""
