"""`orchestrator graph`: the table of a state machine as text or as a drawing."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.cli.shipped import named
from orchestrator.drawing.svg import svg
from orchestrator.errors import ConfigError
from orchestrator.kernel.diagram import FORMATS
from orchestrator.kernel.graph import Graph


def _drawing(graph: Graph, _: str | None) -> str:
    return svg(graph)


_FORMATS: dict[str, Callable[[Graph, str | None], str]] = {**FORMATS, "svg": _drawing}


def draw(name: str, form: str) -> str:
    """Return a graph as text of one of FORMATS, or as `svg`. Raises ConfigError for an unknown name or format."""
    if form not in _FORMATS:
        raise ConfigError(f"unknown format {form!r}; known: {', '.join(_FORMATS)}")
    return _FORMATS[form](named(name), None)
