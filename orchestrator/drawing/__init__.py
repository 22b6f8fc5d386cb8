"""Drawings as SVG, made without another program: graphs, timelines (`timeline`), plots of numbers (`plot`).

`svg(graph, marks)` draws a table of states and edges in layers, with what a run did: `layering` chooses rank and column
of each state, `routing` the way of each edge, `layout` the coordinates, `svg` writes them.
"""

from __future__ import annotations
