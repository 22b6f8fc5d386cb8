"""Elements of SVG: the frame of a drawing, and numbers in its attributes."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.drawing.stylesheet import stylesheet
from orchestrator.drawing.words import escaped


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
