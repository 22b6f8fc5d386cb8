"""Text in a drawing: how wide it is without a font, and how it is shortened and escaped.

A width is an upper estimate for the system fonts of browsers, so that no label touches what is beside it.
"""

from __future__ import annotations

import unicodedata
from html import escape

LONGEST = 36
"""Characters of a name or label that are drawn; the whole text is its tooltip."""

_NARROW = frozenset("iljtfrI.,:;'|!()[] -")
_BROAD = frozenset("mwMW@%")


def width(text: str, size: float) -> float:
    """Return the width of a text in pixels, at a font size."""
    return size * sum(map(_em, text))


def _em(character: str) -> float:
    if character in _NARROW:
        return 0.4
    if character in _BROAD or unicodedata.east_asian_width(character) in "WF":
        return 1.0
    return 0.72 if character.isupper() else 0.64


def shortened(text: str) -> str:
    """Return a text of at most LONGEST characters; a longer one ends with an ellipsis."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def escaped(text: str) -> str:
    """Return text for XML: markup is escaped, control and format characters are visible escapes."""
    return escape("".join(map(_visible, text)))


def _visible(character: str) -> str:
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
        return f"\\u{{{ord(character):x}}}"
    return character
