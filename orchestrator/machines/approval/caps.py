"""Limits on the size of a plan, and the paths that a plan may never touch. 0 disables a numeric limit."""

from __future__ import annotations

from dataclasses import dataclass, fields

from orchestrator.errors import ConfigError
from orchestrator.machines.bound import by_name, out_of_range

BUILD_OUTPUT = (
    "build",
    "dist",
    "out",
    "target",
    "bin",
    "obj",
    "node_modules",
    "__pycache__",
    "site-packages",
    "*.egg-info",
)
"""Folder names that contain build output."""

DENIED = (
    ".env",
    ".env.*",
    ".envrc",
    ".git-credentials",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".gitconfig",
    ".gitmodules",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "id_rsa*",
    "id_ecdsa*",
    "id_ed25519*",
)
"""File names that contain secrets, or settings of other programs."""


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCaps:
    """Limits of one plan. A cap of N allows exactly N.

    Raises:
        ConfigError: A number is below 0.
    """

    steps: int = 10
    files_per_step: int = 3
    files: int = 15
    """Distinct files of the whole plan."""
    diff_lines: int = 500
    """Added and removed lines of one step. Each line of a new file counts as added."""
    constraints: int = 10
    """Constraints of one step."""
    deletions: int = 1
    """Deleted files of the whole plan."""
    operation_bytes: int = 102_400
    """New bytes of one step: contents and diffs as given."""
    file_bytes: int = 1_048_576
    """Size of a file before and after an edit."""
    command_seconds: float = 300.0
    """Longest timeout that a command may request."""
    build_output: tuple[str, ...] = BUILD_OUTPUT
    """Shell patterns of folder names, case-insensitive."""
    denied: tuple[str, ...] = DENIED
    """Shell patterns of file and folder names."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value, whole = getattr(self, item.name), isinstance(item.default, int)
            if not isinstance(item.default, tuple) and (fault := out_of_range(item.name, value, whole=whole)):
                raise ConfigError(f"limit {fault}")
