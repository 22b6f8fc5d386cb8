"""Detect a repetition at the end of a window of turns, of five kinds, and count it.

A window holds the fingerprints of the last `window_size(limit)` turns of a run, oldest first.

- A stall is counted in *repeats*: how often the latest turn, or the whole cycle that it closes, repeated the turns
  before. The first time is 0, so four identical turns are 3 repeats, and stop at limit 3.
- A cycle counts in whole rounds: A,B,A,B,A,B is 2 repeats of (A, B), as A,A,A is 2 repeats of A. A count of turns
  would stop a lamp that is switched on, off, on, off, on.
- Patience multiplies the limit instead of dividing the count: x2 if something changed (the results of the same calls;
  both arguments and messages of failing calls), x10 for a wait.
- A wait is a turn, or a cycle with a turn, that has a poll call, failed or not: polling is for servers that do not
  answer yet. The budget of tool errors limits it anyway.
- A turn in which a cumulative call succeeded ends every count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from orchestrator_guards.turn import TurnFingerprint

WINDOW: Final = 16
"""Minimum turns of a window: enough for a cycle of four at limit 3."""
MAX_PERIOD: Final = WINDOW // 2
"""Longest detected cycle, in turns."""
POLL_PATIENCE: Final = 10
"""Factor on the limit for a wait, compared with a strict call."""
CHANGE_PATIENCE: Final = 2
"""Factor on the limit for calls whose outcome changes each time."""


class StallKind(StrEnum):
    """The kind of a repetition at the end of a window."""

    REPEAT = "repeat"
    """The same calls with different results."""
    REPEAT_RESULT = "repeat_result"
    """The same calls with the same results."""
    ALTERNATION = "alternation"
    """A cycle of two or more turns, results included: A,B,A,B."""
    ERROR_CYCLE = "error_cycle"
    """Every call fails, in several turns, with the same message or the same tools; arguments vary."""
    MONOLOGUE = "monologue"
    """The same text without a call."""


class Stall(NamedTuple):
    """The repetition at the end of a window, below or above the limit."""

    kind: StallKind | None
    repeats: int = 0
    evidence: str = ""
    """Plain words: tool names and counts."""
    patience: int = 1
    """Factor on the limit."""
    period: int = 1
    """Turns in one round of the repetition; above 1 only for an alternation."""


_NOTHING: Final = Stall(None)


def window_size(limit: int) -> int:
    """Return the number of turns that a window must hold so that every kind can reach its limit.

    Cycles of three or more turns with a poll call are excepted: the limit of iterations ends those.
    """
    return max(WINDOW, limit * CHANGE_PATIENCE * POLL_PATIENCE + 2)


def stall(window: Sequence[TurnFingerprint], limit: int) -> Stall:
    """Return the repetition of the latest turn, the kind nearest to its limit if several match.

    Counting stops at the limit; limit 0 is off and finds nothing. Cost: constant (about 1 µs) for a turn that repeats
    nothing, else linear in the repeats.

    Example:
        >>> from orchestrator_guards.turn import TurnFingerprint
        >>> turn = TurnFingerprint(("a",), ("a1",), tools=frozenset({"search"}))
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


def _in_a_row(
    window: Sequence[TurnFingerprint], last: TurnFingerprint, previous: TurnFingerprint, limit: int
) -> Stall:
    """Return every kind but the alternation: the latest turn compared with those just before it."""
    found = _NOTHING
    if not last.calls:
        if last == previous:
            found = _monologue(window, last, limit)
    elif last.calls == previous.calls:
        found = _repeated(window, last, limit)
    if last.failed and previous.failed:
        found = _nearer(found, _failing(window, last, limit))
    return found


def _repeated(window: Sequence[TurnFingerprint], last: TurnFingerprint, limit: int) -> Stall:
    """Return a repetition of the same calls, with the same results or with changing ones."""
    tools, wait = _tools(last), _wait(last)
    same = _streak(window, lambda turn: turn.results == last.results, limit * wait)
    calls = _streak(window, lambda turn: turn.calls == last.calls, limit * wait * CHANGE_PATIENCE)
    same_evidence = f"{tools}: same arguments, same result, {same + 1} times in a row"
    calls_evidence = f"{tools}: same arguments, {calls + 1} times in a row, results differ"
    return _nearer(
        Stall(StallKind.REPEAT_RESULT, same, same_evidence, wait),
        Stall(StallKind.REPEAT, calls, calls_evidence, wait * CHANGE_PATIENCE),
    )


def _failing(window: Sequence[TurnFingerprint], last: TurnFingerprint, limit: int) -> Stall:
    """Return a repetition of turns that fail completely: with one message, or the same tools with several messages."""
    tools, wait = _tools(last), _wait(last)
    same = _streak(window, lambda turn: turn.failed and turn.errors == last.errors, limit * wait)
    other = _streak(window, lambda turn: _fails_alike(turn, last), limit * wait * CHANGE_PATIENCE)
    same_evidence = f"{tools}: {same + 1} turns in a row failed with the same error"
    other_evidence = f"{tools}: {other + 1} turns in a row failed, errors differ"
    return _nearer(
        Stall(StallKind.ERROR_CYCLE, same, same_evidence, wait),
        Stall(StallKind.ERROR_CYCLE, other, other_evidence, wait * CHANGE_PATIENCE),
    )


def _fails_alike(turn: TurnFingerprint, last: TurnFingerprint) -> bool:
    return turn.failed and turn.tools == last.tools


def _monologue(window: Sequence[TurnFingerprint], last: TurnFingerprint, limit: int) -> Stall:
    repeats = _streak(window, lambda turn: turn == last, limit)
    return Stall(StallKind.MONOLOGUE, repeats, f"the same text without a call, {repeats + 1} times in a row")


def _cycle(window: Sequence[TurnFingerprint], period: int, limit: int) -> Stall:
    """Return a cycle of `period` turns that the latest turn closes; counts whole rounds after the first."""
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


def _streak(window: Sequence[TurnFingerprint], same: Callable[[TurnFingerprint], bool], most: int) -> int:
    """Count the turns just before the latest that are `same`, up to `most`."""
    count = 0
    for turn in islice(reversed(window), 1, most + 1):
        if turn.advances or not same(turn):
            break
        count += 1
    return count


def _nearer(one: Stall, other: Stall) -> Stall:
    """Return the stall with the larger share of its limit; the first of two equals."""
    return other if other.repeats * one.patience > one.repeats * other.patience else one


def _wait(turn: TurnFingerprint) -> int:
    return POLL_PATIENCE if turn.waits else 1


def _tools(turn: TurnFingerprint) -> str:
    return ", ".join(sorted(turn.tools)) or "an answer without a call"
