"""Compare a recorded run with the same run under another policy, up to the first difference.

The guards of the run are evaluated again, in order, under any policy. The functions of the loop itself decide: those
that its hooks call at the same places. Only the numbers come from the records. No model, no tool, no clock.

The recorded policy is proved first: evaluated from the raw inputs, it must give every recorded decision. After the
first difference the record says nothing about the run. The comparison still continues behind a difference that is only
another message to the model, as if the model had answered as recorded, and reports the stop that it finds there apart.
It ends at a restart that only one of the policies has: a model that starts again does not answer as recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, cast

from orchestrator.errors import ConfigError
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.llm_loop.graph import may_continue, may_restart, verdicts, whole_budgets
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import ContextUse, LoopContext, LoopEvent, RunUsage
from orchestrator.machines.team.graph import handoff_verdict
from orchestrator.machines.team.model import HANDED_OVER, TeamEvent
from orchestrator.runtime.backtest.policy import RECORDED, HostGuardCall, Policy
from orchestrator.runtime.backtest.trace import Kind, Point, Row, RunTrace
from orchestrator_callbacks.llm_loop import compaction, turn_accounting
from orchestrator_callbacks.llm_loop.admission import verdicts_for
from orchestrator_callbacks.llm_loop.answer import decide_retry, retry_verdicts
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_callbacks.llm_loop.request_usage import requires_price
from orchestrator_callbacks.llm_loop.turn_accounting import record_guards
from orchestrator_guards import (
    Guardrail,
    Verdict,
    completion_retries,
    cost_unknown,
    elapsed,
    first_refusal,
    request_cost,
    reserve,
    retries,
)
from orchestrator_guards.evaluation import FUNCTIONS, given, read_row, row_of

STOP: Final = "stop"
WRAP_UP: Final = "wrap_up"
RESTART: Final = "restart"
RETRY: Final = "retry"
"""Ends of a decision: the run ends, it gets its last turn, it starts again from its first messages, it gives a better
answer."""


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
        if late is not None and point.kind in {"calls", "completion"}:
            return Decision(point.kind, STOP, late, rows=own.rows)
        deciders: Mapping[Kind, Callable[[Point], Decision]] = {
            "input": self._guardrails,
            "request": self._request,
            "calls": self._calls,
            "turn": self._turn,
            "output": self._guardrails,
            "completion": self._completion,
            "handoff": self._handoff,
        }
        return deciders[point.kind](point)

    def _late(self, point: Point) -> Verdict | None:
        """Return the refusal of a run that was interrupted in the state before this record; None if it was not."""
        most = self._ctx.limits.max_seconds
        return elapsed(most, most) if most and point.t > most else None

    # ---- guardrails ----

    def _guardrails(self, point: Point) -> Decision:
        """Decide about the input or the output: by the policy's guardrails, else by the recorded verdicts."""
        found = [read_row(row) for row in point.rows]
        checks = self._policy.input_guards if point.kind == "input" else self._policy.output_guards
        if checks is None:
            decided = [(one.verdict, one.guardrail.action) for one in found if one.guardrail is not None]
        else:
            known = {name: value for one in found for name, value in one.named.items()}
            decided = [(_decided_by(check, known), check.on_refusal) for check in checks]
        for verdict, action in decided:
            if not verdict.ok:
                end = RETRY if action == "retry" and not self._ctx.wrapping_up else STOP
                return Decision(point.kind, end, verdict)
        return Decision(point.kind)

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
            # By a parent run, whose limits and usage stay as recorded.
            self._own.attach_guards(point.by_parents)
            later = next((Verdict(*row[:4]) for row in point.by_parents if not row[0]), None)
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
            if number or not turn_accounting.grant_turn(self._run):
                return verdict, False
        return first, first is not None

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

    def _handoff(self, point: Point) -> Decision:
        verdict = handoff_verdict(self._ctx, *point.handoffs)
        self._own.attach_guards((row_of(verdict),))
        return Decision("handoff", "" if verdict.ok else STOP, verdict, rows=self._own.rows)

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


