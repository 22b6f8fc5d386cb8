"""Stop a run without progress: digests of turns, the repetition in a window of turns, the verdict and its consequence.

Arguments and results become 64-bit BLAKE2b digests here, so that a window of turns may be persisted and logged
without any of their text. The builtin `hash()` is not used, because it differs between processes.

JSON is compared as JSON (key order and blanks do not count), through `ascii(parsed)`: `repr` of a string depends on
the Unicode tables of the running Python, and `json.dumps` costs three times as much.

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

import json
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import islice
from operator import itemgetter
from typing import Final, Literal, NamedTuple

from orchestrator_guards.verdict import Verdict

Policy = Literal["strict", "poll", "cumulative"]
"""The meaning of an identical call of a tool: a repeat, a wait, or one more step."""

CANONICAL_ARGUMENTS: Final = 2048
"""Longer arguments, in characters, are compared as text: they are file contents, and parsing is expensive."""
CANONICAL_RESULT: Final = 256
"""Longer results likewise. A result that only looks different costs patience (`repeat` instead of `repeat_result`),
not the detection, so the limit is low: parsing 2 kB of JSON takes 100 µs."""

_NO_ARGUMENTS: Final = frozenset(("", "null", "\0{}"))
_STARTS: Final = frozenset('{["')


class ObservedCall(NamedTuple):
    """One tool call with its result, for the guard."""

    tool: str
    arguments: str
    """The raw JSON text as received; it may be empty or not JSON at all."""
    result: str
    """The text that the model reads."""
    failed: bool = False
    policy: Policy = "strict"


class TurnFingerprint(NamedTuple):
    """One turn's fingerprint. Tuples are sorted: the order inside a parallel batch does not count."""

    calls: tuple[str, ...]
    """One digest per call: tool name and arguments."""
    results: tuple[str, ...] = ()
    """One digest per call: the call and its result."""
    failed: bool = False
    """Whether there were calls and every one failed."""
    text: str = ""
    """Digest of the assistant's text, for turns without calls; else empty."""
    tools: frozenset[str] = frozenset()
    errors: tuple[str, ...] = ()
    """The distinct results of a failed turn without their calls; else empty."""
    advances: bool = False
    """Whether a cumulative call succeeded: then this turn counts as progress."""
    waits: bool = False
    """Whether a poll call is among the calls: repeating this turn counts, for a while, as waiting."""


_fingerprint: Callable[[tuple[object, ...]], TurnFingerprint] = partial(tuple.__new__, TurnFingerprint)


def fingerprint(calls: Sequence[ObservedCall], text: str = "") -> TurnFingerprint:
    """Return the fingerprint of one turn: its calls with their results, or its text if it has none.

    Example:
        >>> one = fingerprint([ObservedCall("read", '{"a": 1, "b": 2}', "ok")])
        >>> one == fingerprint([ObservedCall("READ", '{"b":2,"a":1}', "ok")])
        True
    """
    if len(calls) == 1:  # the common turn, where nothing needs sorting
        tool, arguments, result, failed, policy = calls[0]
        key = call_key(tool, arguments)
        content = canonical(result, CANONICAL_RESULT)
        return _fingerprint(
            (
                (key,),
                (digest(key + content),),
                failed,
                "",
                frozenset((tool.casefold(),)),
                (digest(content),) if failed else (),
                policy == "cumulative" and not failed,
                policy == "poll",
            )
        )
    if not calls:
        return TurnFingerprint((), text=digest(" ".join(text.split())))
    keys = [call_key(call.tool, call.arguments) for call in calls]
    contents = [canonical(call.result, CANONICAL_RESULT) for call in calls]
    failed = all(call.failed for call in calls)
    return TurnFingerprint(
        tuple(sorted(keys)),
        tuple(sorted([digest(key + content) for key, content in zip(keys, contents, strict=True)])),
        failed,
        "",
        frozenset([call.tool.casefold() for call in calls]),
        tuple(sorted({digest(content) for content in contents})) if failed else (),
        any(call.policy == "cumulative" and not call.failed for call in calls),
        any(call.policy == "poll" for call in calls),
    )


def call_key(tool: str, arguments: str) -> str:
    """Return the digest of one call: tool name (case folded) and canonical arguments.

    Example:
        >>> call_key("Search", '{"q": "x"}') == call_key("search", '{"q":"x"}')
        True
    """
    # A call is digested three times: before it runs, after that, and in its turn. Long ones are not cached.
    return (_key if len(arguments) > CANONICAL_ARGUMENTS else _known_key)(tool, arguments)


def _key(tool: str, arguments: str) -> str:
    text = canonical(arguments, CANONICAL_ARGUMENTS)
    return digest(f"{tool.casefold()}\0{'' if text in _NO_ARGUMENTS else text}")


_known_key = lru_cache(maxsize=256)(_key)


def call_keys(calls: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the later `TurnFingerprint.calls` of these (tool, arguments), before any of them has run."""
    return tuple(sorted([call_key(tool, arguments) for tool, arguments in calls]))


def canonical(text: str, most: int) -> str:
    """Return a form that is equal for equal JSON, and for other text that differs only in blanks.

    Text of more than `most` characters is returned unchanged, except for blanks around it.
    """
    text = text.strip()
    if len(text) > most:
        return text
    if text[:1] in _STARTS:
        try:
            value, end = _parse(text)
            if end == len(text):
                return f"\0{value!a}"
        except (ValueError, RecursionError):
            pass
    return " ".join(text.split())


def digest(text: str) -> str:
    """Return 16 hexadecimal digits that identify `text` (lone surrogates included)."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _sorted_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build an object in the order of its names; for a duplicate name the last value counts, as in `json`."""
    if len(pairs) > 1:
        pairs.sort(key=_name)
    return dict(pairs)


_name: Final = itemgetter(0)
_parse: Final = json.JSONDecoder(object_pairs_hook=_sorted_members).raw_decode


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
        >>> from orchestrator_guards.progress import TurnFingerprint
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
            repeats = _streak(window, lambda turn: turn == last, limit)
            evidence = f"the same text without a call, {repeats + 1} times in a row"
            found = Stall(StallKind.MONOLOGUE, repeats, evidence)
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
    other = _streak(
        window, lambda turn: turn.failed and turn.tools == last.tools, limit * wait * CHANGE_PATIENCE
    )
    same_evidence = f"{tools}: {same + 1} turns in a row failed with the same error"
    other_evidence = f"{tools}: {other + 1} turns in a row failed, errors differ"
    return _nearer(
        Stall(StallKind.ERROR_CYCLE, same, same_evidence, wait),
        Stall(StallKind.ERROR_CYCLE, other, other_evidence, wait * CHANGE_PATIENCE),
    )


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
    return _NONE


_NONE: Final = Escalation.NONE
"""For each turn: in Python 3.11 a member that is read from its class is a call of the metaclass."""


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
