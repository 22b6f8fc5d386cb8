"""Replace probable secrets in a text of the host or of another party, before it is stored or shown."""

from __future__ import annotations

import re
from collections.abc import Callable

REDACTED = "[redacted]"

_LONGEST = 2_000
"""Characters of a text that are read."""

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
