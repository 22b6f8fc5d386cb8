"""Approvals: what exactly a person said yes to, and whether that yes still counts. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

DIGEST_VERSION: Final = 2
"""Of `approval_digest`: it changes with what that covers. A question with another version is asked again."""
LEAST: Final = 8
"""How many characters of a digest are enough to name it."""


class Asked(Protocol):
    """A question about one call, as far as an answer has to fit it."""

    @property
    def key(self) -> str:
        """Of the call."""
        ...

    @property
    def digest(self) -> str:
        """Of what is to be approved."""
        ...

    @property
    def expires_at(self) -> float:
        """Epoch seconds after which nobody can answer any more; 0 is never."""
        ...


Q = TypeVar("Q", bound=Asked)


class Refusal(NamedTuple):
    """Why an answer does not count."""

    kind: Literal["unasked", "answered", "several", "stale"]
    """Nothing is asked; somebody answered before; several are asked; it is too late, or about something else."""
    why: str
    """In words."""


def approval_digest(tool: str, arguments: str, *, run: str, call: str, fingerprint: str) -> str:
    """Return the SHA-256 (hex) of what is to be approved: this call of this run, with these arguments.

    Arguments are compared as JSON, so spacing and the order of members do not count; text that is no JSON,
    or is nested too deeply, counts as it is. `fingerprint` is the graph's: a changed machine needs a new approval.

    Example:
        >>> one = approval_digest("pay", '{"to": "x", "sum": 1}', run="r", call="1:0", fingerprint="f")
        >>> one == approval_digest("pay", '{"sum":1,"to":"x"}', run="r", call="1:0", fingerprint="f")
        True
    """
    parts = json.dumps([tool, _canonical(arguments), run, call, fingerprint], separators=(",", ":"))
    return hashlib.sha256(parts.encode(errors="surrogatepass")).hexdigest()


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):  # no JSON, or nested deeper than anybody reads
        return arguments


def judge_answer(
    asked: Collection[Q],
    decided: Mapping[str, Mapping[str, Any]],
    answer: Mapping[str, Any],
    *,
    now: float,
) -> Q | Refusal:
    """Return the question that an answer is about, or why it does not count.

    `asked` waits now, in order; `decided` is key -> the answer that counted, the last one last, with `by` and
    `decision`. Of `answer` count `call` and `digest`, where they are given, and `end`: an answer that ends the whole
    run need not say which of several questions it is about. `now` is epoch seconds.
    """
    key, given = answer.get("call"), answer.get("digest")
    fits = [one for one in asked if key in (None, one.key)]
    if not fits:
        first = next(reversed([*decided.values()]), None) if key is None else decided.get(key)
        if first is not None:
            return Refusal("answered", f"{first['by']} answered before ({first['decision']})")
        return Refusal(
            "unasked", "it asks nothing" if key is None else f"nothing is asked about call {key!r}"
        )
    if len(fits) > 1 and (given is not None or not answer.get("end")):
        return Refusal("several", f"several calls wait, name one: {', '.join(one.key for one in fits)}")
    stale = stale_approval(fits[0].digest, given, now=now, expires_at=fits[0].expires_at)
    return fits[0] if stale is None else Refusal("stale", stale)


def stale_approval(digest: str, given: str | None, *, now: float, expires_at: float) -> str | None:
    """Say why an answer does not count, or None. `given` may be the first characters of the digest, in either case.

    Without `given` the answer is to whatever is asked. Times are epoch seconds; `expires_at` 0 is never.

    Example:
        >>> stale_approval("0123456789abcdef", "01234567", now=1, expires_at=0) is None
        True
        >>> stale_approval("0123456789abcdef", "ffffffff", now=1, expires_at=0)
        'it is about other arguments: ffffffff was approved, 01234567 is asked for'
    """
    if expires_at and now >= expires_at:
        return "it came too late: the question has expired"
    if given is None:
        return None
    if len(given) < LEAST:
        return f"digest {given!r} is too short: give at least {LEAST} characters"
    if not digest.startswith(given.lower()):
        return f"it is about other arguments: {given[:LEAST]} was approved, {digest[:LEAST]} is asked for"
    return None
