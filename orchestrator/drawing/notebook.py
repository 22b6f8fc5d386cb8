"""Representations of graphs, agents and results in notebooks. Importing this module adds drawings to those of graphs.

The package imports it if IPython is loaded, so that a program without a notebook never does.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.drawing.element import escaped
from orchestrator.drawing.svg import GraphMarks, svg
from orchestrator.kernel.graph import DRAWINGS, Graph

LONGEST = 4_000
"""Characters of a value that are shown."""

DRAWINGS["image/svg+xml"] = svg


def bundle(
    facts: Mapping[str, object], graph: Graph | None, marks: GraphMarks | None = None
) -> dict[str, str]:
    """Return facts with their names, as text and as HTML with the drawing of a graph below."""
    kept = {name: _text(value) for name, value in facts.items() if value is not None}
    kept = {name: text for name, text in kept.items() if text}
    plain = "\n".join(f"{name}: {text}" for name, text in kept.items())
    rows = "".join(
        f"<tr><th>{escaped(name)}</th><td><pre>{_lines(text)}</pre></td></tr>" for name, text in kept.items()
    )
    drawn = "" if graph is None else svg(graph, marks)
    return {"text/plain": plain, "text/html": f"<table>{rows}</table>{drawn}"}


def _text(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _lines(text: str) -> str:
    """Return text for HTML with its line breaks."""
    return "\n".join(map(escaped, text.split("\n")))
