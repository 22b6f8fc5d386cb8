"""Split a docstring for a model: its first paragraph, and a line about each parameter."""

from __future__ import annotations

import inspect
import itertools
import re

_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_ENTRY = re.compile(r"(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into its first paragraph and its parameters' descriptions."""
    lines = inspect.cleandoc(text).splitlines()
    start = next((number for number, line in enumerate(lines) if _SECTION.fullmatch(line)), len(lines))
    described: dict[str, str] = {}
    current, margin = "", 0
    for line in itertools.takewhile(lambda line: not line or line[0].isspace(), lines[start + 1 :]):
        indent = len(line) - len(line.lstrip())
        entry = _ENTRY.fullmatch(line.strip())
        if entry and (not current or indent <= margin):
            current, margin = entry[1], indent
            described[current] = entry[2]
        elif current:
            described[current] = f"{described[current]} {line.strip()}".strip()
    return " ".join("\n".join(lines[:start]).partition("\n\n")[0].split()), described
