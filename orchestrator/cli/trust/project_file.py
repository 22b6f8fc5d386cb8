"""Configuration files, read once: the bytes that are checked are the bytes that are parsed."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.cli.trust.decision import location
from orchestrator.errors import ConfigError

_LARGEST = 1 << 20
"""Bytes of a configuration file."""


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """The content of a configuration file, and where it was read."""

    given: Path
    """The path as the command line names it."""
    path: Path
    """Absolute; the link that the file itself may be is not resolved."""
    folder: Path
    """The working directory, in which its names are resolved."""
    digest: str
    """SHA-256 of its bytes, as `sha256sum` prints it."""
    members: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> ProjectFile:
        """Read a TOML file. Raises ConfigError if it is not TOML or too large, or OSError."""
        with file.open("rb") as opened:
            data = opened.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ConfigError(f"{file} cannot be read: it has more than {_LARGEST:,} bytes")
        try:
            members = tomllib.loads(data.decode())
        except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8
            raise ConfigError(f"{file} cannot be read: it is not TOML ({error})") from error
        return cls(file, location(file), Path.cwd(), hashlib.sha256(data).hexdigest(), members)

    @property
    def is_shipped(self) -> bool:
        """Whether it is an example that is part of this package."""
        package = Path(orchestrator.__file__).parent
        return self.path.is_relative_to(location(package))
