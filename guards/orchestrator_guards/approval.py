"""Approvals: what exactly a person said yes to, and whether that yes still counts. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Final

LEAST: Final = 8
"""How many characters of a digest are enough to name it."""


def approval_digest(tool: str, arguments: str, *, run: str, call: str, fingerprint: str) -> str:
    """Return the SHA-256 (hex) of what is to be approved: this call of this run, with these arguments.

    Arguments are compared as JSON, so spacing and the order of members do not count; text that is no JSON
    counts as it is. `fingerprint` is the graph's: a changed machine needs a new approval.

    Example:
        >>> one = approval_digest("pay", '{"to": "x", "sum": 1}', run="r", call="1:0", fingerprint="f")
        >>> one == approval_digest("pay", '{"sum":1,"to":"x"}', run="r", call="1:0", fingerprint="f")
        True
    """
    parts = json.dumps([tool, _canonical(arguments), run, call, fingerprint], separators=(",", ":"))
    return hashlib.sha256(parts.encode(errors="surrogatepass")).hexdigest()


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"))
    except ValueError:
        return arguments


def stale_approval(digest: str, given: str | None, *, now: float, expires_at: float) -> str | None:
    """Say why an answer does not count, or None. `given` may be the first characters of the digest.

    Without `given` the answer is to whatever is asked. Times are epoch seconds; `expires_at` 0 is never.

    Example:
        >>> stale_approval("0123456789abcdef", "01234567", now=1, expires_at=0) is None
        True
        >>> stale_approval("0123456789abcdef", "ffffffff", now=1, expires_at=0)
        'it is about other arguments: ffffffff was approved, 01234567 is asked for'
    """
    if expires_at and now >= expires_at:
        return "it came too late: the question has expired"
    if given is None:
        return None
    if len(given) < LEAST:
        return f"digest {given!r} is too short: give at least {LEAST} characters"
    if not digest.startswith(given):
        return f"it is about other arguments: {given[:LEAST]} was approved, {digest[:LEAST]} is asked for"
    return None
