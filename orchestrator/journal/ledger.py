"""The ledger of effects: what became of each call, as the records of a run tell it.

A call is known by its key, `TURN:POSITION`. Finished effects never run twice: a key with `done` is not run again; one
with an `intent` and nothing after it may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.journal.redacted import tool_word

_OF_EFFECTS = frozenset(("intent", "done", "rolled_back"))
LEDGER_KINDS = _OF_EFFECTS | {"asked", "approval"}
"""Kinds of records that say something of calls."""
TOOL = "tool"
"""The effect of intents and results that belong to this ledger; others (`file`) have one of their own."""


@dataclass(slots=True)
class EffectEntry:
    """One call."""

    key: str
    tool: str = ""
    """Its name; `_unregistered` for one that the model made up."""
    effect: str = ""
    arguments: str | None = None
    """Canonical text, where that is not the model's own."""
    digest: str = ""
    """Of the call as it was announced after a person approved it."""
    open: bool = False
    """It was announced and has neither a result nor been taken back."""
    done: Mapping[str, Any] | None = None
    asked: Mapping[str, Any] | None = None
    """The question about it that waits for an answer."""
    answer: Mapping[str, Any] | None = None
    """The answer that counted last."""

    @property
    def turn(self) -> int:
        return int(self.key.partition(":")[0])

    @property
    def position(self) -> int:
        return int(self.key.partition(":")[2])


@dataclass(slots=True)
class EffectLedger:
    """The calls of a run, in the order they were first heard of."""

    entries: dict[str, EffectEntry] = field(default_factory=dict)

    def fold(self, kind: str, body: Mapping[str, Any]) -> None:
        """Take a record; kinds that say nothing of calls are ignored."""
        if kind in _OF_EFFECTS and body.get("effect") != TOOL:
            return
        match kind:
            case "intent":
                for call in body["calls"]:
                    entry = self._entry(call["key"])
                    entry.tool, entry.effect, entry.open = tool_word(call), call["effect"], True
                    entry.arguments, entry.digest = call.get("arguments"), str(call.get("digest", ""))
            case "done":
                entry = self._entry(body["key"])
                entry.tool, entry.open, entry.done, entry.asked = tool_word(body), False, body, None
            case "rolled_back":
                self._entry(body["key"]).open = False
            case "asked":
                entry = self._entry(body["key"])
                entry.tool, entry.asked, entry.arguments = body["tool"], body, body.get("arguments")
            case "approval":
                entry = self._entry(body["key"])
                entry.asked, entry.answer = None, body
            case _:
                pass

    def of_turn(self, turn: int) -> list[EffectEntry]:
        """Return the calls of one turn."""
        of_turn = f"{turn}:"
        return [entry for key, entry in self.entries.items() if key.startswith(of_turn)]

    @property
    def waiting(self) -> list[EffectEntry]:
        """The calls that a person is asked about."""
        return [entry for entry in self.entries.values() if entry.asked is not None]

    def _entry(self, key: str) -> EffectEntry:
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = EffectEntry(key)
        return entry
