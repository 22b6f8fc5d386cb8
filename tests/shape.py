"""`python -m tests.shape`: the shape of the source in figures, by folder, beside well-made projects.

    python -m tests.shape                  the whole tree and each folder
    python -m tests.shape orchestrator/cli this folder and the folders in it
    python -m tests.shape --single-use     also the functions with one call site, by file

A thermometer, not a limit: it fails nothing. A function counts as single-use if the only place in the source that names
it is one call (or one access, for a property). Nested functions and lambdas count too, so a function that becomes one
of these is not gone. Functions with a decorator other than a property are called by whoever registered them and do not
count, and neither do names that the hooks of a machine are found by.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCES = "orchestrator", "callbacks", "guards"
LONG_FILE, LONG_FUNCTION = 1_000, 100
"""Lines from which a file or a function is listed."""
HOOKS = ("enter_", "leave_", "before_", "after_")

ANCHORS = {
    "structlog": (245, 48, 27, 12.5, 4.9, 3.2, 2.2),
    "python-statemachine": (148, 59, 47, 12.6, 4.8, 3.6, 9.1),
    "pydantic-ai": (170, 34, 35, 19.8, 11.2, 5.8, 4.2),
}
"""Median file, functions and imports in 1,000 lines, mean function, % of functions over 40 lines, % of comments, and
private single-use functions in 1,000 lines: measured once, by these rules."""


class Function(NamedTuple):
    """A function, a method or a lambda."""

    path: Path
    name: str
    line: int
    lines: int
    countable: bool
    """Whether it is called by its name alone: neither registered by a decorator nor found as a hook or an operator."""


class File(NamedTuple):
    """What one file consists of."""

    path: Path
    lines: int
    code: int
    imports: int
    comments: int
    functions: tuple[Function, ...]
    calls: Counter[str]
    """Name -> how often it is called, or read as an attribute that is not called."""
    names: Counter[str]
    """Name -> how often it occurs at all, except where it is defined."""


def read(path: Path) -> File:
    """Return the figures of a file of Python."""
    text = path.read_text()
    tree = ast.parse(text)
    lines = text.splitlines()
    documented = _docstring_lines(tree)
    imports = sum(
        node.end_lineno - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and node.end_lineno is not None
    )
    comments = sum(line.lstrip().startswith("#") for line in lines)
    blank = sum(not line.strip() for line in lines)
    blank_in_docstrings = sum(not lines[number - 1].strip() for number in documented)
    code = len(lines) - comments - blank - (len(documented) - blank_in_docstrings) - imports
    calls: Counter[str] = Counter()
    names: Counter[str] = Counter()
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                names[name] += 1
                if id(node) in called or isinstance(node, ast.Attribute):
                    calls[name] += 1
            case ast.Constant(value=str(name)) if name.isidentifier():
                names[name] += 1  # getattr, a registry, an entry point
    return File(path, len(lines), code, imports, comments, tuple(_functions(path, tree)), calls, names)


def _docstring_lines(tree: ast.AST) -> set[int]:
    """Return the numbers of the lines of docstrings, those of attributes included."""
    found: set[int] = set()
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str())) if statement.end_lineno is not None:
                    found |= {*range(statement.lineno, statement.end_lineno + 1)}
    return found


def _functions(path: Path, tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            decorators = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
            registered = decorators - {"property", "cached_property", "staticmethod", "classmethod"}
            countable = not registered and not node.name.startswith(("__", *HOOKS))
            yield Function(path, node.name, node.lineno, node.end_lineno - node.lineno + 1, countable)
        elif isinstance(node, ast.Lambda) and node.end_lineno is not None:
            yield Function(path, "<lambda>", node.lineno, node.end_lineno - node.lineno + 1, countable=True)


def single_use(files: Sequence[File]) -> list[Function]:
    """Return the functions with one call site in these files.

    A private name is looked for in its own file, any other name in all files; a name that several functions share there
    counts for none of them, because the place does not tell which one it means.
    """
    calls: Counter[str] = Counter()
    names: Counter[str] = Counter()
    defined: Counter[str] = Counter()
    for file in files:
        calls += file.calls
        names += file.names
        defined.update({function.name for function in file.functions})
    found: list[Function] = []
    for file in files:
        own = Counter(function.name for function in file.functions)
        for function in file.functions:
            name = function.name
            if name == "<lambda>":
                found.append(function)
            elif function.countable:
                private = name.startswith("_")
                unique = own[name] == 1 and (private or defined[name] == 1)
                where = (file.calls, file.names) if private else (calls, names)
                if unique and (where[0][name], where[1][name]) == (1, 1):
                    found.append(function)
    return found


class Shape(NamedTuple):
    """The figures of some files."""

    files: int
    lines: int
    code: int
    imports: int
    median: float
    functions: float
    """In 1,000 lines; without lambdas, as for the projects beside it. So are the next ones."""
    imported: float
    mean: float
    long: float
    """Share of functions of more than 40 lines."""
    comments: float
    private: float
    """Private functions with one call site, in 1,000 lines."""
    single: int
    """All functions with one call site, nested ones and lambdas included."""


def shape_of(files: Sequence[File], single: Sequence[Function]) -> Shape:
    """Return the figures of some files; `single` are the functions of the whole tree with one call site."""
    lines = sum(file.lines for file in files) or 1
    named = [one for file in files for one in file.functions if one.name != "<lambda>"]
    paths = {file.path for file in files}
    there = [function for function in single if function.path in paths]
    thousands = lines / 1_000
    return Shape(
        files=len(files),
        lines=lines,
        code=sum(file.code for file in files),
        imports=sum(file.imports for file in files),
        median=statistics.median(file.lines for file in files),
        functions=len(named) / thousands,
        imported=sum(file.imports for file in files) / thousands,
        mean=statistics.fmean(one.lines for one in named) if named else 0.0,
        long=sum(one.lines > 40 for one in named) / (len(named) or 1),
        comments=sum(file.comments for file in files) / lines,
        private=sum(one.name.startswith("_") for one in there) / thousands,
        single=len(there),
    )


COLUMNS = "{:38} {:>5} {:>7} {:>7} {:>7} | {:>6} {:>6} {:>6} {:>5} {:>6} {:>6} {:>6} | {:>6}"
HEADER = COLUMNS.format(
    *(
        "",
        "files",
        "lines",
        "code",
        "imports",
        "median",
        "f/1000",
        "i/1000",
        "mean",
        ">40",
        "#",
        "1 use",
        "single",
    )
)


def row(name: str, shape: Shape) -> str:
    """Return the line of a folder."""
    sizes = shape.files, f"{shape.lines:,}", f"{shape.code:,}", f"{shape.imports:,}"
    rates = f"{shape.median:.0f}", f"{shape.functions:.1f}", f"{shape.imported:.1f}", f"{shape.mean:.1f}"
    shares = f"{shape.long:.1%}", f"{shape.comments:.1%}", f"{shape.private:.1f}"
    return COLUMNS.format(name, *sizes, *rates, *shares, f"{shape.single:,}")


def report(root: Path, places: Sequence[str], *, list_single: bool) -> Iterator[str]:
    """Yield the lines of the tables."""
    files = [read(path) for source in SOURCES for path in sorted((root / source).rglob("*.py"))]
    single = single_use(files)
    yield HEADER
    for name, (*figures, long, comments, private) in ANCHORS.items():
        yield COLUMNS.format(name, *[""] * 4, *figures, f"{long}%", f"{comments}%", private, "").rstrip()
    folders: dict[str, list[File]] = defaultdict(list)
    for file in files:
        parts = file.path.relative_to(root).parts
        for depth in range(1, len(parts)):
            folders["/".join(parts[:depth])].append(file)
    yield row("all", shape_of(files, single))
    for name, some in sorted(folders.items()):
        shown = any(name == place or name.startswith(f"{place}/") for place in places)
        if shown or (not places and name.count("/") <= 1):
            yield row(name, shape_of(some, single))
    chosen = [
        file
        for file in files
        if not places or file.path.relative_to(root).as_posix().startswith(tuple(places))
    ]
    for file in chosen:
        name = file.path.relative_to(root).as_posix()
        if file.lines > LONG_FILE:
            yield f"long file: {name}, {file.lines:,} lines"
        for function in file.functions:
            if function.lines > LONG_FUNCTION:
                yield f"long function: {name}:{function.line} {function.name}, {function.lines} lines"
    if list_single:
        paths = {file.path for file in chosen}
        for function in single:
            if function.path in paths:
                name = function.path.relative_to(root).as_posix()
                yield f"one call site: {name}:{function.line} {function.name}, {function.lines} lines"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.shape", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "places", nargs="*", metavar="FOLDER", help="folders or files; all folders if none is given"
    )
    parser.add_argument("--single-use", action="store_true", help="list the functions with one call site")
    options = parser.parse_args()
    print("\n".join(report(ROOT, options.places, list_single=options.single_use)))  # noqa: T201  its output
    return 0


if __name__ == "__main__":
    sys.exit(main())
