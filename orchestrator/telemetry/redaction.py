"""Describe an error without quoting it: type, code, and a fingerprint of its scrubbed text."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from orchestrator.kernel.redaction import scrub

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")
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


def error_fields(error: BaseException | None, *, text: bool = False) -> dict[str, Any]:
    """Return the log fields of an error: type and fingerprint, and code, HTTP status and request id if it has them.

    `text` adds its scrubbed text, which can contain contents.
    """
    if error is None:
        return {}
    fields: dict[str, Any] = {"error_type": type(error).__name__, "error_fingerprint": fingerprint(error)}
    code, status, request_id = (
        error_code(error),
        getattr(error, "status", None),
        getattr(error, "request_id", None),
    )
    if code is not None:
        fields["error_code"] = code
    if isinstance(status, int) and not isinstance(status, bool):
        fields["http_status"] = status
    if isinstance(request_id, str) and _REQUEST_ID.fullmatch(request_id):
        fields["request_id"] = request_id
    if text:
        fields["error_text"] = scrub(str(error))
    return fields
