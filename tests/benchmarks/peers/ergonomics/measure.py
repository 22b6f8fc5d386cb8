"""Lines and concepts of a program, counted in its syntax tree.

A concept is a name that a reader must know from the library:

- a name that is imported from it;
- an attribute or method of an object of it;
- an option: a keyword argument of a call of it;
- a string that it defines: the key of a dictionary, or a value that an object of it is compared with.

An object is the library's if its expression starts at an imported name, or at a variable that is bound to such an
expression or has such an annotation: an assignment, a loop, a `with`, a pattern, a parameter, a function of the program
that returns one. Names that the program or the `task.py` above its folder defines are not counted. Each concept counts
once.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What a program needs."""

    lines: int
    """Lines that are not empty and have more than a comment; the docstring of the module is a comment."""
    statements: int
    names: tuple[str, ...]
    members: tuple[str, ...]
    options: tuple[str, ...]
    strings: tuple[str, ...]
    storing: int
    """Statements with which the program itself stores the state of a run, or reads it."""

    @property
    def concepts(self) -> int:
        """The number of concepts."""
        return sum(map(len, (self.names, self.members, self.options, self.strings)))


def count(program: Path) -> Count:
    """Return the figures of a program in a file."""
    task = (program.parents[1] / "task.py").read_text(encoding="utf-8")
    return count_text(program.read_text(encoding="utf-8"), task)


def count_text(text: str, task: str = "") -> Count:
    """Return the figures of a program, given its text and that of its task."""
    tree = ast.parse(text)
    found = _Reader(tree, frozenset(_defined(ast.parse(task))))
    found.read()
    return Count(
        lines=_lines(text, tree),
        statements=sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
        - (ast.get_docstring(tree) is not None),
        names=tuple(sorted(found.names)),
        members=tuple(sorted(found.members)),
        options=tuple(sorted(found.options)),
        strings=tuple(sorted(found.strings)),
        storing=sum(map(_stores, _simple_statements(tree))),
    )


def _lines(text: str, tree: ast.Module) -> int:
    tokens = tokenize.generate_tokens(StringIO(text).readline)
    lines: set[int] = set()
    for token in tokens:
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    if ast.get_docstring(tree) is not None:
        doc = tree.body[0]
        lines.difference_update(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    return len(lines)


def _simple_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not hasattr(node, "body"))


_FILES = ("task.STATE", "task.AGENT", "task.RESULT", "task.RESULTS")


def _stores(statement: ast.stmt) -> bool:
    """Return whether a statement calls a method of one of the files for what another process needs."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value).partition("[")[0] in _FILES
        for node in ast.walk(statement)
    )


def _defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names of functions, classes and fields of a module."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name, body=body):
                yield name
                for field_of_class in body:
                    if isinstance(field_of_class, ast.AnnAssign) and isinstance(
                        field_of_class.target, ast.Name
                    ):
                        yield field_of_class.target.id


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class _Reader:
    """Collects the concepts of one program."""

    tree: ast.Module
    shared: frozenset[str]
    """Names that the task defines."""
    names: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)
    options: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    theirs: set[str] = field(default_factory=set)
    """Variables whose objects are the library's."""
    own: set[str] = field(default_factory=set)
    """Functions of the program."""

    def read(self) -> None:
        self.own.update(_defined(self.tree))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and _foreign(node.module or ""):
                self.names.update(one.name for one in node.names)
                self.theirs.update(one.asname or one.name for one in node.names)
        while self._bound():
            pass
        for node in ast.walk(self.tree):
            self._collect(node)

    # ---- which variables are the library's ----

    def _bound(self) -> bool:
        """Add the variables that are bound to its objects; return whether there was one more."""
        before = len(self.theirs)
        for node in ast.walk(self.tree):
            self.theirs.update(self._targets(node))
        return len(self.theirs) > before

    def _targets(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Assign(targets=[target], value=value) if self._is_theirs(value):
                yield from _variables(target)
            case ast.AnnAssign(target=target, annotation=annotation, value=ast.expr() as value) if (
                self._mentions(annotation) or self._is_theirs(value)
            ):
                yield from _variables(target)
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                yield from _variables(target) if self._is_theirs(value) else ()
            case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)) if self._is_theirs(value):
                yield name
            case ast.arg(arg=name, annotation=ast.expr() as annotation) if self._mentions(annotation):
                yield name
            case ast.FunctionDef(name=name, returns=ast.expr() as made) if self._mentions(made):
                yield name
            case ast.AsyncFunctionDef(name=name, returns=ast.expr() as made) if self._mentions(made):
                yield name

    def _mentions(self, annotation: ast.expr) -> bool:
        return any(isinstance(node, ast.Name) and node.id in self.theirs for node in ast.walk(annotation))

    def _is_theirs(self, value: ast.expr) -> bool:
        match value:
            case ast.Name(id=name):
                return name in self.theirs
            case ast.Attribute(value=base, attr=name):
                return name not in self.shared | self.own and self._is_theirs(base)
            case ast.Call(func=base) | ast.Subscript(value=base) | ast.Await(value=base):
                return self._is_theirs(base)
        return False

    # ---- what is used of them ----

    def _parameters(self, names: set[str]) -> set[str]:
        """Return the parameters of these functions of the program: the arguments of a tool are its own names."""
        found = (node for node in ast.walk(self.tree) if isinstance(node, _FUNCTIONS) and node.name in names)
        return {
            node.arg for function in found for node in ast.walk(function.args) if isinstance(node, ast.arg)
        }

    def _collect(self, node: ast.AST) -> None:
        match node:
            case ast.Attribute(attr=name) if self._is_theirs(node):
                self.members.add(name)
            case ast.MatchClass(kwd_attrs=names):
                self.members.update(names)
            case ast.Call(func=function, args=args, keywords=keywords) if self._is_theirs(function):
                if not (isinstance(function, ast.Name) and function.id in self.own):
                    named = {one.id for one in args if isinstance(one, ast.Name)}
                    self.options.update({one.arg for one in keywords if one.arg} - self._parameters(named))
            case ast.Dict(keys=keys):
                self.strings.update(self._texts(keys))
            case ast.Subscript(value=base, slice=key) if self._is_theirs(base):
                self.strings.update(self._texts([key]))
            case ast.Compare(left=left, comparators=others) if self._is_theirs(left):
                self.strings.update(self._texts(others))

    def _texts(self, nodes: list[ast.expr] | list[ast.expr | None]) -> Iterator[str]:
        for node in nodes:
            match node:
                case ast.Constant(value=str(text)) if text not in self.own | self._parameters(self.own):
                    yield text


def _foreign(module: str) -> bool:
    root = module.partition(".")[0]
    return root not in sys.stdlib_module_names and root != "tests"


def _variables(target: ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
