"""The built-ins of the code. They are not a protection: they give a model early messages about the limits.

Code can reach every module through the objects it receives; the kernel's locks apply then too.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

_TAKEN = (
    "eval",
    "exec",
    "compile",
    "input",
    "breakpoint",
    "help",
    "exit",
    "quit",
    "copyright",
    "credits",
    "license",
)


def offered(imports: Sequence[str], folder: str) -> dict[str, Any]:
    """Return the built-ins for code that may import `imports` and open files in `folder`."""
    found = {name: value for name, value in vars(builtins).items() if name not in _TAKEN}
    found["__import__"] = _importer(imports)
    found["open"] = _opener(folder)
    return found


def preload(imports: Sequence[str]) -> None:
    """Import the allowed modules while their linked libraries can still be loaded."""
    for name in imports:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _importer(imports: Sequence[str]) -> Callable[..., Any]:
    allowed = frozenset(imports)

    def limited_import(
        name: str,
        globals: dict[str, Any] | None = None,  # noqa: A002  the name of the built-in's parameter
        locals: dict[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Any:
        if level or name.partition(".")[0] not in allowed:
            raise ImportError(f"{name!r} cannot be imported here; these can: {', '.join(sorted(allowed))}")
        return importlib.__import__(name, globals, locals, fromlist, level)

    return limited_import


def _opener(folder: str) -> Callable[..., Any]:
    root = os.path.realpath(folder)

    def limited_open(file: Any, *args: Any, **options: Any) -> Any:
        path = os.path.realpath(os.path.join(root, os.fspath(file)))
        if os.path.commonpath((root, path)) != root:
            raise PermissionError(
                f"{os.fspath(file)!r} is outside the working folder; give a name without a path"
            )
        return io.open(path, *args, **options)  # noqa: UP020  not the replaced built-in

    return limited_open
