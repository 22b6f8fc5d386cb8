"""Drawings of graphs as SVG, made without another program.

`svg(graph, marks)` draws a table of states and edges in layers, with what a run did: `layering` chooses rank and column
of each state, `routing` the way of each edge, `layout` the coordinates, `svg` writes them.
"""

from __future__ import annotations
