"""What the end of a window of turns repeats, in five kinds, and how often.

A window holds the fingerprints of the last `window_size(limit)` turns of a run, oldest first.

Decided here, beyond DESIGN §3:
- A stall is counted in *repeats*: how often the latest turn, or the whole cycle it closes, repeated what
  was before. The first time is 0, so four identical turns are 3 repeats, and stop at limit 3.
- A cycle counts in whole rounds: A,B,A,B,A,B is 2 repeats of (A, B), as A,A,A is 2 repeats of A.
  Counting turns instead would stop a lamp switched on, off, on, off, on.
- Patience multiplies the limit instead of dividing the count: x2 where something changed (the results
  of the same calls; both arguments and messages of failing calls), x10 for a wait.
- A wait is a turn, or a cycle with a turn, that holds a poll call, failed or not: a server that
  does not answer yet is what one polls for. The budget of tool errors bounds it anyway.
- A turn in which a cumulative call succeeded ends every count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from orchestrator_guards.turn import Turn

WINDOW: Final = 16
"""Turns a window holds at least: enough for a cycle of four at limit 3."""
MAX_PERIOD: Final = WINDOW // 2
"""Longest cycle looked for, in turns."""
POLL_PATIENCE: Final = 10
"""A wait may be repeated this many times more often than a strict call."""
CHANGE_PATIENCE: Final = 2
"""So may calls whose outcome changes each time."""


class StallKind(StrEnum):
    """How the end of a window repeats itself."""

    REPEAT = "repeat"
    """The same calls, results differ."""
    REPEAT_RESULT = "repeat_result"
    """The same calls with the same results."""
    ALTERNATION = "alternation"
    """A cycle of two or more turns, results included: A,B,A,B."""
    ERROR_CYCLE = "error_cycle"
    """Every call fails, turn after turn, with the same message or the same tools; arguments vary."""
    MONOLOGUE = "monologue"
    """The same text without a call."""


class Stall(NamedTuple):
    """What the end of a window repeats, whether or not that is too often."""

    kind: StallKind | None
    repeats: int = 0
    evidence: str = ""
    """Plain words: tool names and counts."""
    patience: int = 1
    """The limit is multiplied by this."""
    period: int = 1
    """Turns in one round of what repeats; above 1 for an alternation only."""


_NOTHING: Final = Stall(None)


def window_size(limit: int) -> int:
    """Return how many turns a window must hold for every kind to be able to reach its limit.

    Except cycles of three or more turns with a poll call in them: the cap on iterations ends those.
    """
    return max(WINDOW, limit * CHANGE_PATIENCE * POLL_PATIENCE + 2)


def stall(window: Sequence[Turn], limit: int) -> Stall:
    """Return what the latest turn repeats, the kind nearest to its limit if several fit.

    Counting stops at the limit; limit 0 is off and finds nothing. Cost: constant (about 1 µs) for a
    turn that repeats nothing, else linear in the repeats.

    Example:
        >>> turn = Turn(("a",), ("a1",), tools=frozenset({"search"}))
        >>> stall([turn, turn, turn], limit=3).repeats
        2
    """
    if limit == 0 or len(window) <= 1 or window[-1].advances:
        return _NOTHING
    last, previous = window[-1], window[-2]
    found = _NOTHING
    if last.calls == previous.calls or last.failed:
        found = _in_a_row(window, last, previous, limit)
        if found.repeats >= limit * found.patience:
            return found
    if last in islice(reversed(window), 2, MAX_PERIOD + 1):  # one pass in C: most turns are new
        for period in range(2, min(MAX_PERIOD, len(window) // 2) + 1):
            found = _nearer(found, _cycle(window, period, limit))
    return found


def _in_a_row(window: Sequence[Turn], last: Turn, previous: Turn, limit: int) -> Stall:
    """Every kind but the alternation: what the latest turn shares with those just before it."""
    found = _NOTHING
    if not last.calls:
        if last == previous:
            found = _monologue(window, last, limit)
    elif last.calls == previous.calls:
        found = _repeated(window, last, limit)
    if last.failed and previous.failed:
        found = _nearer(found, _failing(window, last, limit))
    return found


def _repeated(window: Sequence[Turn], last: Turn, limit: int) -> Stall:
    """The same calls: with the same results, or with results that change."""
    tools, wait = _tools(last), _wait(last)
    same = _streak(window, lambda turn: turn.results == last.results, limit * wait)
    calls = _streak(window, lambda turn: turn.calls == last.calls, limit * wait * CHANGE_PATIENCE)
    same_evidence = f"{tools}: same arguments, same result, {same + 1} times in a row"
    calls_evidence = f"{tools}: same arguments, {calls + 1} times in a row, results differ"
    return _nearer(
        Stall(StallKind.REPEAT_RESULT, same, same_evidence, wait),
        Stall(StallKind.REPEAT, calls, calls_evidence, wait * CHANGE_PATIENCE),
    )


def _failing(window: Sequence[Turn], last: Turn, limit: int) -> Stall:
    """Turns that fail altogether: with the same message, or the same tools with other messages."""
    tools, wait = _tools(last), _wait(last)
    same = _streak(window, lambda turn: turn.failed and turn.errors == last.errors, limit * wait)
    other = _streak(window, lambda turn: _fails_alike(turn, last), limit * wait * CHANGE_PATIENCE)
    same_evidence = f"{tools}: {same + 1} turns in a row failed with the same error"
    other_evidence = f"{tools}: {other + 1} turns in a row failed, errors differ"
    return _nearer(
        Stall(StallKind.ERROR_CYCLE, same, same_evidence, wait),
        Stall(StallKind.ERROR_CYCLE, other, other_evidence, wait * CHANGE_PATIENCE),
    )


def _fails_alike(turn: Turn, last: Turn) -> bool:
    return turn.failed and turn.tools == last.tools


def _monologue(window: Sequence[Turn], last: Turn, limit: int) -> Stall:
    repeats = _streak(window, lambda turn: turn == last, limit)
    return Stall(StallKind.MONOLOGUE, repeats, f"the same text without a call, {repeats + 1} times in a row")


def _cycle(window: Sequence[Turn], period: int, limit: int) -> Stall:
    """A cycle of `period` turns that the latest turn closes; whole rounds beyond the first."""
    latest = [window[-1 - i] for i in range(period)]
    wait = POLL_PATIENCE if any(turn.waits for turn in latest) else 1
    end = min(len(window), period * (limit * wait + 1))
    matches = period
    while matches < end and window[-1 - matches] == latest[matches % period]:
        matches += 1
    repeats = matches // period - 1
    if repeats == 0 or latest.count(latest[0]) == period or any(turn.advances for turn in latest):
        return _NOTHING
    tools = "; ".join(_tools(turn) for turn in reversed(latest))
    evidence = f"the same {period} turns ({tools}) with the same results, {repeats + 1} times over"
    return Stall(StallKind.ALTERNATION, repeats, evidence, wait, period)


def _streak(window: Sequence[Turn], same: Callable[[Turn], bool], most: int) -> int:
    """Count the turns just before the latest that are `same`, up to `most`."""
    count = 0
    for turn in islice(reversed(window), 1, most + 1):
        if turn.advances or not same(turn):
            break
        count += 1
    return count


def _nearer(one: Stall, other: Stall) -> Stall:
    """Return the stall that has used up more of its limit; the first of two equals."""
    return other if other.repeats * one.patience > one.repeats * other.patience else one


def _wait(turn: Turn) -> int:
    return POLL_PATIENCE if turn.waits else 1


def _tools(turn: Turn) -> str:
    return ", ".join(sorted(turn.tools)) or "an answer without a call"
