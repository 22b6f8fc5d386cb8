"""Names of projects and of their parts. A name that cannot be used is refused in one sentence."""

from __future__ import annotations

import builtins
import keyword
import re
from importlib.util import find_spec

from orchestrator.errors import ConfigError

LONGEST = 40
_PART = re.compile(r"[a-z][a-z0-9_]*")
_PROJECT = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_FOLDERS = ("tests", "ops", "wheels", "build", "data", "dist")
"""Folders of a project beside its package."""


def project_name(name: str) -> str:
    """Return the name of a new project. Raises ConfigError if it cannot name a folder, a distribution and a package."""
    if "/" in name or "\\" in name or name in {".", ".."}:
        raise ConfigError(
            f"{name!r} is a path; give a name, such as shop, and the project is made in this folder"
        )
    _check(name, "a project", _PROJECT, "lower-case letters, digits and single dashes between them")
    package = package_of(name)
    if package in _FOLDERS:
        raise ConfigError(
            f"{name!r} is the name of a folder of every project; other names than these are allowed: "
            f"{', '.join(_FOLDERS)}"
        )
    if _is_installed(package):
        raise ConfigError(
            f"{package!r} is a module of Python or of an installed package; choose another name"
        )
    return name


def package_of(name: str) -> str:
    """Return the name of the package of a project."""
    return name.replace("-", "_")


def part_name(name: str, kind: str) -> str:
    """Return the name of a part of a project, such as a state. Raises ConfigError for one that is no Python name."""
    _check(name, f"a {kind}", _PART, "lower-case letters, digits and _")
    if hasattr(builtins, name):
        raise ConfigError(
            f"{name!r} is a built-in name of Python and cannot name a {kind}; choose another name"
        )
    return name


def _check(name: str, kind: str, form: re.Pattern[str], allowed: str) -> None:
    if not form.fullmatch(name) or len(name) > LONGEST:
        shown = name if len(name) <= 2 * LONGEST else f"{name[: 2 * LONGEST]}…"
        raise ConfigError(
            f"{shown!r} cannot name {kind}; allowed are {allowed}, a letter first, {LONGEST} characters at most"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise ConfigError(f"{name!r} is a keyword of Python and cannot name {kind}; choose another name")


def _is_installed(package: str) -> bool:
    """Whether a module of that name exists. A folder without code, such as an empty one, is none."""
    try:
        found = find_spec(package)
    except (ImportError, ValueError):
        return True
    return found is not None and found.origin is not None
