"""Separate the content of a record from the data that may be shown: the only place that defines content.

The rules list the members that may be shown. An unlisted member is content, so a member that is added to a record
later is never published by mistake. Shown are names, numbers, times, digests, and the decisions with their author and
reason (`by`, `why`), because an audit needs them. Content are messages, arguments, results, texts of errors, memory,
outputs, and the launch options of the run. A tool name that the model invented and an unknown finish reason of a
vendor are content in the place of a name; a fixed word replaces them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from orchestrator.llm.message import finish_word
from orchestrator.llm.usage import Usage

UNREGISTERED = "_unregistered"
"""Replaces the name of an unregistered tool, as in metrics and logs."""

Spec: TypeAlias = "Mapping[str, Spec | None]"
"""Member -> None: shown completely; a Spec: its visible part (of each element, for a list)."""


def _whole(*names: str) -> dict[str, Spec | None]:
    return dict.fromkeys(names)


_CONTEXT: Spec = {
    **_whole(
        "limits", "iteration", "base", "recalled", "next", "wrapping_up", "degraded", "refinements", "rubric"
    ),
    "usage": None,
    **_whole(
        "number",
        "plan_status",
        "plan_number",
        "expires_at",
        "previewed",
        "config",
        "shown",
        "again",
        "confirmed",
    ),
    "consent": _whole("plan_id", "version", "digest", "by", "at"),
    # not `by_tool`: its keys are names, and the model may have invented some
    "spent": _whole("usage", "below", "seconds", "tool_calls", "retries", "restarts", "compactions"),
}
_CALL: Spec = _whole(
    "key", "position", "tool", "effect", "digest", "registered", "agent", "timeout", "total_timeout"
)

SHOWN: Mapping[str, Spec] = MappingProxyType(
    {
        "created": {
            **_whole(
                "schema", "graph", "fingerprint", "table_changes", "at", "parent_run_id", "conversation_id"
            ),
            **_whole("agent", "agent_version", "definition", "tags", "currency"),
            "context": _CONTEXT,
        },
        "transition": {
            **_whole("seq", "event", "source", "dest", "at", "t", "internal", "iteration", "guard"),
            **_whole("tokens", "reason", "dwell", "guards", "attempts", "fingerprint", "table_changes"),
            "error": {
                **_whole("type", "reason", "state", "hook", "where"),
                "fields": _whole("kind", "status", "request_id"),
            },
        },
        "context": {**_CONTEXT, "messages": _whole("keep")},
        "answer": _whole(
            "iteration",
            "model",
            "finish_reason",
            "seconds",
            "retries",
            "offered",
            "usage",
            "at",
            "t",
            "tool_calls",
            "attempts",
        ),
        "intent": {**_whole("effect", "turn", "key", "step", "change", "path", "mode", "at"), "calls": _CALL},
        "step": _whole("step", "status", "at"),
        "done": {
            **_whole("effect", "key", "step", "exit", "tool", "registered", "outcome", "seconds", "queued"),
            **_whole("cut", "at", "whole"),
            "returned": _whole("type"),
        },
        "memory": _whole("stored"),
        "stage": {**_whole("seq", "state", "tokens", "counts", "at", "error"), "made": _whole("score")},
        "program": _whole("mark", "call", "name", "host"),
        "program_ended": _whole("mark"),
        "coding_agent": {
            **_whole("call", "agent", "model", "session"),
            "usage": _whole(*(item.name for item in fields(Usage))),
        },
        "rolled_back": _whole("effect", "key", "step", "outcome", "at"),
        "fan": _whole("state", "visit", "items", "join", "concurrency", "at"),
        "joined": _whole(
            "state",
            "visit",
            "ok",
            "observed",
            "limit",
            "detail",
            "branches",
            "completed",
            "agree",
            "ended",
            "at",
        ),
        "asked": {
            **_whole("key", "tool", "digest", "version", "why", "expires_at", "epoch", "effect", "at"),
            "verdict": _whole("ok", "guard", "observed", "limit"),
        },
        "approval": _whole("key", "digest", "decision", "by", "why", "at", "id", "number", "end"),
        "control": _whole("id", "key", "kind", "by", "why", "at", "number", "refused"),
        "started": _whole("id", "agent", "run_id", "by", "at", "number", "refused"),
        "claimed": _whole("at", "by"),
        "reserved": _whole("usage", "sub_calls"),
        "unparked": _whole("at"),
        "parked": _whole(
            "reason",
            "before",
            "at",
            "t",
            "calls",
            "tools",
            "by",
            "why",
            "programs",
            "guards",
            "attempts",
            "fingerprint",
            "table_changes",
        ),
        "resumed": {
            **_whole("at", "by", "limits", "charged", "ended"),
            **_whole("agent", "from_agent", "agent_version", "definition"),
            "context": _CONTEXT,
        },
        "migrated": {
            **_whole("from", "to", "table_changes", "at", "by", "state", "next"),
            "context": _CONTEXT,
        },
        "recovered": {**_whole("from", "to", "state", "why", "at"), "context": _CONTEXT},
        "ended": {**_whole("outcome", "reason", "at", "t"), "returned": _whole("type")},
    }
)
"""Kind -> visible part of its body. A kind that is not here is content as a whole."""


class RecordParts(NamedTuple):
    """A body, split in two."""

    shown: dict[str, Any]
    content: dict[str, Any]

    @property
    def left_out(self) -> list[str]:
        """Names of the members that are content, `error.message` for a nested one."""
        return sorted(_names(self.content, ""))


def parted(kind: str, body: Mapping[str, Any]) -> RecordParts:
    """Split a record's body into the part that may be published and its content."""
    return _parted(body, SHOWN.get(kind, {}))


