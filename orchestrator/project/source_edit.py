"""Edits of Python source at places that its syntax tree shows. All other text, comments included, stays as it is."""

from __future__ import annotations

import ast
from typing import NamedTuple

from orchestrator.errors import ConfigError


class EdgeCall(NamedTuple):
    """One `Edge(event, sources, dest, …)` in a source."""

    node: ast.Call
    event: str
    dest: str
    guarded: bool


class Source:
    """The text of a module, and its edits, which are applied together.

    Raises:
        ConfigError: The text is no Python.
    """

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self._text = text
        self._lines = [line.encode() for line in text.splitlines(keepends=True)]
        try:
            self.tree = ast.parse(text)
        except SyntaxError as error:
            raise ConfigError(f"{where}:{error.lineno}: {error.msg}; correct the file first") from error
        self._edits: list[tuple[int, int, str]] = []

    def text_of(self, node: ast.expr) -> str:
        """Return the source of a node."""
        return ast.get_source_segment(self._text, node) or ""

    def replace(self, node: ast.expr, text: str) -> None:
        """Replace the source of a node."""
        self._edits.append((*self._span(node), text))

    def append(self, node: ast.Tuple | ast.List, text: str) -> None:
        """Append an element to a tuple or a list, on a line of its own if the others have theirs."""
        if not node.elts:
            start, end = self._span(node)
            closing = "()" if isinstance(node, ast.Tuple) else "[]"
            one = f"{text}," if isinstance(node, ast.Tuple) else text
            self._edits.append((start, end, f"{closing[0]}{one}{closing[1]}"))
            return
        last = node.elts[-1]
        separated = len(node.elts) > 1 and last.lineno != node.elts[0].lineno
        between = f",\n{' ' * last.col_offset}" if separated else ", "
        self.insert_after(last, between + text)

    def insert_after(self, node: ast.expr | ast.stmt, text: str) -> None:
        """Insert a text after a node."""
        end = self._span(node)[1]
        self._edits.append((end, end, text))

    def edited(self) -> str:
        """Return the text with all edits. Raises ConfigError if it is no Python any more."""
        data = b"".join(self._lines)
        order = sorted(
            range(len(self._edits)), key=lambda place: (self._edits[place][0], place), reverse=True
        )
        for start, end, text in (self._edits[place] for place in order):
            data = data[:start] + text.encode() + data[end:]
        Source(data.decode(), self.where)
        return data.decode()

    # ---- places ----

    def edges(self) -> list[EdgeCall]:
        """Return the edges of the tables, in the order of the source."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and _name(node.func) == "Edge" and len(node.args) > 2:  # noqa: PLR2004
                guarded = len(node.args) > 3 or any(one.arg == "when" for one in node.keywords)  # noqa: PLR2004
                found.append(EdgeCall(node, _value(node.args[0]), _value(node.args[2]), guarded))
        return sorted(found, key=lambda edge: self._span(edge.node))

    def keyword(self, name: str) -> ast.Tuple | ast.List | None:
        """Return the tuple or list that some call is given as `name=`."""
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.keyword)
                and node.arg == name
                and isinstance(node.value, ast.Tuple | ast.List)
            ):
                return node.value
        return None

    def assigned(self, name: str) -> ast.Tuple | ast.List | None:
        """Return the tuple or list that the module assigns to a name."""
        for node in self.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=ast.Tuple() | ast.List() as value):
                    if target == name:
                        return value
        return None

    def class_of(self, name: str) -> ast.ClassDef | None:
        """Return the class of a name."""
        return next(
            (one for one in self.tree.body if isinstance(one, ast.ClassDef) and one.name == name), None
        )

    def last_import(self) -> ast.stmt | None:
        """Return the last import of the module."""
        found = [one for one in self.tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
        return found[-1] if found else None

    def functions(self) -> set[str]:
        """Return the names of the functions of the module."""
        return {one.name for one in self.tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}

    def imported_names(self, besides: str) -> set[str]:
        """Return the names that the module imports, except those from a module called `besides`."""
        return {
            alias.asname or alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            and not (isinstance(node, ast.ImportFrom) and (node.module or "").endswith(f".{besides}"))
            for alias in node.names
            if alias.asname is None or alias.name != besides
        }

    def uses(self, name: str) -> bool:
        """Return whether the module uses a name."""
        return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(self.tree))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return start and end of a node in bytes."""
        before = [0]
        for line in self._lines:
            before.append(before[-1] + len(line))
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return before[node.lineno - 1] + node.col_offset, before[end_line - 1] + end


def _name(node: ast.expr) -> str:
    """Return the last part of a name: `Edge` for `kernel.Edge`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _value(node: ast.expr) -> str:
    """Return the value that a state or an event has in a table: a text, or a member of an enum in lower case."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return _name(node).lower()
