"""Members of messages and calls that only their server understands, and wants back.

Gemini refuses the next request without the signature of a call (`extra_content.google.thought_signature`), OpenRouter
loses the reasoning of a model without its `reasoning_details`, LiteLLM has `provider_specific_fields`. What we do not
know is therefore kept: the content of the message has a part of the type `openai_chat` with these members and the host
of their server. The part is journalled with the message and sent back to the same server only; every other adapter
leaves it out, and compaction drops it together with the calls that it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import orjson

from orchestrator.llm.message import encodable
from orchestrator.providers.reading import mapping, objects

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