def _parted(body: Mapping[str, Any], spec: Spec) -> RecordParts:
    parts = RecordParts({}, {})
    for name, value in body.items():
        inner = _rule_for(name, spec)
        if inner is _CONTENT:
            parts.content[name] = value
        elif inner is None or value is None:
            if name == "finish_reason":
                parts.shown[name] = finish_word(value)
            else:
                parts.shown[name] = tool_word(body) if name == "tool" and value is not None else value
            parts.content.update({name: value} if parts.shown[name] != value else {})
        elif isinstance(value, Mapping):
            part = _parted(value, inner)
            parts.shown[name] = part.shown
            if part.content:
                parts.content[name] = part.content
        elif isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
            each = [_parted(one, inner) for one in value]
            parts.shown[name] = [one.shown for one in each]
            if any(one.content for one in each):
                parts.content[name] = [one.content for one in each]
        else:
            parts.content[name] = value
    return parts


_CONTENT: Spec = MappingProxyType({})
"""The rule of a member that is not listed."""


def _rule_for(name: str, spec: Spec) -> Spec | None:
    """Return the rule of a member. `spent.seconds` is a part of `spent`."""
    whole, _, part = name.partition(".")
    found = spec.get(whole, _CONTENT)
    return found.get(part, _CONTENT) if part and found is not None else found


def tool_word(body: Mapping[str, Any]) -> str:
    """Return the tool of a record: its name, or UNREGISTERED for a name that the model invented."""
    return UNREGISTERED if body.get("registered") is False else str(body.get("tool", ""))


def _names(content: Mapping[str, Any], prefix: str) -> list[str]:
    """Return the name of each content member; for a partial one, the names of its parts."""
    found: list[str] = []
    for name, value in content.items():
        full = f"{prefix}{name}"
        partly = isinstance(value, Mapping) and value and full in _PARTLY
        found += _names(value, f"{full}.") if partly else [full]
    return found


_PARTLY = frozenset(
    (
        "context",
        "context.spent",
        "context.consent",
        "consent",
        "error",
        "error.fields",
        "messages",
        "calls",
        "spent",
        "made",
        "returned",
        "verdict",
    )
)
"""Members whose parts are separated above."""
