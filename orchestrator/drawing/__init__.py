"""Drawings as SVG, made without another program: graphs, timelines (`timeline`), plots of numbers (`plot`).

`svg(graph, marks)` draws a table of states and edges in layers, with what a run did.
"""

from __future__ import annotations
