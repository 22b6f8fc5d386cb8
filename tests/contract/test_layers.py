"""Imports go one way, each library has one door, files and functions stay short.

The rules are the tables below; the rest reads the source with `ast` and never imports it, so that imports
under TYPE_CHECKING, inside functions and through import_module("…") count like any other.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeGuard

import pytest

from tests.contract.syntax import nodes, tree

pytestmark = pytest.mark.check

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = (".", "callbacks", "guards")
PACKAGES = ("orchestrator", "orchestrator_callbacks", "orchestrator_guards")

# Top row first. A unit may import itself and any lower row: no neighbour, nothing above.
# A unit is a module or a folder with everything in it; "orchestrator" is the lazy facade, __init__.py alone.
ROWS: tuple[tuple[str, ...], ...] = (
    ("orchestrator.__main__",),
    ("orchestrator.cli", "orchestrator.testing"),
    ("orchestrator.examples",),
    ("orchestrator.console",),
    (
        "orchestrator",
        "orchestrator.approval",
        "orchestrator.backtest",
        "orchestrator.branches",
        "orchestrator.evaluation",
        "orchestrator.events",
        "orchestrator.handoffs",
        "orchestrator.notification",
        "orchestrator.pipeline",
        "orchestrator.ralph",
        "orchestrator.rlm",
    ),
    ("orchestrator.engines", "orchestrator.settings"),
    ("orchestrator.runtime",),
    ("orchestrator_callbacks", "orchestrator.journal", "orchestrator.providers"),
    (
        "orchestrator.telemetry",
        "orchestrator.ops",
        "orchestrator.repl",
        "orchestrator.drawing",
        "orchestrator.project",
    ),
    ("orchestrator.machines",),
    ("orchestrator.tools",),
    ("orchestrator.llm", "orchestrator.files", "orchestrator.web"),
    ("orchestrator.kernel", "orchestrator.argument_names"),
    ("orchestrator.around", "orchestrator.errors", "orchestrator.version", "orchestrator_guards"),
)

# (importer, imported) units that break the rows, each with its reason.
EXCEPTIONS: dict[tuple[str, str], str] = {}

# The facade and the registry of what stands around the core name everything lazily, so they may import any unit.
ANYTHING = ("orchestrator", "orchestrator.around")

# Library -> the only modules or folders that may import it.
DOORS: dict[str, tuple[str, ...]] = {
    "anthropic": ("orchestrator.providers.anthropic",),
    "anyio": ("orchestrator.providers.mcp",),
    "apsw": ("orchestrator.journal.sqlite", "orchestrator.console.search_index"),
    "dbos": ("orchestrator.engines.dbos",),
    "fastapi": ("orchestrator.examples.service",),
    "mcp": ("orchestrator.providers.mcp",),
    "mcp_types": ("orchestrator.providers.mcp",),
    "openai": ("orchestrator.providers.openai",),
    "pydantic_ai": (
        "orchestrator.providers.pydantic_ai",
        "orchestrator.providers.pydantic_ai_request",
    ),
    "procrastinate": ("orchestrator.engines.procrastinate",),
    "prompt_toolkit": ("orchestrator.cli.keyboard",),
    "psycopg": (
        "orchestrator.journal.postgres",
        "orchestrator.engines.procrastinate",
        "orchestrator.engines.dbos",
    ),
    "opentelemetry": ("orchestrator.telemetry.otel",),
    "prometheus_client": (
        "orchestrator.telemetry.metrics",
        "orchestrator.telemetry.exposition",
    ),
    "resvg_py": ("orchestrator.drawing.png",),
    "structlog": ("orchestrator.telemetry",),
    "jinja2": ("orchestrator.console",),
    "markupsafe": ("orchestrator.console",),
    "starlette": (
        "orchestrator.examples.service",
        "orchestrator.console",
    ),
    "tenacity": ("orchestrator.llm.retry",),
    "transitions": ("orchestrator.kernel",),
    "yaml": ("orchestrator.runtime.evaluation.case_file",),
    "h11": ("orchestrator.web.server",),
    "uvicorn": (
        "orchestrator.web.server",
        "orchestrator.examples.service",
    ),
}

# Module or folder -> libraries it may never import.
REFUSED: dict[str, tuple[str, ...]] = {
    "orchestrator.kernel": ("pydantic", "pydantic_core", "pydantic_settings"),
}

# These import the standard library and themselves.
STANDARD_LIBRARY_ONLY = ("orchestrator.errors", "orchestrator.repl.inside", "orchestrator_guards")


# ---- reading ----


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file, over the three packages of a tree."""
    found: dict[str, Path] = {}
    for source_root in SOURCE_ROOTS:
        base = root / source_root
        for file in sorted(path for package in PACKAGES for path in (base / package).rglob("*.py")):
            parts = file.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


