"""The messages of a run, put together from its records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Raw = Mapping[str, Any]


@dataclass(slots=True)
class Spoken:
    """One message in OpenAI form, and what was recorded of how it came about."""

    message: Raw
    answer: Raw | None = None
    """The `answer` record, of a message that the model said."""
    done: Raw | None = None
    """The `done` record, of a tool's result."""


@dataclass(slots=True)
class Transcript:
    """Messages as they stand after the records read so far."""

    spoken: list[Spoken] = field(default_factory=list)
    recalled: tuple[int, int] = (0, 0)
    """Span of messages that memory put in: the model read them, they are no part of the conversation."""
    _answer: Raw | None = None
    _done: dict[str, Raw] = field(default_factory=dict)

    def take(self, kind: str, body: Raw) -> None:
        """Take a record; most kinds change nothing."""
        if kind in ("created", "resumed", "migrated"):
            self._context(body.get("context") or {})
        elif kind == "context":
            self._context(body)
        elif kind == "answer":
            self._answer = body
        elif kind == "done" and "key" in body:
            self._done[str(body["key"])] = body

    def _context(self, body: Raw) -> None:
        if isinstance(body.get("recalled"), list | tuple):
            first, last = body["recalled"]
            self.recalled = int(first), int(last)
        messages = body.get("messages")
        if isinstance(messages, list):
            self.spoken = []
            self._add(messages)
        elif isinstance(messages, Mapping):
            if messages.get("keep") is not None:
                del self.spoken[int(messages["keep"]) :]
            self._add(messages.get("add") or [])

    def _add(self, messages: list[Raw]) -> None:
        for raw in messages:
            if "done" in raw and "role" not in raw:
                self.spoken.append(self._result(str(raw["done"])))
                continue
            answer = None
            if raw.get("role") == "assistant":
                answer, self._answer = self._answer, None
            self.spoken.append(Spoken(raw, answer))

    def _result(self, key: str) -> Spoken:
        """Return the message that a finished call became."""
        done = self._done.get(key, {})
        call = done.get("call") or self.call(key)
        message: dict[str, Any] = {"role": "tool", "content": done.get("content", "")}
        message |= {"tool_call_id": call.get("id", ""), "name": call.get("name", "")}
        if done.get("outcome") != "ok":
            message["is_error"] = True
        return Spoken(message, done=done)

    def call(self, key: str) -> dict[str, str]:
        """Return id, name and arguments of a call of the latest turn; nothing where there is none."""
        made = (one.message.get("tool_calls") for one in reversed(self.spoken))
        calls: list[Raw] = next((calls for calls in made if calls), [])
        position = key.rpartition(":")[2]
        if not position.isdecimal() or int(position) >= len(calls):
            return {}
        raw = calls[int(position)]
        function = raw.get("function") or raw
        return {
            "id": raw.get("id") or "",
            "name": function.get("name") or "",
            "arguments": function.get("arguments") or "",
        }

    def conversation(self) -> list[Spoken]:
        """Return the messages without those of memory."""
        first, last = self.recalled
        return [*self.spoken[:first], *self.spoken[last:]] if last > first else list(self.spoken)
