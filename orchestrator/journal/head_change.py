"""Derive the head of a run from its records: one place for all stores.

A store calls `head_change` for each append and writes the result into the run's row, in the same transaction. Nothing
is decoded for it. The tokens and the cost are the totals that the guards count: those of the run and of its child runs,
with the estimates for lost answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from orchestrator.kernel.journal import ENDING_KINDS, PARKING_KINDS, Record, RunHead
from orchestrator.llm.usage import Usage

OPEN: Final = "open"
PARKED: Final = "parked"
ENDED: Final = "ended"

LONGEST: Final = 200
"""Most characters of `waiting`."""
_NO_STATE: Final = frozenset(("created", "context"))
_CHANGES: Final = _NO_STATE | {"resumed", "migrated", "recovered"}
"""Kinds with changes of the context: the body of `context`, the member `context` of the others."""
HEAD_KINDS: Final = _CHANGES | {"transition", "asked", *PARKING_KINDS, *ENDING_KINDS}
"""Kinds that change the head of a run."""


Used: TypeAlias = tuple[int, int | None]
"""Tokens, and the cost in millionths of the currency."""
NOTHING: Final[Used] = (0, None)


class RunStatus(NamedTuple):
    """Status of a run by its last record."""

    status: str = OPEN
    reason: str = ""
    outcome: str = ""
    waiting: str = ""


class Fixed(NamedTuple):
    """The values of a head that rarely change: by a migration, a changed table, or a resumption by another agent."""

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


def total(
    tokens: int | None, cost: int | None, child_tokens: int, child_cost: int | None
) -> tuple[int | None, int | None]:
    """Return tokens and cost with those of child runs. An unknown cost counts as 0 if the other is known."""
    known = [one for one in (cost, child_cost) if one is not None]
    return None if tokens is None else tokens + child_tokens, sum(known) if known else None


class Identity(NamedTuple):
    """What a run belongs to; None for a part that has not changed."""

    fingerprint: str | None = None
    """Fingerprint of the graph, after a migration or a change of the live machine."""
    agent: str | None = None
    """Name of the agent, after a transfer."""
    agent_version: str | None = None
    """Version of the agent that drives the run, if it is another one."""

    def over(self, before: Identity | None) -> Identity:
        """Return this change after an earlier one."""
        pairs = zip(self, before or Identity(), strict=True)
        return Identity(*(was if now is None else now for now, was in pairs))


class HeadChange(NamedTuple):
    """The change of a head by an append."""

    status: RunStatus
    state: tuple[str, float] | None = None
    """The new state, and the time of its entry; None if the state has not changed."""
    usage: Used | None = None
    """Usage of the run itself so far; None if it has not changed."""
    children: Used | None = None
    """Usage of its child runs so far; None if it has not changed."""
    identity: Identity | None = None
    """What the run belongs to; None if that has not changed."""

    def then(self, later: HeadChange) -> HeadChange:
        """Return both changes as one."""
        return HeadChange(
            later.status,
            later.state or self.state,
            later.usage or self.usage,
            later.children or self.children,
            later.identity.over(self.identity) if later.identity else self.identity,
        )

    @property
    def total(self) -> tuple[int | None, int | None]:
        """Tokens and cost of the run with its child runs; None if they are not known."""
        own, below = self.usage or (None, None), self.children or NOTHING
        return total(own[0], own[1], below[0], below[1])


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
    usage: Used | None = None
    children: Used | None = None
    identity: Identity | None = None
    for kind, body in records:
        if kind == "transition":
            if "internal" not in body:
                state = str(body.get("dest", "")), float(body.get("at", 0.0))
            if "fingerprint" in body:
                identity = Identity(str(body["fingerprint"])).over(identity)
        elif kind in PARKING_KINDS:
            if "fingerprint" in body:
                identity = Identity(str(body["fingerprint"])).over(identity)
        elif kind in _CHANGES:
            changes = body if kind == "context" else body.get("context") or {}
            own, below = _used(changes)
            usage, children = own or usage, below or children
            if kind not in _NO_STATE and body.get("state"):
                state = str(body["state"]), float(body.get("at", 0.0))
            changed = _identity(kind, body)
            identity = changed.over(identity) if changed else identity
    return HeadChange(status_after(*records[-1]), state, usage, children, identity)


def _identity(kind: str, body: Mapping[str, Any]) -> Identity | None:
    """Return what a record changes about the graph and the agent of a run; None for nothing."""
    if kind == "migrated":
        return Identity(str(body["to"]))
    if kind != "resumed" or not ("agent" in body or "agent_version" in body):
        return None
    return Identity(None, body.get("agent"), body.get("agent_version"))


def head_of(records: Iterable[tuple[str, Mapping[str, Any]]]) -> HeadChange:
    """Return the head from all records of a run, also from records that do not name the tools of open questions."""
    asked: dict[str, str] = {}
    whole: list[tuple[str, Mapping[str, Any]]] = []
    for kind, body in records:
        if kind == "asked":
            asked[str(body.get("key"))] = str(body.get("tool", ""))
        elif kind in PARKING_KINDS and "tools" not in body:
            body = {**body, "tools": sorted({asked[key] for key in body.get("calls", ()) if key in asked})}  # noqa: PLW2901
        whole.append((kind, body))
    return head_change(whole) if whole else UNCHANGED


def disagreement(head: RunHead, records: Iterable[Record]) -> str:
    """Return a sentence if the head of a run is not that of its records, else ""."""
    change = head_of((record.kind, record.body) for record in records)
    if change.identity and change.identity.agent not in {None, head.agent}:
        return f"run {head.run_id!r}: its row and its records do not agree about its agent"
    found = (*(change.state or ("", None)), *change.total, change.status.outcome)
    if found == (head.state, head.state_since, head.tokens, head.cost_micros, head.outcome):
        return ""
    return (
        f"run {head.run_id!r}: its row and its records do not agree about its state, outcome, tokens or cost"
    )


def _used(context: Mapping[str, Any]) -> tuple[Used | None, Used | None]:
    """Return the usage of the run and of its child runs in changes of a context, None where they have none.

    A host's context may have any form.
    """
    try:
        if "spent" in context:
            spent = context["spent"]
            below = _part(spent, "below")
            return _numbers(_part(spent, "usage")), NOTHING if below is None else _numbers(
                _part(below, "usage")
            )
        own, below = context.get("spent.usage", context.get("usage")), context.get("spent.below")
        if own is None and type(context.get("tokens")) is int:
            own = Usage(context["tokens"])
        return _numbers(own), None if below is None else _numbers(_part(below, "usage"))
    except (TypeError, ValueError, AttributeError):
        return None, None


def _numbers(usage: Any) -> Used | None:
    if usage is None:
        return None
    used = Usage.of(usage)
    return used.input_tokens + used.output_tokens, used.cost_micros


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name)
