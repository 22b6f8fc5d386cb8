"""Elements and text of SVG: rectangles, the frame of a drawing, numbers in attributes, estimated widths of text.

A width is an upper estimate for the system fonts of browsers, so that no label touches what is beside it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from orchestrator.drawing.stylesheet import stylesheet

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


_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_LONG = 10
"""Seconds from which on tenths are left out."""


def duration(seconds: float) -> str:
    """Return a length of time in one or two units: `12 ms`, `2.3 s`, `41 s`, `3 m 12 s`, `2 h 5 m`, `3 d 4 h`."""
    if seconds < 1:
        return f"{_short(seconds * 1_000)} ms" if seconds > 0 else "0 s"
    if seconds < _MINUTE - 0.5:
        return f"{seconds:.0f} s" if seconds >= _LONG else f"{_short(seconds)} s"
    whole = round(seconds)
    if whole < _HOUR:
        return _two(whole, _MINUTE, "m", 1, "s")
    return _two(whole, _HOUR, "h", _MINUTE, "m") if whole < _DAY else _two(whole, _DAY, "d", _HOUR, "h")


def _short(value: float) -> str:
    """Return a number below 1000 with two digits or more."""
    return f"{value:.1f}".removesuffix(".0") if value < _LONG else f"{value:.0f}"


def _two(whole: int, large: int, name: str, small: int, rest: str) -> str:
    first, second = divmod(whole, large)
    return f"{first} {name} {second // small} {rest}" if second // small else f"{first} {name}"


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return a text of at most `longest` characters; a longer one ends with an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def escaped(text: str) -> str:
    """Return text for XML: markup is escaped, control and format characters are visible escapes."""
    return escape("".join(map(_visible, text)))


def _visible(character: str) -> str:
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
        return f"\\u{{{ord(character):x}}}"
    return character


def drawing(
    kind: str,
    size: tuple[float, float],
    title: str,
    parts: Iterable[str],
    *,
    description: str = "",
    styled: bool = True,
) -> str:
    """Return a whole drawing.

    There are no `style` attributes, so that a strict content security policy allows it.

    Args:
        kind: Its class, such as `fsm-graph`.
        size: Width and height in pixels.
        title: A short name for screen readers; browsers show it as a tooltip.
        parts: The elements; empty ones are left out.
        description: The content in words, for people who do not see it.
        styled: Whether the stylesheet is included; without it a page has `stylesheet()` once.
    """
    wide, high = map(number, size)
    extent = f'width="{wide}" height="{high}"'
    found = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="fsm-drawing {kind}" {extent}'
            f' viewBox="0 0 {wide} {high}" role="img">'
        ),
        f"<title>{escaped(title)}</title>",
        f"<desc>{escaped(description)}</desc>" if description else "",
        f"<style>{style_text()}</style>" if styled else "",
        f'<rect class="surface" {extent}/>',
        *parts,
        "</svg>\n",
    ]
    return "\n".join(part for part in found if part)


def number(value: float) -> str:
    """Return a coordinate with at most one decimal place."""
    return f"{value:.1f}".removesuffix(".0")


def point(at: tuple[float, float]) -> str:
    """Return a point of a path."""
    return f"{number(at[0])} {number(at[1])}"


def style_text() -> str:
    """Return the stylesheet as text of an XML element."""
    return stylesheet().replace("&", "&amp;").replace("<", "&lt;")


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right side."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its bottom."""
        return self.y + self.height

    @property
    def middle(self) -> float:
        """The x of its middle."""
        return self.x + self.width / 2

    def meets(self, other: Rectangle) -> bool:
        """Return whether two rectangles have an area in common."""
        apart = self.right <= other.x or other.right <= self.x
        return not (apart or self.bottom <= other.y or other.bottom <= self.y)
