"""Add a state, a machine, a tool or a guard to a project. Every file is computed before the first one is written.

Existing files are edited at places that their syntax tree shows. All other text, comments included, stays as it is.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import ConfigError
from orchestrator.files.atomic import atomic_write
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.project.creation import addition, part_name

# ---- edits of source ----


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


# ---- additions ----


TABLE = "fsm-orchestrator"
"""The table `[tool.…]` of pyproject.toml that names the package of a project."""
_GENERAL = ("state", "event")
"""Names whose hooks would be the general ones."""


@dataclass(frozen=True, slots=True)
class Project:
    """A project: its folder and the name of its package.

    Raises:
        ConfigError: A name cannot be used, a part of that name exists, or a file has not the expected form.
        OSError: A file cannot be read or written.
    """

    folder: Path
    package: str

    @classmethod
    def at(cls, folder: Path) -> Project:
        """Return the project of a folder. Raises ConfigError if there is none."""
        try:
            said = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
            package = said["tool"][TABLE]["package"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"this folder is no project: its pyproject.toml has no [tool.{TABLE}] with the package; "
                "`orchestrator init NAME` makes a project"
            ) from error
        if not isinstance(package, str) or not package.isidentifier() or not (folder / package).is_dir():
            raise ConfigError(f"pyproject.toml: package = {package!r} of [tool.{TABLE}] is no folder here")
        return cls(folder, package)

    @property
    def machines(self) -> list[str]:
        """The machines of the project, by name."""
        found = (self.folder / self.package / "machines").glob("*.py")
        return sorted(file.stem for file in found if file.stem != "__init__")

    # ---- additions: each returns the changed files ----

    def add_tool(self, name: str) -> list[Path]:
        """Add a tool, register it in `TOOLS`, and write its test."""
        part_name(name, "tool")
        package = f"{self.package}/tools"
        listing = self._source(f"{package}/__init__.py")
        tools = listing.assigned("TOOLS")
        imports = [one for one in listing.tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
        if tools is None or not imports:
            raise ConfigError(
                f"{listing.where} has no import and no tuple TOOLS to which the tool could be added"
            )
        listing.insert_after(imports[-1], f"\nfrom {self.package}.tools.{name} import {name}")
        listing.append(tools, name)
        new = {f"{package}/{name}.py": "tool.py", f"tests/test_{name}.py": "test_tool.py"}
        return self._write(self._made(new, name=name), {listing.where: listing.edited()})

    def add_guard(self, name: str) -> list[Path]:
        """Add a guard and its test."""
        part_name(name, "guard")
        new = {f"{self.package}/guards/{name}.py": "guard.py", f"tests/test_{name}.py": "test_guard.py"}
        return self._write(self._made(new, name=name))

    def add_machine(self, name: str) -> list[Path]:
        """Add a machine: table, hooks, a function that runs it, and tests."""
        part_name(name, "machine")
        new = {
            f"{self.package}/machines/{name}.py": "machine.py",
            f"{self.package}/callbacks/{name}.py": "callbacks.py",
            f"{self.package}/{name}.py": "runner.py",
            f"tests/test_{name}.py": "test_machine.py",
        }
        return self._write(self._made(new, name=name))

    def add_state(self, name: str, machine: str | None = None) -> list[Path]:
        """Add a state at the end of the main path of a machine, with its hook and its test.

        The last edge without a guard that does not lead to the failure state is the end of that path. It leads to the
        new state then, and the new state leads to its former destination.

        Args:
            name: Name of the state.
            machine: The machine; None if there is only one.
        """
        part_name(name, "state")
        if name in _GENERAL:
            raise ConfigError(
                f"a state cannot be called {name!r}: enter_{name} is the general hook of all states"
            )
        known = self.machines
        if machine is None and len(known) != 1:
            raise ConfigError(f"name the machine with --machine: {', '.join(known) or 'there is none'}")
        if machine is not None and machine not in known:
            raise ConfigError(f"there is no machine {machine!r}; known: {', '.join(known) or 'none'}")
        chosen = machine or known[0]
        table = self._source(f"{self.package}/machines/{chosen}.py")
        _put_state(table, name)
        hooks = self._source(f"{self.package}/callbacks/{chosen}.py")
        if f"enter_{name}" in hooks.functions():
            raise ConfigError(f"{hooks.where} has a hook enter_{name} already; choose another name")
        fields = {"package": self.package, "machine": chosen, "state": name}
        text = hooks.edited().rstrip("\n") + "\n" + addition("state.py", fields)
        test = {f"tests/test_{chosen}_{name}.py": addition("test_state.py", fields)}
        return self._write(test, {table.where: table.edited(), hooks.where: text})

    # ---- files ----

    def _source(self, path: str) -> Source:
        return Source((self.folder / path).read_text(encoding="utf-8"), path)

    def _made(self, templates: Mapping[str, str], name: str) -> dict[str, str]:
        fields = {"package": self.package, "name": name}
        texts = {path: addition(template, fields) for path, template in templates.items()}
        for path, text in texts.items():
            if name in Source(text, path).imported_names(besides=name):
                raise ConfigError(f"{path} would need {name!r} for something else; choose another name")
        return texts

    def _write(self, new: Mapping[str, str], changed: Mapping[str, str] | None = None) -> list[Path]:
        for path in new:
            if (self.folder / path).exists() or (self.folder / path).with_suffix("").is_dir():
                raise ConfigError(f"{path} exists; choose another name")
        texts = {**new, **(changed or {})}
        for path, text in texts.items():
            atomic_write(self.folder / path, text.encode())
        return [Path(path) for path in texts]


def _put_state(table: Source, name: str) -> None:
    """Put a state on the main path of the table."""
    edges = table.edges()
    failing = [edge for edge in edges if edge.event == "failure"]
    path = [edge for edge in edges if not edge.guarded and edge.event != "failure"]
    if not failing or not path:
        raise ConfigError(
            f"{table.where} has no unguarded Edge, or none of the event failure, that shows where a state goes; "
            "add it to the table by hand"
        )
    inherited = [str(state) for state in LLM_LOOP.states] if table.uses("LLM_LOOP") else []
    known = {*inherited, *(edge.dest for edge in edges)}
    for edge in edges:  # the states from which they lead
        sources = edge.node.args[1]
        for one in sources.elts if isinstance(sources, ast.Tuple | ast.List) else [sources]:
            known.add(str(one.value) if isinstance(one, ast.Constant) else getattr(one, "attr", "").lower())
    if name in known:
        raise ConfigError(f"{table.where} has a state {name!r} already; choose another name")
    end, dest = path[-1], path[-1].node.args[2]
    former = table.text_of(dest)
    state = _declare(table, dest, "states", name)
    event = _declare(table, end.node.args[0], "events", f"{name}_done")
    failure, failed = (table.text_of(failing[-1].node.args[place]) for place in (0, 2))
    indent = " " * end.node.col_offset
    table.replace(dest, state)
    table.insert_after(end.node, f",\n{indent}Edge({event}, ({state},), {former})")
    table.insert_after(end.node, f",\n{indent}Edge({failure}, ({state},), {failed})")


def _declare(table: Source, like: ast.expr, keyword: str, name: str) -> str:
    """Declare a state or an event in the way of another one, and return its spelling in the table."""
    if isinstance(like, ast.Attribute):
        enum = table.text_of(like.value)
        classes = (one for one in table.tree.body if isinstance(one, ast.ClassDef) and one.name == enum)
        if (found := next(classes, None)) is None:
            raise ConfigError(f"{table.where} has no class {enum}; add {name!r} to the table by hand")
        table.insert_after(found.body[-1], f'\n    {name.upper()} = "{name}"')
        return f"{enum}.{name.upper()}"
    listed = table.keyword(keyword)
    if listed is None:
        raise ConfigError(f"{table.where} has no list {keyword}=; add {name!r} to the table by hand")
    table.append(listed, f'"{name}"')
    return f'"{name}"'
