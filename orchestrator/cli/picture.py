"""Drawings as files."""

from __future__ import annotations

from pathlib import Path

from orchestrator.drawing.png import png
from orchestrator.errors import ConfigError
from orchestrator.files.atomic import atomic_write

FORMATS = (".svg", ".png")


def check_picture(file: Path, *endings: str) -> None:
    """Raise ConfigError if no drawing can be written to a file of this name; `endings` are those of one format."""
    allowed = endings or FORMATS
    if file.suffix.lower() not in allowed:
        names = " or ".join(f"*{ending}" for ending in allowed)
        raise ConfigError(f"{file} has the ending {file.suffix!r}; a drawing is written to a file {names}")
    if not file.parent.is_dir():
        raise ConfigError(f"{file} is in the folder {file.parent}, which does not exist; create it first")
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; name a file")


def save_picture(file: Path, svg: str) -> None:
    """Write a drawing in the format of the file's ending; a file of that name is replaced.

    Raises ConfigError, MissingExtra or OSError.
    """
    check_picture(file)
    atomic_write(file, png(svg) if file.suffix.lower() == ".png" else svg.encode())
