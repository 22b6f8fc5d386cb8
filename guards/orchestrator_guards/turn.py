"""Describe one turn by digests: equal turns have equal fingerprints, in any process.

Arguments and results become 64-bit BLAKE2b digests here, so that a window of turns may be persisted and logged
without any of their text. The builtin `hash()` is not used, because it differs between processes.

JSON is compared as JSON (key order and blanks do not count), through `ascii(parsed)`: `repr` of a string depends on
the Unicode tables of the running Python, and `json.dumps` costs three times as much.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from operator import itemgetter
from typing import Final, Literal, NamedTuple

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
