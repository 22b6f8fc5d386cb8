"""The templates of the package, with their placeholders filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

SUFFIX = ".template"
_FIELD = re.compile(r"\{\{(\w+)\}\}")
_HIDDEN = ("gitignore", "dockerignore", "env")
"""Files whose name begins with a dot in the project; builds leave such files out of a wheel at times."""


def project_files(fields: Mapping[str, str]) -> dict[str, str]:
    """Return path -> text of every file of a new project."""
    return dict(sorted(_files(_folder("project"), "", fields)))


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
