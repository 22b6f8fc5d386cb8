"""New projects: their names, the templates of their files, and where they find this library."""

from __future__ import annotations

import builtins
import json
import keyword
import re
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrator.errors import ConfigError

# ---- names ----


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
    try:
        found = find_spec(package)
        is_taken = found is not None and found.origin is not None  # a folder without code is no module
    except (ImportError, ValueError):
        is_taken = True
    if is_taken:
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


# ---- templates ----


SUFFIX = ".template"
_FIELD = re.compile(r"\{\{(\w+)\}\}")
_HIDDEN = ("gitignore", "dockerignore", "env")
"""Files whose name begins with a dot in the project; builds leave such files out of a wheel at times."""


def addition(name: str, fields: Mapping[str, str]) -> str:
    """Return the text of one file that an addition writes."""
    return filled(_folder("addition").joinpath(name + SUFFIX).read_text(encoding="utf-8"), fields)


def filled(text: str, fields: Mapping[str, str]) -> str:
    """Return a text with its placeholders filled in. Raises KeyError for an unknown one."""
    return _FIELD.sub(lambda match: fields[match[1]], text)


def _folder(name: str) -> Traversable:
    return files("orchestrator.project") / "files" / name


def _files(folder: Traversable, path: str, fields: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            name = fields["package"] if entry.name == "PACKAGE" else entry.name
            yield from _files(entry, f"{path}{name}/", fields)
        elif entry.name.endswith(SUFFIX):
            name = entry.name.removesuffix(SUFFIX)
            hidden = "." if name in _HIDDEN else ""
            yield f"{path}{hidden}{name}", filled(entry.read_text(encoding="utf-8"), fields)


# ---- the library ----


NAME = "fsm-orchestrator"


def wheel_command() -> str | None:
    """Return the command that puts a wheel of this library into a project; None if an index has the library."""
    with suppress(PackageNotFoundError):
        return command_for(distribution(NAME).read_text("direct_url.json"))
    return None


def command_for(direct_url: str | None) -> str | None:
    """Return the command for the content of `direct_url.json`, which pip writes if it does not use an index."""
    url = urlsplit(json.loads(direct_url).get("url", "")) if direct_url else None
    if url is None or url.scheme != "file":
        return None
    return f"pip wheel --no-deps -w wheels {shlex.quote(unquote(url.path))}"


# ---- projects ----


SECRETS = ".env"
"""The file with the token of the service, which only its owner reads."""


def create_project(name: str, parent: Path, complete: Callable[[Path], None] = lambda _: None) -> Path:
    """Write a new project into the folder `name` of `parent`, and return the folder.

    Args:
        name: Name of the project.
        parent: An existing folder.
        complete: Adds files that depend on the code of the project, before it appears at its place.

    Raises:
        ConfigError: The name cannot be used, or the folder exists and is not empty.
        OSError: The folder cannot be written.
    """
    folder = parent / project_name(name)
    _check_free(folder)
    package = package_of(name)
    fields = {"name": name, "package": package, "variable": package.upper()}
    fields["token"] = secrets.token_urlsafe(32)
    texts = dict(sorted(_files(_folder("project"), "", fields)))
    staged = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
    try:
        for path, text in texts.items():
            file = staged / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600 if path == SECRETS else 0o666)
            file.write_text(text, encoding="utf-8")
        complete(staged)
        staged.chmod(0o755)
        _check_free(folder)
        staged.rename(folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return folder


def _check_free(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(f"{folder.name} exists and is no folder; choose another name, or remove it")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"the folder {folder.name} is not empty; choose another name, or empty it")
