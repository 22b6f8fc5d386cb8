"""Where the lines of a source are: their function and their statement, which stay the same when the lines move."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

MODULE = "(module)"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Place(NamedTuple):
    """A statement, or a test. Equal places of a file cannot be told apart, and are counted."""

    path: str
    function: str
    text: str = ""


class Counts(NamedTuple):
    """How many places there are, and how many of them are covered."""

    existing: Counter[Place]
    covered: Counter[Place]


def lines_and_branches(report: Mapping[str, Any], sources: Mapping[str, str]) -> tuple[Counts, Counts]:
    """Return the places of the lines and branches of a JSON report of coverage."""
    lines, branches = Counts(Counter(), Counter()), Counts(Counter(), Counter())
    for path, file in report["files"].items():
        place = _Source(path, sources[path]).place
        for key, counters in (("executed_lines", lines), ("missing_lines", lines[:1])):
            for counter in counters:
                counter.update(place(line) for line in file[key])
        for key, counters in (("executed_branches", branches), ("missing_branches", branches[:1])):
            for counter in counters:
                counter.update(_branch(place, *ends) for ends in file[key])
    return lines, branches


def lost(before: Counts, after: Counts) -> Iterator[Place]:
    """Yield what was covered before, still exists and is not covered now, once for each lost place.

    A place that is gone from its file is looked for in the files that did not have it before.
    """
    moved = Counts(Counter(), Counter())
    for old, new in zip(after, moved, strict=True):
        for place, count in old.items():
            if place not in before.existing:
                new[place._replace(path="")] += count
    for place, count in sorted(before.covered.items()):
        here, now = (place, after) if place in after.existing else (place._replace(path=""), moved)
        # At the level of a module the statement alone says too little to be recognised in another file.
        if here == place or place.function != MODULE:
            for _ in range(min(count, now.existing[here]) - now.covered[here]):
                yield place


def _branch(place: Callable[[int], Place], start: int, end: int) -> Place:
    at = place(start)
    to = place(end).text if end > 0 else "the end"
    return at._replace(text=f"{at.text} -> {to}")


class _Source:
    """A file: the function and the statement of each line."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()
        self._functions: dict[int, str] = {}
        self._texts: dict[int, str] = {}
        self._walk(ast.parse(text), "")

    def place(self, line: int) -> Place:
        text = self._texts.get(line) or self._lines[line - 1].strip()
        return Place(self._path, self._functions.get(line, MODULE), text)

    def _walk(self, node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = function
            if isinstance(child, _SCOPES):
                name = f"{function}.{child.name}".lstrip(".")
                for line in range(child.lineno, (child.end_lineno or child.lineno) + 1):
                    self._functions[line] = name
            if isinstance(child, ast.stmt | ast.ExceptHandler):
                self._texts.setdefault(child.lineno, _text(child))
            self._walk(child, name)


def _text(statement: ast.stmt | ast.ExceptHandler) -> str:
    """Return a statement on one line; of one with a body, its first line."""
    if isinstance(statement, _SCOPES):
        return f"def {statement.name}"
    if isinstance(
        statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Raise | ast.Assert
    ):
        return " ".join(ast.unparse(statement).split())
    return ast.unparse(statement).partition("\n")[0]


def test_places(ids: Iterable[str]) -> Counter[Place]:
    """Return the tests of some ids without their parameters, with the number of cases."""
    parts = (one.partition("::") for one in ids)
    return Counter(Place(path, name.partition("[")[0]) for path, _, name in parts)
