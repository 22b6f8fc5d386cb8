"""What the package of guards derives from its modules: public names, names of guards, the table of its README.

The modules are read, not imported: a guard that is new cannot be imported before it is exported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "guards/README.md"
PACKAGE = ROOT / "guards/orchestrator_guards"
INIT = PACKAGE / "__init__.py"
VERDICT = PACKAGE / "verdict.py"


class GuardFunction(NamedTuple):
    """A public function that returns a Verdict."""

    module: str
    function: str
    guard: str
    """The name in its verdicts: it labels metrics."""
    summary: str


def guard_functions() -> list[GuardFunction]:
    """Return the guards, in the order of modules and functions."""
    files = (
        file for file in sorted(PACKAGE.glob("*.py")) if file.stem != "evaluation"
    )  # it calls the guards
    return [guard for file in files for guard in _guards_of(file)]


def _guards_of(file: Path) -> Iterator[GuardFunction]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        if isinstance(node.returns, ast.Name) and node.returns.id == "Verdict":
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            yield GuardFunction(file.stem, node.name, _name_in(node), summary)


def _name_in(function: ast.FunctionDef) -> str:
    """Return the name that the verdicts of a function have. Raises ValueError where there is not exactly one."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Verdict"]
    given = [*(call.args[1] for call in made if len(call.args) > 1)]
    given += [one.value for call in made for one in call.keywords if one.arg == "guard"]
    names = {one.value for one in given if isinstance(one, ast.Constant)}
    if len(names) != 1:
        raise ValueError(
            f"{function.name} must return Verdict(ok, 'its name', ...) with one name; found {names}"
        )
    return str(names.pop())


def init_text() -> str:
    """Return the `__init__.py` of the package: what it exports already and still has, and every guard."""
    text = INIT.read_text(encoding="utf-8")
    exported: dict[str, set[str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orchestrator_guards."):
            module = (node.module or "").partition(".")[2]
            exported[module] = {alias.name for alias in node.names} & _defined_in(PACKAGE / f"{module}.py")
    for guard in guard_functions():
        exported.setdefault(guard.module, set()).add(guard.function)
    head = text[: text.index("from orchestrator_guards.")]
    imports = "".join(
        f"from orchestrator_guards.{module} import (\n{_lines(names)})\n"
        for module, names in sorted(exported.items())
        if names
    )
    everything = {f'"{name}"' for names in exported.values() for name in names}
    return f"{head}{imports}\n__all__ = [\n{_lines(everything)}]\n"


def _defined_in(file: Path) -> set[str]:
    if not file.exists():
        return set()
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _lines(names: set[str]) -> str:
    """Return a line for each name: constants first, then classes, then functions."""

    def order(name: str) -> tuple[int, str]:
        bare = name.strip('"')
        return (0 if bare.isupper() else 1 if bare[0].isupper() else 2, bare)

    return "".join(f"    {name},\n" for name in sorted(names, key=order))


def verdict_text() -> str:
    """Return `verdict.py` with the names of all guards in `GUARD_NAMES`."""
    names = "".join(f'    "{name}",\n' for name in sorted({guard.guard for guard in guard_functions()}))
    text = VERDICT.read_text(encoding="utf-8")
    return re.sub(
        r"(GUARD_NAMES: Final = \(\n).*?(^\))", rf"\1{names}\2", text, flags=re.DOTALL | re.MULTILINE
    )


def readme_text() -> str:
    """Return the README with a row for each guard: its name, and the first line of its docstring."""
    rows = "".join(f"| {_called(guard)} | {guard.summary} |\n" for guard in guard_functions())
    text = README.read_text(encoding="utf-8")
    table = f"| guard | decision |\n|---|---|\n{rows}"
    return re.sub(
        r"(<!-- guards -->\n).*?(<!-- /guards -->)", lambda m: m[1] + table + m[2], text, flags=re.DOTALL
    )


def _called(guard: GuardFunction) -> str:
    """Return the name of a guard, and of its function where that has another one."""
    return f"`{guard.guard}`" + ("" if guard.guard == guard.function else f" (function `{guard.function}`)")


def accept() -> list[str]:
    """Write the files of the package that have changed, and return their paths."""
    changed = []
    for file, text in ((VERDICT, verdict_text()), (INIT, init_text()), (README, readme_text())):
        if file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            changed.append(str(file.relative_to(ROOT)))
    return changed
