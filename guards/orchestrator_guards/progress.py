"""Stop a run without progress: the verdict on a window of turns, and the action that follows."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from orchestrator_guards.repetition import POLL_PATIENCE, Stall, stall
from orchestrator_guards.turn import Policy, TurnFingerprint
from orchestrator_guards.verdict import Verdict


class Escalation(StrEnum):
    """The action for a stall, in rising order."""

    NONE = "none"
    WARN = "warn"
    """Report the repetition to the model."""
    BLOCK = "block"
    """Do not run the next turn if its calls are those of `expected`."""
    STOP = "stop"


def progress(window: Sequence[TurnFingerprint], limit: int) -> Verdict:
    """Decide whether the run makes progress: ok iff `limit == 0` or repeats < limit x patience of the kind.

    `observed` is the repeats, `limit` the limit multiplied by the patience, `detail` the kind and the evidence. Both
    numbers may be passed to `escalation` unchanged.
    """
    found = stall(window, limit)
    allowed = limit * found.patience
    ok = limit == 0 or found.repeats < allowed
    return Verdict(ok, "no_progress", found.repeats, allowed, _detail(found) if found.kind else "")


def escalation(repeats: float, limit: float) -> Escalation:
    """Return the action at `repeats` of `limit`: stop at the limit, block one before, warn two before.

    The very first turn (0 repeats) never warns; at limit 1 it already blocks its repetition.

    Example:
        >>> [escalation(repeats, 3).value for repeats in range(4)]
        ['none', 'warn', 'block', 'stop']
    """
    if limit == 0:
        return Escalation.NONE
    if repeats >= limit:
        return Escalation.STOP
    if repeats == limit - 1:
        return Escalation.BLOCK
    if repeats == limit - 2 and repeats >= 1:
        return Escalation.WARN
    return Escalation.NONE


def expected(window: Sequence[TurnFingerprint], found: Stall) -> TurnFingerprint | None:
    """Return the turn that would make the stall one longer, None for an empty window.

    If `escalation` returns block, compare its `calls` with `call_keys` of the model's next calls. If they are equal
    do not run them, and append this same turn to the window in place of a fingerprint: a blocked call has no result
    of its own, and must count as the repeat that it is.
    """
    return window[-found.period] if len(window) >= found.period else None


def repeated_success(successes: int, limit: int, policy: Policy = "strict") -> Verdict:
    """Decide about a call that succeeded `successes` times in a row with the same arguments and result.

    Evaluated BEFORE the next identical call; limit N allows exactly N executions, `POLL_PATIENCE` times as many for a
    poll call, and any number for a cumulative one.
    """
    if policy == "cumulative":
        return Verdict(ok=True, guard="repeated_success", observed=successes)
    allowed = limit * POLL_PATIENCE if policy == "poll" else limit
    return Verdict(limit == 0 or successes < allowed, "repeated_success", successes, allowed)


def _detail(found: Stall) -> str:
    allowance = f"; allowed {found.patience} times the limit" if found.patience > 1 else ""
    return f"{found.kind}: {found.evidence}{allowance}"
