"""Describe an error without quoting it: type, code, and a fingerprint of its scrubbed text."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable

REDACTED = "[redacted]"

_LONGEST = 2_000
"""Characters of an error's text that are read."""

_SECRETS = re.compile(
    r"""(?xi)
    (?:bearer|basic)\s+\S+                                                  # authorization headers
    | \b(?:sk|pk|rk|gh[opsu]|xox[a-z]|akia|aiza|eyj)[-_a-z0-9.]{8,}         # well-known key prefixes
    | \b(?!\w*tokens:\s[\d.,]+\s(?:of\s[\d.,]+\s)?used\b)                  # except a budget with its numbers
      [\w-]*(?:key|token|secret|passw(?:or)?d|pwd|authorization|cookie|credential)s?["']?\s*[=:]\s*\S+
    | (?<=://)[^/\s@]+@                                                     # user and password of a URL
    | \b[a-z0-9+/_-]{32,}={0,2}                                             # anything long enough to be a key
    """
)
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def scrub(text: str) -> str:
    """Return the text with probable secrets replaced, cut at 2,000 characters.

    Example:
        >>> scrub("401 for https://bob:hunter2@host/ with Bearer abc")
        '401 for https://[redacted]host/ with [redacted]'
    """
    return replace_secrets(text[:_LONGEST], lambda _: REDACTED)


def replace_secrets(text: str, replacement: Callable[[str], str]) -> str:
    """Return the text with each probable secret replaced by what the function returns for it."""
    return _SECRETS.sub(lambda found: replacement(found[0]), text)


def fingerprint(error: BaseException) -> str:
    """Return 12 hex digits, equal for errors of one type whose texts differ only in numbers and secrets."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not cost the log line
        text = ""
    text = _NUMBER.sub("0", scrub(text))
    return hashlib.sha256(f"{type(error).__name__}:{text}".encode(errors="replace")).hexdigest()[:12]


def error_code(error: BaseException) -> str | None:
    """Return the error's own code (`kind`, `code` or `status`) if it has a short and plain one."""
    for name in ("kind", "code", "status"):
        value = getattr(error, name, None)
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            code = plain(str(value))
            if code is not None:
                return code
    return None


def plain(text: str | None) -> str | None:
    """Return a short word unchanged, and None for a longer, unusual or secret-like text."""
    return text if text is not None and _CODE.fullmatch(text) and scrub(text) == text else None


def raised_at(error: BaseException | None) -> str | None:
    """Return file and line of the innermost frame of an error, or None if it was never raised."""
    trace = None if error is None else error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"  # noqa: PTH119 - no path is made


def error_fields(error: BaseException | None) -> dict[str, str]:
    """Return the log fields of an error: error_type, error_fingerprint and, if it has one, error_code."""
    if error is None:
        return {}
    fields = {"error_type": type(error).__name__, "error_fingerprint": fingerprint(error)}
    code = error_code(error)
    if code is not None:
        fields["error_code"] = code
    return fields
