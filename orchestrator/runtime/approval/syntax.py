"""Syntax check of texts in languages that Python itself can parse, by file name.

The check uses the running Python; a project for a newer Python whose files it cannot parse has to be changed by hand.
"""

from __future__ import annotations

import ast
import json
import tomllib
import warnings
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from orchestrator.machines.approval.fault import Fault


def syntax_fault(path: str, text: str) -> Fault | None:
    """Return the fault VAL-005, or None; a file in an unknown language has none."""
    check = _CHECKS.get(PurePosixPath(path).suffix.casefold())
    if check is None:
        return None
    try:
        check(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        said = f"{path!r} would not be valid{where}: {type(error).__name__}"
        return Fault("VAL-005", said, getattr(error, "msg", ""), path=path)
    return None


def _python(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(text)


_CHECKS: Mapping[str, Callable[[str], object]] = {
    ".py": _python,
    ".pyi": _python,
    ".json": json.loads,
    ".toml": tomllib.loads,
}
