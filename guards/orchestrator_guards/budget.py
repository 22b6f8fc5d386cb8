"""Limit the resources that a run may use, and the attempts at one piece of work.

The source of the numbers is up to the caller.

Every guard takes (observed, limit), is evaluated *before* the next use, and allows exactly `limit` of them: ok iff
`limit == 0 or observed < limit`. Zero is unlimited. Settings reject a negative limit; here it refuses everything, and
so does an observed NaN.
"""

from __future__ import annotations

import math
from typing import overload

from orchestrator_guards.money import in_currency
from orchestrator_guards.verdict import Verdict

_ROUNDING = 1e-9
"""Tolerance for binary fractions: 10 * (1 - 0.8) is 1.9999999999999996 and means 2."""


def iterations(observed: int, limit: int) -> Verdict:
    """Decide whether the model may be called once more. `observed`: calls of the model so far.

    Example:
        >>> iterations(19, 20).ok, iterations(20, 20).ok
        (True, False)
    """
    return Verdict(limit == 0 or observed < limit, "iterations", observed, limit)


def input_tokens(observed: int, limit: int) -> Verdict:
    """Decide whether more prompt may be sent. `observed`: prompt tokens of the run so far."""
    return Verdict(limit == 0 or observed < limit, "input_tokens", observed, limit)


def output_tokens(observed: int, limit: int) -> Verdict:
    """Decide whether more output may be generated. `observed`: completion tokens of the run so far."""
    return Verdict(limit == 0 or observed < limit, "output_tokens", observed, limit)


def tokens(observed: int, limit: int) -> Verdict:
    """Decide whether more tokens may be used, in either direction. `observed`: input and output tokens so far."""
    return Verdict(limit == 0 or observed < limit, "tokens", observed, limit)


def host_budget(observed: int, limit: int = 1) -> Verdict:
    """Decide whether the host's own budget allows the run to continue. `observed`: 1 if it is exhausted, else 0."""
    ok = limit == 0 or observed < limit
    return Verdict(ok, "host_budget", observed, limit, "" if ok else "the host's own budget is exhausted")


def cost(observed: int, limit: int) -> Verdict:
    """Decide whether more money may be spent. Both in micro-units (see `money`); the verdict has the currency."""
    ok = limit == 0 or observed < limit
    return Verdict(ok, "cost", in_currency(observed), in_currency(limit))


def request_cost(observed: int, most: int, limit: int) -> Verdict:
    """Decide whether a request that costs at most `most` may be sent; ok iff `observed + most <= limit`.

    All are in micro-units; the verdict has the currency. `observed` includes the reservations for other requests.

    Example:
        >>> request_cost(60_000, 40_000, 100_000).ok
        True
        >>> request_cost(60_000, 40_001, 100_000).explain()
        'cost: 0.06 of 0.1 used (the next request can cost up to 0.040001)'
    """
    ok = limit == 0 or observed + most <= limit
    detail = "" if ok else f"the next request can cost up to {in_currency(most):.6f}"
    return Verdict(ok, "cost", in_currency(observed), in_currency(limit), detail)


def cost_unknown(observed: int, limit: int = 1, *, model: str = "") -> Verdict:
    """Decide whether a cost limit can be enforced.

    `observed`: requests to `model` whose cost is unknown; a limit of 1 allows none.
    """
    ok = limit == 0 or observed < limit
    return Verdict(
        ok, "cost_unknown", observed, limit, "" if ok else f"the price of model {model!r} is unknown"
    )


def elapsed(observed: float, limit: float) -> Verdict:
    """Decide whether time is left. Both in seconds; `observed` comes from the caller's monotonic clock."""
    return Verdict(limit == 0 or observed < limit, "elapsed", observed, limit)


def tool_calls(observed: int, limit: int) -> Verdict:
    """Decide whether one more tool call may run. `observed`: calls of all tools that ran or are about to run."""
    return Verdict(limit == 0 or observed < limit, "tool_calls", observed, limit)


def sub_calls(observed: int, limit: int) -> Verdict:
    """Decide whether one more model call may be sent inside a run.

    `observed`: model calls of the run and its child runs so far.
    """
    return Verdict(limit == 0 or observed < limit, "sub_calls", observed, limit)


def handoffs(observed: int, limit: int) -> Verdict:
    """Decide whether the conversation may be handed over once more. `observed`: handoffs of the run so far."""
    return Verdict(limit == 0 or observed < limit, "handoffs", observed, limit)


def repeated_handoff(observed: int, limit: int) -> Verdict:
    """Decide whether a handoff may be repeated.

    `observed`: earlier handoffs of the run between the same agents, with the same input and after the same last result.

    Example:
        >>> repeated_handoff(2, 3).ok, repeated_handoff(3, 3).ok
        (True, False)
    """
    ok = limit == 0 or observed < limit
    detail = "" if ok else "the same handoff, with the same input and the same last result"
    return Verdict(ok, "repeated_handoff", observed, limit, detail)


