"""Timelines of runs as SVG: what happened when, in lanes.

`value` has the plain data, which a reader of records fills; `axis` turns times into pixels, `lanes` and `columns` are
the two forms of the drawing, for up to 300 turns and for more, and `svg` writes them.
"""

from __future__ import annotations
