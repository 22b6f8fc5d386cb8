"""Compare a recorded run with the same run under another policy, up to the first difference.

The recorded policy is proved first: evaluated from the raw inputs, it must give every recorded decision. After the
first difference the record says nothing about the run. The comparison still continues behind a difference that is only
another message to the model, as if the model had answered as recorded, and reports the stop that it finds there apart.
It ends at a restart that only one of the policies has: a model that starts again does not answer as recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.llm_loop.model import LoopEvent
from orchestrator.runtime.backtest.evaluator import RESTART, STOP, WRAP_UP, Decision, Evaluator, Unknowable
from orchestrator.runtime.backtest.policy import RECORDED, Policy
from orchestrator.runtime.backtest.trace import Point, Row, RunTrace
from orchestrator_guards.evaluation import FUNCTIONS, read_row

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
    cost_micros: int = 0
    seconds: float = 0.0

    def __add__(self, other: Saving) -> Saving:
        return Saving(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.cost_micros + other.cost_micros,
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
        if (problem := _disproof(point, decision)) is not None:
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
    try:
        found = _compared(trace, policy, prove(trace) if recorded is None else recorded)
    except Unproved as error:
        return RunComparison(
            *plain, "none", left_out=f"its recorded decisions do not follow from its inputs: {error}"
        )
    except Unknowable as error:
        return RunComparison(*plain, "none", left_out=str(error))
    return RunComparison(*plain, found.pop("change", "none"), **found)


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
_EVENTS: Final = {
    ("turn", ""): LoopEvent.BUDGET_OK,
    ("turn", WRAP_UP): LoopEvent.BUDGET_OK,
    ("turn", RESTART): LoopEvent.RESTART_LOOP,
    ("turn", STOP): LoopEvent.BUDGET_EXCEEDED,
    ("completion", ""): LoopEvent.COMPLETION_RETRY,
    ("completion", WRAP_UP): LoopEvent.COMPLETION_RETRY,
    ("completion", STOP): LoopEvent.FAILURE,
    ("request", STOP): LoopEvent.FAILURE,
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
            return first | _stop(trace, step.point, decision, steps, assumed=bool(first))
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
        if _only_one_has(one, decision, recorded)
    ]
    message = notices[0] if notices else "restarts"
    return GuardDifference(_GUARD_OF.get(message, message), 0, 0, turn, point.seq)


def _only_one_has(notice: object, decision: Decision, recorded: Decision) -> bool:
    return (notice in decision.notices) != (notice in recorded.notices)


_GUARD_OF: Final = {"warning": "no_progress", "feedback": "completion_retries"}
"""Kind of a message -> the guard behind it."""


def _stop(
    trace: RunTrace, point: Point, decision: Decision, later: Iterator[_Step], *, assumed: bool
) -> dict[str, Any]:
    found = _difference(point, decision, decision)
    end = point
    if point.kind == "calls":  # the turn is completed: its other calls run
        end = next((step.point for step in later if step.point.kind == "turn"), point)
    saved, effect = _saving(trace, end), _effect(trace)
    if assumed:
        return {"assumed": found, "assumed_effect": effect, "assumed_saved": saved}
    return {"change": "stop", "difference": found, "effect": effect, "saved": saved}


def _saving(trace: RunTrace, point: Point) -> Saving:
    used, total = point.usage, trace.usage
    tokens = total.input_tokens + total.output_tokens - used.input_tokens - used.output_tokens
    return Saving(
        max(0, trace.requests - point.iteration),
        max(0, tokens),
        max(0, (total.cost_micros or 0) - (used.cost_micros or 0)),
        max(0.0, trace.seconds - (point.seconds if point.kind == "turn" else point.t)),
    )


def _effect(trace: RunTrace) -> Effect:
    if trace.outcome == Outcome.COMPLETED:
        return "harm"
    return "benefit" if trace.outcome in _BENEFIT else "undecided"
