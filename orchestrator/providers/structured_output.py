"""Ask for structured output: in the prompt, or by a JSON schema in OpenAI's native form.

The schema is sent unchanged. Strict mode accepts only a part of JSON Schema, and refuses the whole request over the
rest. So it is requested only if the schema keeps the documented rules. For another schema, the mode is guidance to
the model, and our own check of the answer follows. Rewriting a schema to fit (every property required, nullable
instead) was rejected: the model would produce another form than the host's type reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.llm.message import Message

_WORDS = (
    "Give your final answer as JSON that fits the JSON schema below: only the JSON, no text around it, no code "
    "fence. Tools may be called before that as usual.\n\n{schema}"
)


def instruction(schema: Mapping[str, Any]) -> str:
    """Return the instruction about the form of the final answer."""
    return _WORDS.format(schema=json.dumps(schema, ensure_ascii=False))


def instructed(messages: Sequence[Message], schema: Mapping[str, Any]) -> list[Message]:
    """Return the messages with the instruction in the first system message, or in a new one.

    In the first message, because templates of many open models accept a single system message, at the start. At the
    start and not at the end, because the prefix that prompt caches compare then stays the same from turn to turn.
    """
    words = instruction(schema)
    first = messages[0] if messages else None
    if first is None or first.role not in ("system", "developer"):
        return [Message("system", words), *messages]
    if isinstance(first.content, list):
        told = replace(first, content=[*first.content, {"type": "text", "text": words}])
    else:
        told = replace(first, content=f"{first.content}\n\n{words}" if first.content else words)
    return [told, *messages[1:]]


_KNOWN = frozenset(
    (
        *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf"),
        *("$ref", "$defs", "definitions", "title", "description", "pattern", "format"),
        *("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"),
    )
)
_SAYS_WHAT = frozenset(("type", "anyOf", "$ref", "enum", "const"))
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", None)
)
_DEEPEST = 10
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
_LONGEST_NAME = 64


def is_object(schema: Mapping[str, Any]) -> bool:
    """Return whether the answer must be an object: native mode accepts nothing else at the top."""
    return schema.get("type") == "object" and "anyOf" not in schema


def named(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a native format: name, schema, strict."""
    title = schema.get("title")
    name = _NOT_IN_A_NAME.sub("_", title)[:_LONGEST_NAME] if isinstance(title, str) else ""
    return {"name": name.strip("_") or "answer", "schema": dict(schema), "strict": keeps_strict_rules(schema)}


def keeps_strict_rules(schema: Mapping[str, Any]) -> bool:
    """Return whether strict mode accepts the schema: closed objects, all members required, known words only."""
    return is_object(schema) and _keeps(schema, 1)


def _keeps(schema: object, depth: int) -> bool:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return False
    words = schema.keys()
    if not words <= _KNOWN or not words & _SAYS_WHAT or schema.get("format") not in _FORMATS:
        return False
    if "$ref" in words:
        return len(words) == 1 and str(schema["$ref"]).startswith("#")
    kinds = schema.get("type")
    if "properties" not in schema and "object" not in (kinds if isinstance(kinds, list) else (kinds,)):
        is_open_object = False
    else:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        is_open_object = schema.get("additionalProperties") is not False or set(required) != set(properties)
    closed = not is_open_object
    return closed and all(_keeps(inner, depth + more) for inner, more in _inner(schema))


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[object, int]]:
    """Yield the schemas directly inside, and the number of levels that each is deeper."""
    yield from ((inner, 1) for inner in schema.get("properties", {}).values())
    yield from ((inner, 0) for inner in schema.get("anyOf", ()))
    yield from ((inner, 0) for place in ("$defs", "definitions") for inner in schema.get(place, {}).values())
    if "items" in schema:
        yield schema["items"], 1
