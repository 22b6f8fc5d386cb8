"""Did a tool call succeed? Judged from the text the tool gave back.

An explicit statement in the JSON wins; text is searched for phrases only when the tool declares
that it answers in plain text. Sources: reference/systems.md §9.4 and defect D10 of the original,
which took `{"success": true, "error": null}` and the text "0 errors" for failures.
"""

from __future__ import annotations

import json
import re
from typing import Final

FAILURE_PHRASES: Final = (
    "error",
    "failed",
    "failure",
    "missing required",
    "invalid",
    "not found",
    "unauthorized",
    "forbidden",
    "bad request",
    "exception",
    "cannot",
    "unable to",
)
"""What a plain-text result says when the call failed (the original's list)."""

_PHRASE: Final = re.compile(rf"\b(?:{'|'.join(FAILURE_PHRASES)})")
_DENIED: Final = re.compile(r"\b(?:0|no|zero|without(?: any)?)\s+(?:error|fail|exception|invalid)\w*")
_decode: Final = json.JSONDecoder().raw_decode


def failed_result(content: str, *, declared_plain_text: bool = False) -> bool:
    """Return whether a tool's result says that the call failed.

    A JSON object, alone or closing a text ("Result: {...}", a fenced block), decides: `success` if
    it is a boolean, else `ok` if it is a boolean, else an `error` that is not empty. Any other
    result is a success, the empty one too, unless `declared_plain_text` and it holds one of
    `FAILURE_PHRASES`; "0 errors" and "no errors" are not such. Text without a brace is not parsed.

    Example:
        >>> failed_result('{"success": true, "error": null}'), failed_result('Result: {"ok": false}')
        (False, True)
        >>> failed_result("build failed"), failed_result("build failed", declared_plain_text=True)
        (False, True)
    """
    if "{" in content:
        members = _object(content)
        if members is not None:
            return _says_failed(members)
    if not declared_plain_text:
        return False
    return _PHRASE.search(_DENIED.sub("", content.casefold())) is not None


def _object(content: str) -> dict[str, object] | None:
    """Return the JSON object that the text consists of or ends with."""
    text = content.strip().removesuffix("```").rstrip()
    if not text.endswith("}"):
        return None
    try:
        value, end = _decode(text, text.index("{"))
    except (ValueError, RecursionError):
        return None
    return value if end == len(text) and isinstance(value, dict) else None


def _says_failed(members: dict[str, object]) -> bool:
    for name in ("success", "ok"):
        stated = members.get(name)
        if isinstance(stated, bool):
            return not stated
    return bool(members.get("error"))
