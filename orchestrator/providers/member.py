"""Read and check members of JSON from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class MalformedConversation(ValueError):
    """JSON that is not a conversation; the message is a sentence without the name of the file."""


def objects_in(raw: Mapping[str, Any], member: str) -> list[Mapping[str, Any]]:
    """Return a member that is a list of objects, or an empty list. Raises MalformedConversation for anything else."""
    value = raw.get(member) or []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise MalformedConversation(f"member {member!r} is not a list of objects")
    return value


def object_in(raw: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    """Return a member that is an object, or an empty one. Raises MalformedConversation for anything else."""
    value = raw.get(member) or {}
    if not isinstance(value, Mapping):
        raise MalformedConversation(f"member {member!r} is {json_type(value)}, not an object")
    return value


def check_text(raw: Mapping[str, Any], member: str, *, needed: bool = False) -> None:
    """Raise MalformedConversation unless a member is text, or null or absent if it is not `needed`."""
    value = raw.get(member)
    if not isinstance(value, str) and (needed or value is not None):
        raise MalformedConversation(f"member {member!r} is {json_type(value)}, not text")


def number_in(raw: Mapping[str, Any], member: str) -> float | None:
    """Return a member that is a number, or None if absent. Raises MalformedConversation for anything else."""
    value = raw.get(member)
    if not isinstance(value, int | float | None):
        raise MalformedConversation(f"member {member!r} is {json_type(value)}, not a number")
    return value


def token_count(value: object) -> int | None:
    """Return a number of tokens: a whole number, also as a float or as digits. None for anything else.

    Example:
        >>> token_count(12), token_count(12.0), token_count("12"), token_count(12.5), token_count(True)
        (12, 12, 12, None, None)
    """
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_TOKENS:
        return None
    return int(value) if value == int(value) else None


_MOST_TOKENS = 2**53
"""No token count is larger."""
_MOST_DIGITS = len(str(_MOST_TOKENS))


def json_type(value: object) -> str:
    """Return the name of a JSON value's type."""
    if value is None:
        return "null"
    names = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "an object")