def _decided_by(check: Guardrail, known: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a guardrail on recorded inputs. Raises Unknowable, ConfigError."""
    if missing := [name for name in check.parameters if name not in known]:
        raise Unknowable(f"its records do not have {missing[0]!r}, which guardrail {check.name!r} needs")
    try:
        verdict = check.decide(known)
        if check.decide(known) == verdict:
            return verdict
    except ValueError as error:
        raise ConfigError(str(error)) from error
    raise ConfigError(
        f"guardrail {check.name} gave two answers to the same inputs; a guardrail must be a pure function"
    )


_SOME: Final = cast("Any", [None])
"""Stands for the messages of a run, of which only the number counts here."""


Change = Literal["none", "stop", "other_message", "open_end", "other_reason"]
"""The first difference: none; the run ends earlier; the model gets another message, or a call does not run; the run
continues beyond its record; the run ends at the same place for another reason."""
Effect = Literal["harm", "benefit", "undecided"]
"""Effect of an earlier stop: on a completed run; on a run that failed, stalled or ran out; on any other run."""

_BENEFIT: Final = frozenset((Outcome.FAILED, Outcome.NO_PROGRESS, Outcome.BUDGET_EXCEEDED, Outcome.PARTIAL))


@dataclass(frozen=True, slots=True)
class GuardDifference:
    """A decision of a guard that differs."""

    guard: str
    """Name of the guard; "" for a message that no guard decides."""
    observed: float
    limit: float
    turn: int
    """Answers of the model before it."""
    seq: int
    """Number of the record."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Resources that a recorded run used after a point."""

    requests: int = 0
    tokens: int = 0
    costs: Mapping[str, int] = field(default_factory=dict)
    """Currency ("" is an unknown one) -> cost in millionths of it."""
    seconds: float = 0.0

    def __add__(self, other: Saving) -> Saving:
        return Saving(
            self.requests + other.requests,
            self.tokens + other.tokens,
            Counter(self.costs) + Counter(other.costs),
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class RunComparison:
    """One run under the policy."""

    run_id: str
    agent: str
    outcome: str
    """Recorded outcome; "" for a run that has not ended."""
    reason: str
    change: Change
    difference: GuardDifference | None = None
    """The first difference."""
    effect: Effect | None = None
    """Effect of the stop, for the change `stop`."""
    saved: Saving = field(default_factory=Saving)
    """For the change `stop`. A wrap-up turn counts as one request of unknown size, which is not subtracted."""
    assumed: GuardDifference | None = None
    """For the change `other_message`: where the run would stop if the model answered as recorded. Not a claim."""
    assumed_effect: Effect | None = None
    assumed_saved: Saving = field(default_factory=Saving)
    left_out: str = ""
    """Why the run is left out; "" if it is not."""


_FINAL: Final = frozenset(("open_end", "other_reason"))
"""Changes behind which nothing can follow."""


class _Step(NamedTuple):
    point: Point
    recorded: Decision


def prove(trace: RunTrace) -> list[Decision]:
    """Return the decisions of a run under its recorded policy. Raises Unproved, Unknowable, ConfigError.

    Each must have the recorded verdicts and the recorded result.
    """
    evaluator = Evaluator(trace, RECORDED)
    found: list[Decision] = []
    for point in trace.points:
        decision = evaluator.decide(point)
        by_host = point.kind in {"input", "output"}  # the host's functions: their verdicts stay as recorded
        if not by_host and (problem := _disproof(point, decision)) is not None:
            raise Unproved(f"record {point.seq}: {problem}")
        found.append(decision)
    return found


class Unproved(Exception):
    """The recorded policy does not give the recorded decisions."""


def compare(trace: RunTrace, policy: Policy, recorded: Sequence[Decision] | None = None) -> RunComparison:
    """Compare a run with the same run under a policy. `recorded` is the result of `prove`, if it is known.

    Raises:
        ConfigError: A guard of the policy raises, or is not a pure function.
    """
    plain = trace.run_id, trace.agent, trace.outcome, trace.reason
    if trace.problem:
        return RunComparison(*plain, "none", left_out=trace.problem)
    if (stage := _without_guardrails(trace, policy)) is not None:
        why = f"its records have no inputs of {stage}: its agent had no such guardrails"
        return RunComparison(*plain, "none", left_out=why)
    try:
        found = _compared(trace, policy, prove(trace) if recorded is None else recorded)
    except Unproved as error:
        return RunComparison(
            *plain, "none", left_out=f"its recorded decisions do not follow from its inputs: {error}"
        )
    except Unknowable as error:
        return RunComparison(*plain, "none", left_out=str(error))
    return RunComparison(*plain, found.pop("change", "none"), **found)


def _without_guardrails(trace: RunTrace, policy: Policy) -> str | None:
    """Return the stage of guardrails of the policy at which the run has no record of any, although it was there."""
    kinds = {point.kind for point in trace.points}
    if policy.input_guards and "input" not in kinds:
        return "input_guards"
    answered = trace.outcome in {Outcome.COMPLETED, Outcome.PARTIAL} and trace.reason != HANDED_OVER
    return "output_guards" if policy.output_guards and answered and "output" not in kinds else None


def _disproof(point: Point, decision: Decision) -> str | None:
    """Return how a recorded decision differs from the evaluated one, or None."""
    known = [row for row in point.rows if (row[4] if len(row) > _STANDARD else row[1]) in FUNCTIONS]
    if not point.rows_lost and [tuple(row[:_STANDARD]) for row in known] != [
        tuple(row[:_STANDARD]) for row in decision.rows
    ]:
        return "the guards give other verdicts"
    if not all(read_row(row).holds() for row in (*filter(_has_inputs, known), *point.by_parents)):
        return "a guard gives another verdict for its recorded inputs"
    if point.kind == "calls":
        denied = tuple(position for position, call in enumerate(point.calls) if call.denied)
        return None if denied == decision.denied else "other calls were refused"
    if (event := _EVENTS.get((point.kind, decision.end))) is not None and point.event != event:
        return f"the event is {point.event}, the guards give {event}"
    if point.kind == "turn" and (point.warned, point.window or decision.window) != (
        decision.warned,
        decision.window,
    ):
        return "the warning for the model, or the window of turns, differs"
    return None


def _has_inputs(row: Row) -> bool:
    return len(row) > _STANDARD and row[4] not in {"progress", "repeated_success"}


_STANDARD: Final = 4
_EVENTS: Final[Mapping[tuple[str, str], str]] = {
    ("turn", ""): LoopEvent.BUDGET_OK,
    ("turn", WRAP_UP): LoopEvent.BUDGET_OK,
    ("turn", RESTART): LoopEvent.RESTART_LOOP,
    ("turn", STOP): LoopEvent.BUDGET_EXCEEDED,
    ("completion", ""): LoopEvent.COMPLETION_RETRY,
    ("completion", WRAP_UP): LoopEvent.COMPLETION_RETRY,
    ("completion", STOP): LoopEvent.FAILURE,
    ("request", STOP): LoopEvent.FAILURE,
    ("handoff", ""): TeamEvent.HAND_OVER,
    ("handoff", STOP): TeamEvent.FAILURE,
}


def _compared(trace: RunTrace, policy: Policy, recorded: Sequence[Decision]) -> dict[str, Any]:
    evaluator = Evaluator(trace, policy)
    first: dict[str, Any] = {}
    blocked: dict[str, Any] = {}
    steps = iter(map(_Step, trace.points, recorded))
    for step in steps:
        decision = evaluator.decide(step.point)
        change = _change(step.recorded, decision)
        if change == "stop":
            return first | _stop(trace, step, decision, steps, assumed=bool(first))
        first, blocked = first or blocked, {}
        if change == "none":
            continue
        is_last = change in _FINAL or RESTART in {decision.end, step.recorded.end}
        if first and is_last:
            return first
        if first:
            continue
        found = {"change": change, "difference": _difference(step.point, decision, step.recorded)}
        if is_last:
            return found
        if decision.blocked:  # if the run stops after this turn, the model reads no message before
            blocked = found
        else:
            first = found
    return first or blocked


def _change(recorded: Decision, decision: Decision) -> Change:
    """Return the difference between the decisions at one point."""
    if decision.end != recorded.end:
        return _END_CHANGE.get((recorded.end, decision.end), "other_message")
    if decision.kind == "calls":
        return "none" if decision.denied == recorded.denied else _other_calls(recorded, decision)
    if decision.end == STOP:
        ours, theirs = decision.verdict, recorded.verdict
        return "none" if ours is None or theirs is None or ours.guard == theirs.guard else "other_reason"
    return "none" if decision.notices == recorded.notices else "other_message"


def _other_calls(recorded: Decision, decision: Decision) -> Change:
    """Return the difference between admissions that refuse other calls. A limit that refuses a call ends the run."""
    if decision.blocked or recorded.blocked:
        return "other_message"
    if not recorded.denied:
        return "stop"
    if not decision.denied:
        return "open_end"
    return _LAST_TURN[bool(recorded.notices), bool(decision.notices)]


_LAST_TURN: Final[dict[tuple[bool, bool], Change]] = {
    (False, False): "other_reason",
    (False, True): "open_end",
    (True, False): "stop",
    (True, True): "other_message",
}
"""(Recorded run, run under the policy) gets a wrap-up turn that names the refusal -> change."""

_END_CHANGE: Final[dict[tuple[str, str], Change]] = {
    ("", STOP): "stop",
    ("", WRAP_UP): "stop",
    (RESTART, STOP): "stop",
    (RESTART, WRAP_UP): "stop",
    (WRAP_UP, STOP): "stop",
    (RETRY, STOP): "stop",
    (RETRY, ""): "stop",
    ("", RETRY): "open_end",
    (STOP, RETRY): "open_end",
    (STOP, ""): "open_end",
    (STOP, WRAP_UP): "open_end",
    (STOP, RESTART): "open_end",
    (WRAP_UP, ""): "open_end",
    (WRAP_UP, RESTART): "open_end",
}
"""(Recorded end, end under the policy) -> change. A restart instead of another turn changes the messages."""


def _difference(point: Point, decision: Decision, recorded: Decision) -> GuardDifference:
    """Return the place of a difference: by the refusal, else by the message that only one of the decisions has."""
    turn = point.iteration + (point.kind == "calls")
    verdict = recorded.verdict if decision.verdict is None else decision.verdict
    if verdict is not None and not verdict.ok:
        return GuardDifference(verdict.guard, verdict.observed, verdict.limit, turn, point.seq)
    if decision.blocked or recorded.blocked:
        return GuardDifference("no_progress", 0, 0, turn, point.seq)
    notices = [
        str(one[0])
        for one in (*decision.notices, *recorded.notices)
        if (one in decision.notices) != (one in recorded.notices)
    ]
    message = notices[0] if notices else "restarts"
    return GuardDifference(_GUARD_OF.get(message, message), 0, 0, turn, point.seq)


_GUARD_OF: Final = {"warning": "no_progress", "feedback": "completion_retries"}
"""Kind of a message -> the guard behind it."""


def _stop(
    trace: RunTrace, step: _Step, decision: Decision, later: Iterator[_Step], *, assumed: bool
) -> dict[str, Any]:
    point = end = step.point
    accepts = point.kind == "output" and not decision.end  # an answer that was refused is the output
    found = _difference(point, decision, step.recorded if accepts else decision)
    if point.kind == "calls":  # the turn is completed: its other calls run
        end = next((step.point for step in later if step.point.kind == "turn"), point)
    saved, effect = _saving(trace, end), _effect(trace)
    if accepts and effect == "harm":
        effect = "undecided"
    if assumed:
        return {"assumed": found, "assumed_effect": effect, "assumed_saved": saved}
    return {"change": "stop", "difference": found, "effect": effect, "saved": saved}


def _saving(trace: RunTrace, point: Point) -> Saving:
    used, total = point.usage, trace.usage
    cost = max(0, (total.cost_micros or 0) - (used.cost_micros or 0))
    tokens = total.input_tokens + total.output_tokens - used.input_tokens - used.output_tokens
    return Saving(
        max(0, trace.requests - point.iteration),
        max(0, tokens),
        {trace.currency: cost} if cost else {},
        max(0.0, trace.seconds - (point.seconds if point.kind == "turn" else point.t)),
    )


def _effect(trace: RunTrace) -> Effect:
    if trace.outcome == Outcome.COMPLETED:
        return "harm"
    return "benefit" if trace.outcome in _BENEFIT else "undecided"
