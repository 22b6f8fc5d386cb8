"""Derive the head of a run from its records: one place for all stores.

A store calls `head_change` for each append and writes the result into the run's row, in the same transaction. Nothing
is decoded for it. The tokens and the cost are the totals that the guards count: those of the run and of its child runs,
with the estimates for lost answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from orchestrator.kernel.journal import ENDING_KINDS, PARKING_KINDS, Record, RunHead
from orchestrator.llm.usage import Usage

OPEN: Final = "open"
PARKED: Final = "parked"
ENDED: Final = "ended"

LONGEST: Final = 200
"""Most characters of `waiting`."""
_WITH_CONTEXT: Final = frozenset(("created", "resumed", "migrated", "recovered"))
"""Kinds whose body has changes of the context as a member; the body of `context` is such changes."""
HEAD_KINDS: Final = _WITH_CONTEXT | {"context", "transition", "asked", *PARKING_KINDS, *ENDING_KINDS}
"""Kinds that change the head of a run."""


class RunStatus(NamedTuple):
    """Status of a run by its last record."""

    status: str = OPEN
    reason: str = ""
    outcome: str = ""
    waiting: str = ""


class Fixed(NamedTuple):
    """The values of a head that never change."""

    run_id: str
    graph: str
    fingerprint: str
    created_at: float
    parent_run_id: str | None
    conversation_id: str | None
    agent: str = ""
    agent_version: str = ""
    tags: str = "{}"

    @classmethod
    def of(cls, run_id: str, body: Mapping[str, Any], now: float) -> Fixed:
        """Return the values from the body of the `created` record."""
        return cls(
            run_id,
            str(body.get("graph", "")),
            str(body.get("fingerprint", "")),
            float(body.get("at", now)),
            body.get("parent_run_id"),
            body.get("conversation_id"),
            str(body.get("agent") or ""),
            str(body.get("agent_version") or ""),
            orjson.dumps(dict(body.get("tags") or {}), option=orjson.OPT_SORT_KEYS).decode(),
        )


class HeadChange(NamedTuple):
    """The change of a head by an append."""

    status: RunStatus
    state: tuple[str, float] | None = None
    """The new state, and the time of its entry; None if the state has not changed."""
    usage: tuple[int, int | None] | None = None
    """Tokens and cost (millionths of the currency) so far; None if they have not changed."""

    def then(self, later: HeadChange) -> HeadChange:
        """Return both changes as one."""
        return HeadChange(later.status, later.state or self.state, later.usage or self.usage)


def status_after(kind: str, body: Mapping[str, Any]) -> RunStatus:
    """Return the status of a run whose last record is this one."""
    if kind in ENDING_KINDS:
        return RunStatus(ENDED, str(body.get("reason") or ""), str(body.get("outcome") or ""))
    if kind in PARKING_KINDS:
        return RunStatus(PARKED, str(body.get("reason") or ""), "", _waiting(body))
    return _IS_OPEN


_IS_OPEN: Final = RunStatus()
UNCHANGED: Final = HeadChange(_IS_OPEN)


def _waiting(body: Mapping[str, Any]) -> str:
    """Return what a parked run waits for: the tools whose calls a person must decide, or the questions."""
    names = body.get("tools") or body.get("questions") or ()
    return ", ".join(map(str, names))[:LONGEST]


def head_change(records: Sequence[tuple[str, Mapping[str, Any]]]) -> HeadChange:
    """Return the change by an append: kind and body of each record, encoded or not."""
    state: tuple[str, float] | None = None
    usage: tuple[int, int | None] | None = None
    for kind, body in records:
        if kind == "transition":
            if "internal" not in body:
                state = str(body.get("dest", "")), float(body.get("at", 0.0))
        elif kind == "context":
            usage = _used(body) or usage
        elif kind in _WITH_CONTEXT:
            usage = _used(body.get("context") or {}) or usage
            if kind != "created" and body.get("state"):
                state = str(body["state"]), float(body.get("at", 0.0))
    return HeadChange(status_after(*records[-1]), state, usage)


def head_of(records: Iterable[tuple[str, Mapping[str, Any]]]) -> HeadChange:
    """Return the head from all records of a run, also from records that do not name the tools of open questions."""
    asked: dict[str, str] = {}
    whole = UNCHANGED
    for kind, body in records:
        if kind == "asked":
            asked[str(body.get("key"))] = str(body.get("tool", ""))
        elif kind in PARKING_KINDS and "tools" not in body:
            body = {**body, "tools": sorted({asked[key] for key in body.get("calls", ()) if key in asked})}  # noqa: PLW2901
        whole = whole.then(head_change([(kind, body)]))
    return whole


def disagreement(head: RunHead, records: Iterable[Record]) -> str:
    """Return a sentence if the head of a run is not that of its records, else ""."""
    status, state, usage = head_of((record.kind, record.body) for record in records)
    found = (*(state or ("", None)), *(usage or (None, None)), status.outcome)
    if found == (head.state, head.state_since, head.tokens, head.cost_micros, head.outcome):
        return ""
    return (
        f"run {head.run_id!r}: its row and its records do not agree about its state, outcome, tokens or cost"
    )


def _used(context: Mapping[str, Any]) -> tuple[int, int | None] | None:
    """Return tokens and cost from changes of a context, None if they have none. A host's context may have any form."""
    try:
        if "spent" in context:
            own, below = _part(context["spent"], "usage"), _part(context["spent"], "below")
            used = Usage.of(own) if below is None else Usage.of(own) + Usage.of(_part(below, "usage"))
        elif "usage" in context:
            used = Usage.of(context["usage"])
        elif type(context.get("tokens")) is int:
            used = Usage(context["tokens"])
        else:
            return None
        return used.input_tokens + used.output_tokens, used.cost_micros
    except (TypeError, ValueError, AttributeError):
        return None


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name)
