"""What of a record is content: the one place that says what people and models said to each other.

Told apart by what may be shown, not by what may not: a member that nobody listed here is content, so one that
is added to a record later is never handed around by mistake. Kept are names, numbers, times, digests, and who
decided what and why (`by`, `why`: that is what an audit is about). Content are messages, arguments, results,
texts of errors, memory, outputs, and how the run was launched. The name of a tool that the model made up, and a reason
for stopping that no vendor is known to give, are content in the place of a name: a fixed word is shown for them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from orchestrator.llm.message import finish_word

UNREGISTERED = "_unregistered"
"""Stands for the name of a tool that nobody registered, as in metrics and logs."""

Spec: TypeAlias = "Mapping[str, Spec | None]"
"""Member -> None: shown whole; a Spec: what of it is shown (of each element, where it is a list)."""


def _whole(*names: str) -> dict[str, Spec | None]:
    return dict.fromkeys(names)


_CONTEXT: Spec = {
    **_whole(
        "limits", "iteration", "base", "recalled", "next", "wrapping_up", "degraded", "refinements", "rubric"
    ),
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
    # not `by_tool`: its keys are names, those that a model made up among them
    "spent": _whole("usage", "below", "seconds", "tool_calls", "retries", "restarts", "compactions"),
}
_CALL: Spec = _whole("key", "position", "tool", "effect", "digest", "registered")

SHOWN: Mapping[str, Spec] = MappingProxyType(
    {
        "created": {
            **_whole("schema", "graph", "fingerprint", "at", "parent_run_id", "conversation_id"),
            "context": _CONTEXT,
        },
        "transition": {
            **_whole("seq", "event", "source", "dest", "at", "t", "internal", "iteration", "guard"),
            **_whole("tokens", "reason", "dwell"),
            "error": _whole("type", "reason", "state", "hook"),
        },
        "context": {**_CONTEXT, "messages": _whole("keep")},
        "answer": _whole(
            "iteration", "model", "finish_reason", "seconds", "retries", "usage", "at", "t", "tool_calls"
        ),
        "intent": {**_whole("effect", "turn", "key", "step", "change", "path", "mode", "at"), "calls": _CALL},
        "step": _whole("step", "status", "at"),
        "done": _whole(
            "effect", "key", "step", "exit", "tool", "registered", "outcome", "seconds", "queued", "cut", "at"
        ),
        "memory": _whole("stored"),
        "stage": {**_whole("seq", "state", "tokens", "counts", "at", "error"), "made": _whole("score")},
        "program": _whole("mark", "call", "name", "host"),
        "program_ended": _whole("mark"),
        "rolled_back": _whole("effect", "key", "step", "outcome", "at"),
        "asked": {
            **_whole("key", "tool", "digest", "version", "why", "expires_at", "epoch", "at"),
            "verdict": _whole("ok", "guard", "observed", "limit"),
        },
        "approval": _whole("key", "digest", "decision", "by", "why", "at", "id", "number", "end"),
        "control": _whole("id", "key", "kind", "by", "why", "at", "number", "refused"),
        "claimed": _whole("at", "by"),
        "reserved": _whole("usage", "sub_calls"),
        "unparked": _whole("at"),
        "parked": _whole("reason", "at", "t", "calls", "by", "why", "programs"),
        "resumed": {**_whole("at", "by", "limits", "charged", "ended"), "context": _CONTEXT},
        "migrated": {**_whole("from", "to", "at", "by", "state", "next"), "context": _CONTEXT},
        "recovered": {**_whole("from", "to", "state", "why", "at"), "context": _CONTEXT},
        "ended": _whole("outcome", "reason", "at", "t"),
    }
)
"""Kind -> what of its body may be shown to anybody. A kind that is not here is content as a whole."""


class RecordParts(NamedTuple):
    """A body cut in two."""

    shown: dict[str, Any]
    content: dict[str, Any]

    @property
    def left_out(self) -> list[str]:
        """Names of the members that are content, `error.message` for one inside another."""
        return sorted(_names(self.content, ""))


def parted(kind: str, body: Mapping[str, Any]) -> RecordParts:
    """Cut a record's body into what may be shown to anybody and what is content."""
    return _parted(body, SHOWN.get(kind, {}))


def _parted(body: Mapping[str, Any], spec: Spec) -> RecordParts:
    parts = RecordParts({}, {})
    for name, value in body.items():
        inner = spec.get(name)
        if name not in spec:
            parts.content[name] = value
        elif inner is None or value is None:
            parts.shown[name] = _word(name, value, body)
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


def tool_word(body: Mapping[str, Any]) -> str:
    """Return the tool that a record is about: its name, or UNREGISTERED for one that the model made up."""
    return UNREGISTERED if body.get("registered") is False else str(body.get("tool", ""))


def _word(name: str, value: object, body: Mapping[str, Any]) -> object:
    if name == "finish_reason":
        return finish_word(value)
    return tool_word(body) if name == "tool" and value is not None else value


def _names(content: Mapping[str, Any], prefix: str) -> list[str]:
    """Name each member that is content; one that is only partly so by its parts."""
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
        "messages",
        "calls",
        "spent",
        "made",
        "verdict",
    )
)
"""Members whose parts are told apart above."""
