"""Assemble the calls of a streamed chat completion, with the members that only their server understands.

Gemini refuses the next request without the signature of a call (`extra_content.google.thought_signature`), OpenRouter
loses the reasoning of a model without its `reasoning_details`, LiteLLM has `provider_specific_fields`. What we do not
know is therefore kept: the content of the message has a part of the type `openai_chat` with these members and the host
of their server. The part is journalled with the message and sent back to the same server only; every other adapter
leaves it out, and compaction drops it together with the calls that it belongs to.

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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from orchestrator.llm.message import ArgumentsPiece, encodable
from orchestrator.providers.connection import kept_size
from orchestrator.providers.reading import arguments, mapping, objects, position_of, text

KEPT: Final = "openai_chat"
"""Type of the content part with the members."""
MAX_BYTES: Final = 256 * 1024
"""Maximum size of the members of one answer, as JSON; others are left out."""
PLACEHOLDER: Final = "skip_thought_signature_validator"
"""The signature that Gemini documents for a call that it did not make."""
_MESSAGE: Final = frozenset(
    (
        *(
            "role",
            "content",
            "name",
            "refusal",
            "reasoning",
            "reasoning_content",
            "tool_calls",
            "function_call",
        ),
        *("audio", "annotations", "parsed"),
    )
)
_CALL: Final = frozenset(("id", "type", "index", "function"))
_FUNCTION: Final = frozenset(("name", "arguments"))
_GROWING: Final = frozenset(("text", "summary", "data", "thinking"))
"""Members of an item that a stream sends in pieces."""
_WITHOUT_SIGNATURES: Final = re.compile(r"(?:.*/)?gemini-[12]\b")


def unknown_members(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an answer's message, or of a piece of it, that are not part of the API."""
    found = {name: value for name, value in message.items() if name not in _MESSAGE and _says(value)}
    if "thought" in mapping(mapping(found.get("extra_content")).get("google")):
        # Of a piece that is a thought of Gemini; the whole message is none.
        google = {
            name: value for name, value in found["extra_content"]["google"].items() if name != "thought"
        }
        found["extra_content"] = {**found["extra_content"], "google": google}
    return {name: value for name, value in found.items() if _says(value)}


def unknown_members_of_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a call, or of a fragment of it, that are not part of the API."""
    function = mapping(call.get("function"))
    inner = {name: value for name, value in function.items() if name not in _FUNCTION and _says(value)}
    outer = {name: value for name, value in call.items() if name not in _CALL and _says(value)}
    return {**outer, "function": inner} if inner else outer


def merge(members: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add the members of a further piece of an answer: objects and lists grow, other values are replaced."""
    with suppress(RecursionError):  # nested too deep to be stored
        _merge(members, more)


def kept_part(
    server: str, message: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the content part with the members of an answer; None if it has none."""
    left, left_out = MAX_BYTES, []

    def fits(name: str, value: object) -> bool:
        nonlocal left
        try:
            size = len(orjson.dumps(encodable(value)))
        except (TypeError, RecursionError):  # too deep, or a number that no journal stores
            size = left + 1
        if size > left:
            left_out.append(name)
            return False
        left -= size
        return True

    of_calls = [
        {name: value for name, value in unknown_members_of_call(call).items() if fits(name, value)}
        for call in calls
    ]
    of_message = {name: value for name, value in unknown_members(message).items() if fits(name, value)}
    if not (of_message or any(of_calls) or left_out):
        return None
    part = {"type": KEPT, "server": server, "message": of_message, "calls": of_calls}
    return {**part, "left_out": left_out} if left_out else part


def give_back(raw: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add kept members to a message that is sent to their server again."""
    for name, value in mapping(part.get("message")).items():
        raw.setdefault(name, value)
    calls, members = raw.get("tool_calls") or [], objects(part.get("calls"))
    for call, more in zip(calls, members, strict=True) if len(calls) == len(members) else ():
        merge(call, more)


def sign(raw: dict[str, Any], model: str) -> None:
    """Add the placeholder to the calls of a message that another model made: to the first, as Gemini signs it."""
    if not raw.get("tool_calls") or _WITHOUT_SIGNATURES.match(model):
        return
    first = raw["tool_calls"][0]
    if not mapping(mapping(first.get("extra_content")).get("google")).get("thought_signature"):
        merge(first, {"extra_content": {"google": {"thought_signature": PLACEHOLDER}}})


def _says(value: object) -> bool:
    """Return whether a value holds anything: servers send empty members of every kind."""
    if isinstance(value, Mapping):
        try:
            return any(map(_says, value.values()))
        except RecursionError:
            return True
    return value is not None and value not in ("", [])


def _merge(members: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        present = members.get(name)
        if isinstance(present, dict) and isinstance(value, Mapping):
            _merge(present, value)
        elif isinstance(present, list) and isinstance(value, list):
            for item in value:
                _append(present, item)
        else:
            members[name] = dict(value) if isinstance(value, Mapping) else value


def _append(items: list[Any], item: Any) -> None:
    """Add an item of a list, or a piece of its last item: both have the same `index` and type."""
    last = items[-1] if items else None
    if not (isinstance(last, dict) and isinstance(item, Mapping) and "index" in item) or any(
        last.get(name) != item.get(name) for name in ("index", "type")
    ):
        items.append(item)
        return
    for name, value in item.items():
        present = last.get(name)
        if name in _GROWING and isinstance(value, str) and isinstance(present, str):
            last[name] = present + value if len(present) <= MAX_BYTES else present
        elif value is not None:
            last[name] = value


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