def tool_cap(tool: str, calls_so_far: int, limit: int) -> Verdict:
    """Decide whether `tool` may run once more. Evaluated BEFORE the call runs; count batch siblings in order.

    The count is stored under `tool_key(tool)`.

    Example:
        >>> [tool_cap("search", so_far, 2).ok for so_far in (0, 1, 2)]
        [True, True, False]
    """
    return Verdict(limit == 0 or calls_so_far < limit, "tool_cap", calls_so_far, limit, tool)


def retries(observed: int, limit: int) -> Verdict:
    """Decide whether the run may retry once more. `observed`: retries of the run so far, without first attempts."""
    return Verdict(limit == 0 or observed < limit, "retries", observed, limit)


def tool_errors(tool: str, streak: int, limit: int) -> Verdict:
    """Decide whether `tool` may fail once more. `streak`: its consecutive errors, see `next_streak`."""
    return Verdict(limit == 0 or streak < limit, "tool_errors", streak, limit, tool)


def restarts(observed: int, limit: int) -> Verdict:
    """Decide whether the loop may restart. `observed`: restarts so far.

    0 is unlimited, as in every guard: the loop itself decides whether restarts are enabled.
    """
    return Verdict(limit == 0 or observed < limit, "restarts", observed, limit)


def affordable(remaining: float, estimate: float, factor: float = 1.2) -> Verdict:
    """Decide whether the remaining amount covers a stage with a margin; ok iff `remaining >= estimate * factor`.

    The limit is the remaining amount and the observed value is the need, so observed == limit is ok: the stage would
    use it up exactly. The unit is tokens, or the common unit of both.

    Example:
        >>> affordable(remaining=6600, estimate=5500).ok, affordable(6599, 5500).ok
        (True, False)
    """
    need = estimate * factor
    ok = remaining + _ROUNDING >= need
    return Verdict(
        ok, "affordable", need, remaining, "" if ok else f"the stage needs {need:g}, {remaining:g} are left"
    )


def next_streak(streak: int, *, failed: bool, leaky: bool = False) -> int:
    """Return a tool's error streak after one more call.

    An error adds one. A success resets the streak, or subtracts one if `leaky`: a tool that fails every other time
    then never reaches the limit.

    Example:
        >>> next_streak(4, failed=True), next_streak(4, failed=False)
        (5, 0)
        >>> next_streak(4, failed=False, leaky=True)
        3
    """
    if failed:
        return streak + 1
    return max(streak - 1, 0) if leaky else 0


def tool_key(name: str) -> str:
    """Return the key of a tool's counters: its name, case folded."""
    return name.casefold()


@overload
def reserve(limit: int, share: float) -> int: ...
@overload
def reserve(limit: float, share: float) -> float: ...
def reserve(limit: float, share: float) -> float:
    """Return the soft limit that keeps `share` of `limit` for a wrap-up turn.

    Whole numbers round down, so any share above 0 keeps at least one. The result is never below 1, because 0 means
    unlimited. A limit of 1 therefore reserves nothing: one call cannot be split. 0 (unlimited) stays 0.

    Raises:
        ValueError: share is not in [0, 1).

    Example:
        >>> reserve(20, 0.1), reserve(5, 0.1), reserve(1, 0.1), reserve(0, 0.1), reserve(2.0, 0.25)
        (18, 4, 1, 0, 1.5)
    """
    if not 0 <= share < 1:
        raise ValueError(f"share must be at least 0 and below 1, got {share!r}")
    soft = limit * (1 - share)
    if isinstance(limit, int):
        return max(1, math.floor(soft + _ROUNDING)) if limit else 0
    return soft


def structured_retries(attempts: int, limit: int) -> Verdict:
    """Decide whether the model may repair output that does not match the schema. `attempts`: repairs so far.

    Example:
        >>> [structured_retries(attempts, 2).ok for attempts in (0, 1, 2)]
        [True, True, False]
    """
    return Verdict(limit == 0 or attempts < limit, "structured_retries", attempts, limit)


def completion_retries(attempts: int, limit: int) -> Verdict:
    """Decide whether an unusable answer (empty, an error object) may be requested again.

    `attempts`: repeated requests of the run so far.
    """
    return Verdict(limit == 0 or attempts < limit, "completion_retries", attempts, limit)


def task_attempts(attempts: int, limit: int) -> Verdict:
    """Decide whether one task may be executed once more. `attempts`: executions of that task so far."""
    return Verdict(limit == 0 or attempts < limit, "task_attempts", attempts, limit)


def refinements(attempts: int, limit: int) -> Verdict:
    """Decide whether nearly good work may be refined once more. `attempts`: refinements of the run so far."""
    return Verdict(limit == 0 or attempts < limit, "refinements", attempts, limit)


def qa_cycles(attempts: int, limit: int) -> Verdict:
    """Decide whether one more question and answer cycle may start. `attempts`: cycles so far."""
    return Verdict(limit == 0 or attempts < limit, "qa_cycles", attempts, limit)


def planning_retries(attempts: int, limit: int) -> Verdict:
    """Decide whether an invalid plan may be written again. `attempts`: rewrites so far."""
    return Verdict(limit == 0 or attempts < limit, "planning_retries", attempts, limit)


def replans(attempts: int, limit: int) -> Verdict:
    """Decide whether the run may return to planning once more. `attempts`: returns so far."""
    return Verdict(limit == 0 or attempts < limit, "replans", attempts, limit)
