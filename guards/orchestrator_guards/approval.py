"""Approvals: what exactly a person said yes to, and whether that yes still counts. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

DIGEST_VERSION: Final = 2
"""Of `approval_digest`: it changes with what that covers. A question with another version is asked again."""
LEAST: Final = 8
"""How many characters of a digest are enough to name it."""


class QuestionedCall(Protocol):
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


Q = TypeVar("Q", bound=QuestionedCall)


class Refusal(NamedTuple):
    """Why an answer does not count."""

    kind: Literal["unasked", "answered", "several", "stale"]
    """Nothing is asked; somebody answered before; several are asked; it is too late, or about something else."""
    why: str
    """In words."""


def approval_digest(
    tool: str,
    arguments: str,
    *,
    run: str,
    call: str,
    fingerprint: str,
    schema: Mapping[str, Any] | None = None,
    effect: str = "",
    approval: str = "",
    agent: str = "",
) -> str:
    """Return the SHA-256 (hex) of what is to be approved: this call of this run, by this tool, with these arguments.

    `arguments` is the canonical text, covered as it is. `schema`, `effect` and `approval` (`always`, `rule`, `never`)
    are the tool's, so that a yes for one tool is none for another of its name. `fingerprint` is the graph's: a changed
    machine needs a new approval. The version is covered too.

    Example:
        >>> one = approval_digest("pay", '{"to": "x"}', run="r", call="1:0", fingerprint="f", effect="pure")
        >>> one == approval_digest("pay", '{"to": "x"}', run="r", call="1:0", fingerprint="f", effect="idempotent")
        False
    """
    parts = [DIGEST_VERSION, agent, tool, schema, arguments, effect, approval, run, call, fingerprint]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


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
            return Refusal("answered", describe_answer(first))
        return Refusal(
            "unasked", "it asks nothing" if key is None else f"nothing is asked about call {key!r}"
        )
    if len(fits) > 1 and (given is not None or not answer.get("end")):
        return Refusal("several", f"several calls wait, name one: {', '.join(one.key for one in fits)}")
    stale = stale_approval(fits[0].digest, given, now=now, expires_at=fits[0].expires_at)
    return fits[0] if stale is None else Refusal("stale", stale)


def describe_answer(answer: Mapping[str, Any]) -> str:
    """Say who answered a question, what and when. `at` is epoch seconds.

    Example:
        >>> describe_answer({"by": "ann", "decision": "approve", "arguments": "{}", "at": 0.0})
        'ann answered before (approve with edited arguments, 1970-01-01 00:00:00 UTC)'
    """
    edited = " with edited arguments" if answer.get("arguments") is not None else ""
    end = " and end the run" if answer.get("end") else ""
    return f"{answer['by']} answered before ({answer['decision']}{edited}{end}{_moment(answer.get('at'))})"


def _moment(at: float | None) -> str:
    try:
        return "" if at is None else datetime.fromtimestamp(at, UTC).strftime(", %Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):  # no time that a calendar knows
        return ""


def repeats_answer(earlier: Mapping[str, Any], answer: Mapping[str, Any]) -> bool:
    """Tell whether an answer is the one that counts, given again by the same person.

    Both have `by` and `decision`; `arguments` are compared as JSON. A digest, where the answer names one, has to be
    that of the question, or its first characters. The reason (`why`) is no part of an answer.

    Example:
        >>> repeats_answer({"by": "ann", "decision": "approve"}, {"by": "ann", "decision": "approve"})
        True
        >>> repeats_answer({"by": "ann", "decision": "approve"}, {"by": "bob", "decision": "approve"})
        False
    """
    digest = answer.get("digest")
    about = (
        digest is None
        or stale_approval(str(earlier.get("digest", "")), digest, now=0.0, expires_at=0.0) is None
    )
    return about and _said(earlier) == _said(answer)


def _said(answer: Mapping[str, Any]) -> tuple[object, ...]:
    arguments = answer.get("arguments")
    edit = None if arguments is None else _as_json(arguments)
    return answer["by"], answer["decision"], edit, answer.get("content"), bool(answer.get("end"))


def _as_json(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):  # no JSON, or nested deeper than anybody reads
        return arguments


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
