"""Decide whether a tool call succeeded, from the text that the tool returned.

An explicit statement in the JSON decides. Text is searched for phrases only if the tool declares that it answers in
plain text. So `{"success": true, "error": null}` and the text "0 errors" are not failures.
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
"""Phrases of a plain-text result that mean a failed call."""

_PHRASE: Final = re.compile(rf"\b(?:{'|'.join(FAILURE_PHRASES)})")
_DENIED: Final = re.compile(r"\b(?:0|no|zero|without(?: any)?)\s+(?:error|fail|exception|invalid)\w*")
_decode: Final = json.JSONDecoder().raw_decode


def failed_result(content: str, *, declared_plain_text: bool = False) -> bool:
    """Return whether a tool's result reports a failed call.

    A JSON object, alone or at the end of a text ("Result: {...}", a fenced block), decides: `success` if it is a
    boolean, else `ok` if it is a boolean, else an `error` that is not empty. Any other result is a success, also an
    empty one, unless `declared_plain_text` and it contains one of `FAILURE_PHRASES`; "0 errors" and "no errors" do
    not count. Text without a brace is not parsed.

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
