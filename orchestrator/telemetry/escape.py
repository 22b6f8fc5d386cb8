"""Escape characters that may not reach a terminal. All text that is printed for a person passes `escape`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

_BLANKS = (
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
)
"""Blanks other than the space, frequent in French and Japanese text."""
_CONTROLS = ((0x00, 0x1F), (0x7F, 0x9F), (0x2028, 0x2029), (0xD800, 0xDFFF))
"""C0, DEL and C1; line and paragraph separators; lone surrogates."""
_FORMATS = (
    *(
        (0xAD, 0xAD),
        (0x600, 0x605),
        (0x61C, 0x61C),
        (0x6DD, 0x6DD),
        (0x70F, 0x70F),
        (0x890, 0x891),
        (0x8E2, 0x8E2),
    ),
    *(
        (0x180E, 0x180E),
        (0x200B, 0x200F),
        (0x202A, 0x202E),
        (0x2060, 0x206F),
        (0xFEFF, 0xFEFF),
        (0xFFF0, 0xFFFB),
    ),
    *((0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A)),
    (0xE0000, 0xE0FFF),
)
"""Unicode's category Cf: bidirectional controls, characters without a width, tags."""
_IGNORABLE = (
    *(
        (0x34F, 0x34F),
        (0x115F, 0x1160),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0x3164, 0x3164),
        (0xFFA0, 0xFFA0),
    ),
)
"""Unicode's Default_Ignorable_Code_Point outside Cf: letters and marks without a glyph. The variation selectors
U+FE00 to U+FE0F are not included, because ordinary emoji contain them."""


def _characters(ranges: Iterable[tuple[int, int]]) -> str:
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


KEPT = "\n\t" + "".join(chr(code) for first, last in _BLANKS for code in range(first, last + 1))
"""Characters that only lay out text."""


@cache
def _unsafe(keep: str) -> re.Pattern[str]:
    characters = f"[{_characters((*_BLANKS, *_CONTROLS, *_FORMATS, *_IGNORABLE))}]"
    return re.compile(f"(?![{re.escape(keep)}]){characters}" if keep else characters)


def escape(text: str, keep: str = KEPT) -> str:
    r"""Return a text in which every character is visible and none controls a terminal.

    Control characters, lone surrogates, bidirectional controls and characters without a width become `\x1b`,
    `\u202e`, `\U000e0041`. Characters of `keep` stay. A second call changes nothing, because a backslash stays.

    Example:
        >>> print(escape("\x1b[2J5\u202e0005"))
        \x1b[2J5\u202e0005
    """
    if text.isascii() and text.isprintable():  # most texts
        return text
    return _unsafe(keep).sub(_escaped, text)


def escapes(text: str, keep: str = KEPT) -> int:
    """Return the number of characters that `escape` replaces."""
    return len(_unsafe(keep).findall(text))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
