"""Names of source lines that stay the same when lines move: the functions around a line, and its text."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def line_names(path: Path) -> tuple[str, ...]:
    """Return a name for each line of a Python file; equal lines of one function share a name."""
    return names_of(path.read_text())


def names_of(text: str) -> tuple[str, ...]:
    """Return a name for each line of a source text, as `Class.method: text of the line`."""
    lines = text.splitlines()
    around = [""] * len(lines)

    def walk(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}" if name else child.name
                for number in range(child.lineno - 1, child.end_lineno or child.lineno):
                    around[number] = inner
            walk(child, inner)

    walk(ast.parse(text), "")
    return tuple(f"{name}: {line.strip()}" for name, line in zip(around, lines, strict=True))
