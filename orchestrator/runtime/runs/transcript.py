"""The messages of a run, each with its origin. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.tools.result import RETURNED

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """One message in OpenAI form, and the record of its origin."""

    message: Raw
    answer: Raw | None = None
    """The `answer` record of a message of the model."""
    done: Raw | None = None
    """The `done` record of a tool's result."""


def spoken(
    messages: Sequence[Raw], answers: Sequence[Raw | None], done: Mapping[str, Raw]
) -> list[TranscriptEntry]:
    """Combine stored messages with their `answer` records and, by key, with the results that they represent."""
    found: list[TranscriptEntry] = []
    calls: Sequence[Raw] = ()
    for raw, answer in zip(messages, answers, strict=True):
        if "done" in raw and "role" not in raw:
            found.append(_result(str(raw["done"]), done, calls))
        else:
            calls = raw.get("tool_calls") or calls
            found.append(TranscriptEntry(raw, answer))
    return found


def _result(key: str, done: Mapping[str, Raw], calls: Sequence[Raw]) -> TranscriptEntry:
    """Return the message that a finished call became."""
    body = done.get(key, {})
    call = body.get("call") or _call(key, calls)
    message: dict[str, Any] = {"role": "tool", "content": body.get("content", "")}
    message |= {"tool_call_id": call.get("id", ""), "name": call.get("name", "")}
    if body.get("outcome") not in RETURNED:
        message["is_error"] = True
    return TranscriptEntry(message, done=body)


def _call(key: str, calls: Sequence[Raw]) -> Raw:
    """Return id and name of a call of the latest turn; an empty mapping if there is none."""
    position = key.rpartition(":")[2]
    if not position.isdecimal() or int(position) >= len(calls):
        return {}
    raw = calls[int(position)]
    return {"id": raw.get("id") or "", "name": (raw.get("function") or raw).get("name") or ""}
