"""Describe an error without quoting it: type, code, and a fingerprint of its scrubbed text."""

from __future__ import annotations

import hashlib
import os
import re

from orchestrator.kernel.redaction import scrub

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


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
