"""A new project. It appears whole or not at all: it is written beside its place and then renamed."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.project.name import package_of, project_name
from orchestrator.project.template import project_files

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
    texts = project_files({**fields, "token": secrets.token_urlsafe(32)})
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
