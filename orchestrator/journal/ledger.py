"""The ledger of effects: the result of each call, from the records of a run.

The key of a call is `TURN:POSITION`. Finished effects never run twice: a key with `done` is not run again. A key with
an `intent` and nothing after it is in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.journal.redacted import tool_word
from orchestrator.tools.input_request import input_record

TOOL = "tool"
"""The effect of intents and results in this ledger; others (`file`) have their own effect."""


@dataclass(slots=True)
class EffectEntry:
    """One call."""

    key: str
    tool: str = ""
    """Name of the tool; `_unregistered` for a name that the model invented."""
    effect: str = ""
    arguments: str | None = None
    """Canonical text, if it differs from the model's own."""
    digest: str = ""
    """Digest of the announced call, after a person approved it."""
    declared: str = ""
    """Digest of the tool when the call was announced; empty if it is not known."""
    open: bool = False
    """The call was announced and has neither a result nor an undo."""
    done: Mapping[str, Any] | None = None
    asked: Mapping[str, Any] | None = None
    """The open question about the call."""
    answer: Mapping[str, Any] | None = None
    """The last answer that counted."""
    inputs: Sequence[Mapping[str, Any]] = ()
    """The input that people have given, as records (`CallInput.of`)."""

    def take(self, answer: Mapping[str, Any]) -> None:
        """Add an answer that counted."""
        if (more := input_record(self.asked or {}, answer, self.inputs)) is not None:
            self.inputs = (*self.inputs, more)
        self.asked, self.answer = None, answer

    @property
    def turn(self) -> int:
        return int(self.key.partition(":")[0])

    @property
    def position(self) -> int:
        return int(self.key.partition(":")[2])


@dataclass(slots=True)
class EffectLedger:
    """The calls of a run, in the order of their first record."""

    entries: dict[str, EffectEntry] = field(default_factory=dict)

    def announce(self, body: Mapping[str, Any], tools: Mapping[str, str]) -> None:
        """Add an `intent` record; `tools` are the digests of the tools at this time, by name."""
        if body.get("effect") != TOOL:
            return
        for call in body["calls"]:
            entry = self._entry(call["key"])
            entry.tool, entry.effect, entry.open = tool_word(call), call["effect"], True
            entry.arguments, entry.digest = call.get("arguments"), str(call.get("digest", ""))
            if tools:
                entry.declared = tools.get(entry.tool) or _in_any_case(entry.tool, tools)

    def finish(self, body: Mapping[str, Any]) -> None:
        """Add a `done` record."""
        if body.get("effect") == TOOL:
            entry = self._entry(body["key"])
            entry.tool, entry.open, entry.done, entry.asked = tool_word(body), False, body, None

    def roll_back(self, body: Mapping[str, Any]) -> None:
        """Add a `rolled_back` record."""
        if body.get("effect") == TOOL:
            self._entry(body["key"]).open = False

    def ask(self, body: Mapping[str, Any]) -> None:
        """Add an `asked` record."""
        entry = self._entry(body["key"])
        entry.tool, entry.asked, entry.arguments = body["tool"], body, body.get("arguments")

    def decide(self, body: Mapping[str, Any]) -> None:
        """Add an `approval` record."""
        self._entry(body["key"]).take(body)

    def of_turn(self, turn: int) -> list[EffectEntry]:
        """Return the calls of one turn."""
        of_turn = f"{turn}:"
        return [entry for key, entry in self.entries.items() if key.startswith(of_turn)]

    def effect_of(self, key: str) -> str:
        """Return the effect of the tool of a call as its last announced call had it; "" if none was announced."""
        entry = self.entries[key]
        same = (
            one.effect for one in reversed(self.entries.values()) if one.tool == entry.tool and one.effect
        )
        return entry.effect or next(same, "")

    @property
    def waiting(self) -> list[EffectEntry]:
        """The calls with an open question."""
        return [entry for entry in self.entries.values() if entry.asked is not None]

    def _entry(self, key: str) -> EffectEntry:
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = EffectEntry(key)
        return entry


def _in_any_case(tool: str, tools: Mapping[str, str]) -> str:
    """Return the digest of a tool by its name in upper or lower case, "" if there is none."""
    name = tool.casefold()
    return next((digest for known, digest in tools.items() if known.casefold() == name), "")
