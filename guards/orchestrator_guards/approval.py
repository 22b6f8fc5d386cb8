"""Approvals: what exactly a person approved, and whether the approval still counts. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

DIGEST_VERSION: Final = 2
"""Version of `approval_digest`: it changes when the digest covers other data. A question of another version is
repeated."""
LEAST: Final = 8
"""Minimum characters of a digest that identify it."""


class QuestionedCall(Protocol):
    """A question about one call: the parts that an answer must match."""

    @property
    def key(self) -> str:
        """Key of the call."""
        ...

    @property
    def digest(self) -> str:
        """Digest of the approval."""
        ...

    @property
    def expires_at(self) -> float:
        """Epoch seconds after which no answer counts; 0 is never."""
        ...


Q = TypeVar("Q", bound=QuestionedCall)


class Refusal(NamedTuple):
    """The reason why an answer does not count."""

    kind: Literal["unasked", "answered", "several", "stale", "input"]
    """No question is open; it was answered before; several questions are open; it is too late, or about another
    call; it does not fit the form of the question."""
    why: str
    """The reason in words."""


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
    """Return the SHA-256 (hex) of an approval: this call of this run, by this tool, with these arguments.

    The version is covered too.

    Args:
        tool: Name of the tool.
        arguments: Canonical text of the arguments, covered unchanged.
        run: Id of the run.
        call: Key of the call.
        fingerprint: Fingerprint of the graph: a changed machine needs a new approval.
        schema: Schema of the tool, so that an approval never applies to another tool of the same name.
        effect: Effect of the tool, for the same reason.
        approval: Approval setting of the tool (`always`, `rule`, `never`), for the same reason.
        agent: Name of the agent.

    Example:
        >>> one = approval_digest("pay", '{"to": "x"}', run="r", call="1:0", fingerprint="f", effect="pure")
        >>> one == approval_digest("pay", '{"to": "x"}', run="r", call="1:0", fingerprint="f", effect="idempotent")
        False
    """
    parts = [DIGEST_VERSION, agent, tool, schema, arguments, effect, approval, run, call, fingerprint]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def judge_answer(
    asked: Collection[Q],
    decided: Mapping[str, Mapping[str, Any]],
    answer: Mapping[str, Any],
    *,
    now: float,
) -> Q | Refusal:
    """Return the question that an answer is about, or the reason why it does not count.

    Args:
        asked: The open questions, in order.
        decided: Key -> the answer that counted, newest last, with `by` and `decision`.
        answer: The answer. Its `call` and `digest` count if present, and `end`: an answer that ends the whole run
            need not name one of several questions.
        now: Epoch seconds.
    """
    key, given = answer.get("call"), answer.get("digest")
    fits = [one for one in asked if key in (None, one.key)]
    if not fits:
        first = next(reversed([*decided.values()]), None) if key is None else decided.get(key)
        if first is not None:
            return Refusal("answered", describe_answer(first))
        return Refusal(
            "unasked", "no question is open" if key is None else f"no question is open about call {key!r}"
        )
    if len(fits) > 1 and (given is not None or not answer.get("end")):
        return Refusal("several", f"several calls wait: name one of {', '.join(one.key for one in fits)}")
    stale = stale_approval(fits[0].digest, given, now=now, expires_at=fits[0].expires_at)
    return fits[0] if stale is None else Refusal("stale", stale)


def describe_answer(answer: Mapping[str, Any]) -> str:
    """Describe the author, the content and the time of an answer. `at` is epoch seconds.

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
    except (OverflowError, OSError, ValueError):  # no time that a calendar can represent
        return ""


def repeats_answer(earlier: Mapping[str, Any], answer: Mapping[str, Any]) -> bool:
    """Return whether an answer repeats the one that counts, by the same person.

    Both have `by` and `decision`; `arguments` are compared as JSON. A digest in the answer must be that of the
    question, or its first characters. The reason (`why`) is not part of an answer.

    Example:
        >>> repeats_answer({"by": "ann", "decision": "approve"}, {"by": "ann", "decision": "approve"})
        True
        >>> repeats_answer({"by": "ann", "decision": "approve"}, {"by": "bob", "decision": "approve"})
        False
    """
    about = _digest_fault(str(earlier.get("digest", "")), answer.get("digest")) is None
    return about and _said(earlier) == _said(answer)


def _said(answer: Mapping[str, Any]) -> tuple[object, ...]:
    arguments = answer.get("arguments")
    edit = None if arguments is None else _as_json(arguments)
    return answer["by"], answer["decision"], edit, answer.get("content"), bool(answer.get("end"))


def _as_json(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):  # not JSON, or nested too deeply
        return arguments


def stale_approval(digest: str, given: str | None, *, now: float, expires_at: float) -> str | None:
    """Return the reason why an answer does not count, or None.

    Args:
        digest: Digest of the question.
        given: Digest in the answer, or its first characters, in either case. None answers the open question.
        now: Epoch seconds.
        expires_at: Epoch seconds; 0 is never.

    Example:
        >>> stale_approval("0123456789abcdef", "01234567", now=1, expires_at=0) is None
        True
        >>> stale_approval("0123456789abcdef", "ffffffff", now=1, expires_at=0)
        'it is about other arguments: ffffffff was approved, 01234567 is asked for'
    """
    if expires_at and now >= expires_at:
        return "it came too late: the question has expired"
    return _digest_fault(digest, given)


def _digest_fault(digest: str, given: str | None) -> str | None:
    """Return why the digest in an answer is not that of the question, or None. An answer may have no digest."""
    if given is None:
        return None
    if len(given) < LEAST:
        return f"digest {given!r} is too short: give at least {LEAST} characters"
    if not digest.startswith(given.lower()):
        return f"it is about other arguments: {given[:LEAST]} was approved, {digest[:LEAST]} is asked for"
    return None


GATES: Final = (
    "state",
    "project_open",
    "not_cancelling",
    "plan",
    "drift",
    "ai",
    "token_budget",
    "limits",
    "preview_acknowledged",
    "logging_ready",
)
"""Every gate, the most important first."""


class BlockedGate(NamedTuple):
    """A gate that blocks the action."""

    gate: str
    """One of GATES."""
    reason: str
    """The reason in words, without the contents of files."""
    next_steps: tuple[str, ...] = ()
    """Commands that would help."""
    retryable_now: bool = False
    """Whether a repetition of the same action may work now."""
    code: str = ""
    """Code in the table of errors, if any."""


def first_blocked(found: Iterable[BlockedGate | None]) -> BlockedGate | None:
    """Return the blocked gate that comes first in GATES; None if all are open.

    Example:
        >>> blocked = [BlockedGate("drift", "a.py was changed"), None, BlockedGate("state", "it is Idle")]
        >>> first_blocked(blocked).gate
        'state'
        >>> first_blocked([None]) is None
        True
    """
    shut = [one for one in found if one is not None]
    return min(shut, key=lambda one: GATES.index(one.gate), default=None)
