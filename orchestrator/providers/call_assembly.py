"""Assemble the calls of a streamed chat completion from their fragments, of any server.

OpenAI gives each call an index and sends id and name with its first fragment only. Other servers leave out the index,
give every call the index 0, repeat id or name with each fragment, send a new id with each, or no id at all.

- Distinct indices are distinct calls; the text `"1"` is the number 1.
- If the index is missing or repeats, distinct ids with names are distinct calls.
- If the id is missing or repeats as well, a name starts another call if the present arguments are complete, or if there
  are none yet and the name differs. The same id with the same name never starts one.
- A fragment without name and id belongs to the last call.
- Fragments that came as separate calls of one tool are one call if none of them is complete and all of them together
  are: the server sent a new id with each.

Where this decides wrong, because the server sent too little, the arguments are no JSON or the name is unknown, and the
model reads the error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.llm.message import ArgumentsPiece
from orchestrator.providers.kept_member import merge, unknown_members_of_call
from orchestrator.providers.reading import arguments, mapping, position_of, text
from orchestrator.providers.size_limit import kept_size

_CALL_BYTES = 500
"""Memory of an unfinished call, in addition to its texts."""
_STRUCTURE = re.compile(r'\\.|["{}\[\]]', re.DOTALL)


@dataclass(slots=True)
class PartialCall:
    """An unfinished call."""

    position: int
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    members: dict[str, Any] = field(default_factory=dict)
    """Members that are not part of the API."""
    _read: int = 0
    _depth: int = 0
    _quoted: bool = False
    _closed: bool = False

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self.pieces)

    def is_complete(self) -> bool:
        """Return whether the arguments are a whole object or list: every string and bracket is closed.

        Reads each piece once, so that a stream of many fragments takes linear time.
        """
        unread = "".join(self.pieces[self._read :])
        cut = len(unread) - (len(unread) - len(unread.rstrip("\\"))) % 2  # an escape may be cut
        self.pieces[self._read :] = filter(None, (unread[:cut], unread[cut:]))
        self._read = len(self.pieces) - (cut < len(unread))
        unread = unread[:cut]
        for found in _STRUCTURE.finditer(unread):
            mark = found[0]
            if mark == '"':
                self._quoted = not self._quoted
            elif not self._quoted and len(mark) == 1:
                self._depth += 1 if mark in "{[" else -1
                self._closed = self._depth == 0
        return self._closed and not self._quoted and self._read == len(self.pieces)


class CallAssembly:
    """The calls of one answer."""

    def __init__(self) -> None:
        self.size = 0
        """Approximate bytes in memory."""
        self._calls: list[PartialCall] = []
        self._at: dict[int, PartialCall] = {}
        """Index -> the last call at it."""
        self._by_id: dict[str, PartialCall] = {}

    def add(self, fragment: Mapping[str, Any]) -> ArgumentsPiece | None:
        """Add a fragment and return its piece of arguments."""
        function = mapping(fragment.get("function"))
        id_, name = text(fragment.get("id")), text(function.get("name"))
        index = position_of(fragment.get("index"))
        call = self._present(index, id_, name) or self._start(id_, name)
        if index is not None:
            self._at[index] = call
        call.id, call.name = call.id or id_, call.name or name
        self._by_id.setdefault(id_, call)
        if members := unknown_members_of_call(fragment):
            merge(call.members, members)
            self.size += kept_size(str(members))
        given = arguments(function.get("arguments"))
        if not given:
            return None
        call.pieces.append(given)
        self.size += kept_size(given)
        return ArgumentsPiece(call.position, call.name, given)

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls in the form of a completion."""
        runs: list[list[PartialCall]] = []
        for call in self._calls:
            first = runs[-1][0] if runs else None
            cut = first is not None and not first.is_complete() and not call.is_complete()
            if first is not None and cut and call.name in ("", first.name):
                runs[-1].append(call)
            else:
                runs.append([call])
        return [
            {
                **call.members,
                "id": call.id,
                "function": {
                    **mapping(call.members.get("function")),
                    "name": call.name,
                    "arguments": call.arguments,
                },
            }
            for run in runs
            for call in _joined(run)
        ]

    def _present(self, index: int | None, id_: str, name: str) -> PartialCall | None:
        """Return the call that a fragment continues; None if it starts another."""
        present = self._at.get(index) if index is not None else next(reversed(self._calls), None)
        if present is None:
            return None
        if id_ and id_ != present.id:
            known = self._by_id.get(id_)
            if known is not None and name in ("", known.name):
                return known
            if name and present.id:
                return None
        if not name or (id_ and (id_, name) == (present.id, present.name)):
            return present
        another = present.is_complete() or (not present.pieces and present.name not in ("", name))
        return None if another else present

    def _start(self, id_: str, name: str) -> PartialCall:
        call = PartialCall(len(self._calls))
        self._calls.append(call)
        self.size += _CALL_BYTES + kept_size(id_, name)
        return call


def _joined(run: list[PartialCall]) -> list[PartialCall]:
    """Return calls of one tool without complete arguments as one call, if that is complete."""
    whole = PartialCall(0, run[0].id, run[0].name, [call.arguments for call in run], run[0].members)
    return [whole] if len(run) > 1 and whole.is_complete() else run
