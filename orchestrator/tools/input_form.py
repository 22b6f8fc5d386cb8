"""The form of a request for input: its fields, and the values that a person types for them. Pure.

A form is the JSON schema of an object. Every place where a person answers reads the values here: the commands, the
prompt of a terminal, the console and the library.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from orchestrator.llm.json_schema import Check, SchemaFault, checker
from orchestrator.tools.argument import listed

MISSING: Final = object()
"""The value of a field that is left out."""

_TRUE, _FALSE = frozenset(("true", "yes", "y")), frozenset(("false", "no", "n"))
_DEFINITIONS: Final = ("$defs", "definitions")


class FormField(NamedTuple):
    """One field of a form, for a person."""

    name: str
    kind: str
    """Its JSON type; empty if the schema has none."""
    about: str
    """Title and description."""
    choices: tuple[str, ...]
    is_required: bool
    default: str | None = None
    """The default as text; None without one."""


def form_fields(schema: Mapping[str, Any]) -> list[FormField]:
    """Return the fields of a form in the order of its schema."""
    found = []
    for name in schema.get("properties") or {}:
        part = _part(schema, name)
        titles = [str(part[key]) for key in ("title", "description") if part.get(key)]
        is_required = name in (schema.get("required") or ())
        choices = tuple(_shown(value, title) for value, title in _choices(part))
        default = _shown(part["default"]) if "default" in part else None
        about, kinds = ": ".join(dict.fromkeys(titles)), part.get("type", "")
        kind = " or ".join(map(str, kinds)) if isinstance(kinds, list) else str(kinds)
        found.append(FormField(name, kind, about, choices, is_required, default))
    return found


def form_faults(schema: Mapping[str, Any], values: Any) -> list[SchemaFault]:
    """Return why values do not fit a form. Raises UnusableSchema."""
    return _checker(canonical_text(schema))(values)


def form_values(schema: Mapping[str, Any], content: str) -> Any:
    """Return the values of an answer: JSON data; the text of a form with one field may be its value."""
    found = _parsed(content)
    fields = schema.get("properties") or {}
    if isinstance(found, dict) or len(fields) != 1:
        return found
    [name] = fields
    return {name: _typed(_part(schema, name), content)}


def field_value(schema: Mapping[str, Any], name: str, text: str) -> Any:
    """Return the value of one field as a person types it; an empty text is its default, or MISSING.

    Raises:
        ValueError: The text is no value of the field; the message is a clause with the name of the field.
    """
    part = _part(schema, name)
    value = _typed(part, text) if text.strip() else part.get("default", MISSING)
    if value is MISSING:
        if name in (schema.get("required") or ()):
            raise ValueError(f"{name}: a value is required")
        return MISSING
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    alone = {"type": "object", "properties": {name: part}, **definitions}
    faults = form_faults(alone, {name: value})
    if not faults:
        return value
    if text.strip() and not form_faults(alone, {name: text}):  # a number, for a field that takes text or null
        return text
    raise ValueError(listed(faults))


def canonical_text(data: Mapping[str, Any]) -> str:
    """Return JSON data as text: equal data have the same one."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)


def _part(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the schema of a field."""
    part = schema["properties"][name]
    return part if isinstance(part, Mapping) else {}


def _typed(part: Mapping[str, Any], text: str) -> Any:
    """Return the value that a text means for a field; the schema decides whether it is allowed."""
    kind, word = part.get("type"), text.strip()
    if kind == "array":
        found = _parsed(text)
        items = part["items"] if isinstance(part.get("items"), Mapping) else {}
        return found if isinstance(found, list) else [_typed(items, one) for one in text.split(",")]
    for value, title in _choices(part):
        if word and word in {_shown(value), title}:
            return value
    if kind == "boolean" and word.lower() in _TRUE | _FALSE:
        return word.lower() in _TRUE
    return text if kind == "string" else _parsed(text)


def _choices(part: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """Return the values that a field allows with their titles, if its schema lists them."""
    if isinstance(items := part.get("items"), Mapping):
        return _choices(items)
    if isinstance(values := part.get("enum"), list):
        return [(value, "") for value in values]
    named = part.get("oneOf") or part.get("anyOf") or ()
    return [
        (one["const"], str(one.get("title") or ""))
        for one in named
        if isinstance(one, Mapping) and "const" in one
    ]


def _shown(value: Any, title: str = "") -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return f"{text} ({title})" if title and title != text else text


def _parsed(text: str) -> Any:
    """Return JSON data, or the text if it is none; numbers are finite."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


@functools.lru_cache(maxsize=64)
def _checker(schema: str) -> Check:
    return checker(json.loads(schema))
