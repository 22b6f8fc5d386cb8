"""`orchestrator graph`: the table of a state machine as text."""

from __future__ import annotations

from orchestrator.cli.shipped import named
from orchestrator.errors import ConfigError
from orchestrator.kernel.diagram import FORMATS


def draw(name: str, form: str) -> str:
    """Return a graph in one of FORMATS. Raises ConfigError for an unknown name or format."""
    if form not in FORMATS:
        raise ConfigError(f"unknown format {form!r}; known: {', '.join(FORMATS)}")
    return FORMATS[form](named(name), None)
