"""Drawings as PNG, with the extra `png`: resvg, a renderer in Rust whose wheel needs no other program or library.

cairosvg was rejected: its wheel needs the system's libcairo. Python's standard library can write the format, but not
rasterize lines and text.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from orchestrator.drawing.element import style_text
from orchestrator.drawing.stylesheet import light_stylesheet
from orchestrator.errors import MissingExtra

SCALE = 2.0
"""Pixels of the picture for one pixel of the drawing: sharp on the screens of today."""


def png(svg: str, *, scale: float = SCALE) -> bytes:
    """Return a drawing of this package as PNG, in light colours.

    Args:
        svg: The drawing, with its stylesheet.
        scale: Pixels for one pixel of the drawing.

    Raises:
        MissingExtra: The extra `png` is not installed.
    """
    try:
        import resvg_py
    except ImportError as error:
        raise MissingExtra("resvg-py", "png", "machines") from error
    light = svg.replace(style_text(), escape(light_stylesheet()))
    return bytes(resvg_py.svg_to_bytes(svg_string=light, zoom=scale))
