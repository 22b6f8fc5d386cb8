"""Drawings as files."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.files.atomic import atomic_write

FORMATS = (".svg",)


def check_picture(file: Path) -> None:
    """Raise ConfigError if no drawing can be written to a file of this name."""
    if file.suffix.lower() not in FORMATS:
        raise ConfigError(
            f"{file} has the ending {file.suffix!r}; a drawing is written to a file *{', *'.join(FORMATS)}"
        )
    if not file.parent.is_dir():
        raise ConfigError(f"{file} is in the folder {file.parent}, which does not exist; create it first")
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; name a file")


def save_picture(file: Path, svg: str) -> None:
    """Write a drawing; a file of that name is replaced. Raises ConfigError or OSError."""
    check_picture(file)
    atomic_write(file, svg.encode())