class Source(NamedTuple):
    """The parts of a module that are judged."""

    importing: tuple[ast.Import | ast.ImportFrom | ast.Call, ...]
    """The nodes that may import, in functions and for type checkers too."""
    import_lines: frozenset[int]
    """The lines that are executed when the module is imported."""


@cache  # several tests read every module
def parsed(text: str) -> Source:
    importing = (
        node
        for node in nodes(text)
        if isinstance(node, ast.Import | ast.ImportFrom) or _imports_by_name(node)
    )
    return Source(tuple(importing), frozenset(_import_lines(tree(text).body)))


def _imports_by_name(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return whether it is a call of `import_module` or `__import__`."""
    match node:
        case ast.Call(func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module")):
            return True
    return False


def imports(name: str, file: Path, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a module imports; `from a import b` is a.b where that is a module."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in parsed(file.read_text(encoding="utf-8")).importing:
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                source = resolve_name("." * level + (module or ""), package)
                for alias in names:
                    inner = f"{source}.{alias.name}"
                    yield node.lineno, inner if inner in known else source
            case ast.Call(args=[ast.Constant(value=str(target)), *_]):
                yield node.lineno, resolve_name(target, package)


def loaded(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """Modules of ours that the import of a module imports: not those of type checkers, nor those of its functions."""
    lines = parsed(file.read_text(encoding="utf-8")).import_lines
    return {module for line, module in imports(name, file, known) if line in lines and module in known} - {
        name
    }


def _import_lines(body: Iterable[ast.stmt]) -> Iterator[int]:
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield node.lineno
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                yield from _import_lines(node.orelse)
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                yield from _import_lines([*inner, *other])
            case ast.ClassDef(body=inner) | ast.With(body=inner):
                yield from _import_lines(inner)


# ---- judging ----


def within(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder + ".")


def unit(name: str) -> str | None:
    """The unit a module of ours belongs to; None if it stands in no row."""
    for row in ROWS:
        for candidate in row:
            if name == candidate or (candidate != "orchestrator" and within(name, candidate)):
                return candidate
    return None


def row(of: str) -> int:
    return next(number for number, units in enumerate(ROWS) if of in units)


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in PACKAGES


def wrong_direction(importer: str, imported: str) -> str | None:
    """Why one module of ours may not import another, or None."""
    here, there = unit(importer), unit(imported)
    if here is None or there is None:
        return f"{importer if here is None else imported} stands in no row"
    if here in ANYTHING or here == there or (here, there) in EXCEPTIONS or row(here) < row(there):
        return None
    relation = "a neighbour" if row(here) == row(there) else "which is above it"
    return f"{here} may not import {there}, {relation}"


def wrong_library(importer: str, imported: str) -> str | None:
    """Why a module may not import a library, or None."""
    library = imported.partition(".")[0]
    if library in sys.stdlib_module_names:
        return None
    if any(within(importer, folder) for folder in STANDARD_LIBRARY_ONLY):
        return f"only the standard library is imported here, not {library}"
    if any(within(importer, folder) and library in refused for folder, refused in REFUSED.items()):
        return f"{library} is not imported here"
    doors = DOORS.get(library)
    if doors and not any(within(importer, door) for door in doors):
        return f"only {' and '.join(doors)} may import {library}"
    return None


def import_problems(root: Path) -> list[str]:
    known = modules(root)
    problems = [f"{name} stands in no row" for name in known if unit(name) is None]
    for name, file in known.items():
        for line, imported in imports(name, file, known):
            judge = wrong_direction if is_ours(imported) else wrong_library
            if problem := judge(name, imported):
                problems.append(f"{file.relative_to(root)}:{line}: {problem}")
    return problems


def import_cycle(root: Path) -> list[str]:
    """Return one cycle of imports, also inside of a folder; empty without any."""
    known = modules(root)
    return _cycle({name: loaded(name, file, known) for name, file in known.items()})


def late_cycle(root: Path, folder: str) -> list[str]:
    """Return one cycle of the imports of a folder, those in functions and for type checkers too."""
    known = modules(root)
    inside = {name: file for name, file in known.items() if within(name, folder)}
    return _cycle(
        {
            name: {imported for _, imported in imports(name, file, known) if imported in inside} - {name}
            for name, file in inside.items()
        }
    )


def _cycle(graph: dict[str, set[str]]) -> list[str]:
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


# ---- this repository ----


def test_there_is_something_to_judge() -> None:
    assert {"orchestrator", "orchestrator.kernel.machine", "orchestrator_guards"} <= modules(ROOT).keys()


def test_imports_go_one_way_and_each_library_has_its_door() -> None:
    assert import_problems(ROOT) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert import_cycle(ROOT) == []


SERVICE = "orchestrator.runtime.service"


def test_the_run_service_knows_no_machine_and_no_facade() -> None:
    """So that `runs` and the facades can stand on it without a circle. What all machines share is none."""
    known = modules(ROOT)
    machines = ROOT / "orchestrator" / "machines"
    found = {
        f"{name} imports {imported}"
        for name, file in known.items()
        if within(name, SERVICE)
        for _, imported in imports(name, file, known)
        if within(imported, "orchestrator_callbacks")
        or (within(imported, "orchestrator.runtime") and not within(imported, SERVICE))
        or (within(imported, "orchestrator.machines") and known[imported].parent != machines)
    }
    assert not found


def test_no_command_is_imported_by_what_it_imports_at_any_time() -> None:
    assert late_cycle(ROOT, "orchestrator.cli") == []


def test_every_exception_is_still_needed() -> None:
    known = modules(ROOT)
    used = {
        (unit(name), unit(imported))
        for name, file in known.items()
        for _, imported in imports(name, file, known)
    }
    assert EXCEPTIONS.keys() <= used


# One warmed interpreter forks once a module: the libraries are imported already, of ours nothing, or only rows that
# are closed under imports. A closed set loads alike whoever asks for it first, so with the rows below loaded a module
# meets the same half-made modules as in an empty interpreter, at a fraction of the time.
IMPORT_EACH_FIRST = """
import gc, importlib, json, os, sys, traceback
import apsw, orjson, prometheus_client, pydantic, pydantic_settings, structlog, tenacity, transitions
import pytest, rich, typer

gc.disable()  # or each child would walk through all that is loaded, and copy it
packages, *groups = json.load(sys.stdin)
below, failed = set(), 0
for group in groups:
    for name in group:
        child = os.fork()
        if not child:
            try:
                importlib.import_module(name)
            except BaseException:
                print(f"import {name}", file=sys.stderr)
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        failed |= os.waitpid(child, 0)[1]
    if failed:
        break
    if group is not groups[-1]:
        below.update(group)
        for name in group:
            importlib.import_module(name)
        others = {name for name in sys.modules if name.partition(".")[0] in packages} - below
        assert not others, f"imports from above: {sorted(others)}"
sys.exit(bool(failed))
"""


@pytest.mark.campaign
def test_each_module_can_be_imported_first(campaign: Callable[[int, int], int]) -> None:
    names = [name for name in modules(ROOT) if not name.endswith("__main__")]
    rows = [[name for name in names if unit(name) in units] for units in reversed(ROWS)]
    # The lazy facade is the parent of the rows below it: it is there whenever one of them is.
    rows = [["orchestrator"], *([name for name in group if name != "orchestrator"] for group in rows)]
    groups = [group for group in rows if group]
    assert sorted(chain.from_iterable(groups)) == sorted(names)
    path = os.pathsep.join(str(ROOT / source_root) for source_root in SOURCE_ROOTS)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH_FIRST],
        input=json.dumps([PACKAGES, *(groups if campaign(1, 0) else [names])]),
        env={**os.environ, "PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


# ---- the judge itself ----

PLANTED = [
    ("orchestrator/kernel/graph.py", "from orchestrator.telemetry import log", "which is above it"),
    ("orchestrator/kernel/graph.py", "from ..telemetry.log import TransitionLog", "which is above it"),
    ("orchestrator/kernel/graph.py", "from orchestrator import Agent", "which is above it"),
    ("orchestrator/kernel/graph.py", "__import__('orchestrator.runtime')", "which is above it"),
    ("orchestrator/kernel/graph.py", "import_module('..runtime')", "which is above it"),
    ("orchestrator/kernel/graph.py", "def late():\n    import orchestrator.runtime", "which is above it"),
    ("orchestrator/kernel/graph.py", "from orchestrator import llm", "which is above it"),
    ("orchestrator/runtime/llm_loop/agent.py", "import transitions", "only orchestrator.kernel may import"),
    ("orchestrator/kernel/graph.py", "import pydantic", "pydantic is not imported here"),
    (
        "orchestrator/runtime/llm_loop/agent.py",
        "from tenacity import retry",
        "only orchestrator.llm.retry may",
    ),
    ("orchestrator/telemetry/log.py", "import prometheus_client", "only orchestrator.telemetry.metrics and"),
    (
        "orchestrator/journal/postgres.py",
        "import apsw",
        "only orchestrator.journal.sqlite and orchestrator.console.search_index may import",
    ),
    ("orchestrator/journal/memory.py", "import structlog", "only orchestrator.telemetry may import"),
    ("orchestrator/runtime/llm_loop/agent.py", "from orchestrator.events import Fact", "which is above it"),
    ("orchestrator/pipeline.py", "from orchestrator.ralph import RALPH", "a neighbour"),
    ("orchestrator/utils.py", "", "orchestrator.utils stands in no row"),
    (
        "callbacks/orchestrator_callbacks/llm_loop/enter.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from orchestrator.journal import memory",
        "a neighbour",
    ),
    ("guards/orchestrator_guards/budget.py", "import orjson", "only the standard library"),
    ("guards/orchestrator_guards/budget.py", "from orchestrator.errors import GraphError", "a neighbour"),
]

ALLOWED = [
    ("orchestrator/__main__.py", "from orchestrator.cli import main"),
    ("orchestrator/__init__.py", "import importlib\nimportlib.import_module('orchestrator.runtime')"),
    ("orchestrator/cli/run.py", "from orchestrator import Agent"),
    ("orchestrator/kernel/machine.py", "import transitions\nfrom . import graph\nfrom .. import errors"),
    ("orchestrator/telemetry/log.py", "import structlog\nfrom orchestrator.kernel import graph"),
    ("guards/orchestrator_guards/budget.py", "import math\nfrom .verdict import Verdict"),
]


def planted(root: Path, file: str, source: str) -> Path:
    for path in ("llm/message", "errors", "kernel/graph", "telemetry/log", "runtime/__init__"):
        written = root / "orchestrator" / f"{path}.py"
        written.parent.mkdir(parents=True, exist_ok=True)
        written.touch()
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(source, encoding="utf-8")
    return root


@pytest.mark.parametrize(("file", "source", "problem"), PLANTED)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, source: str, problem: str) -> None:
    (found,) = import_problems(planted(tmp_path, file, source))
    assert problem in found


@pytest.mark.parametrize(("file", "source"), ALLOWED)
def test_what_the_rows_allow_is_allowed(tmp_path: Path, file: str, source: str) -> None:
    assert import_problems(planted(tmp_path, file, source)) == []


def test_a_cycle_inside_of_a_folder_is_found_but_not_one_of_type_checkers(tmp_path: Path) -> None:
    root = planted(tmp_path, "orchestrator/llm/one.py", "from orchestrator.llm import two\n")
    there = root / "orchestrator/llm/two.py"
    there.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from orchestrator.llm import one\n"
    )
    assert import_cycle(root) == []
    there.write_text("class Two:\n    from orchestrator.llm import one\n")
    assert {"orchestrator.llm.one", "orchestrator.llm.two"} == set(import_cycle(root))


def test_a_cycle_of_late_imports_is_found_inside_of_its_folder(tmp_path: Path) -> None:
    root = planted(tmp_path, "orchestrator/llm/one.py", "def late():\n    from orchestrator.llm import two\n")
    (root / "orchestrator/llm/two.py").write_text("from orchestrator.llm import one\n")
    assert import_cycle(root) == []
    assert {"orchestrator.llm.one", "orchestrator.llm.two"} == set(late_cycle(root, "orchestrator.llm"))
    assert late_cycle(root, "orchestrator.kernel") == []
