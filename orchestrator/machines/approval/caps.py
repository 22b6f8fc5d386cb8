"""How large a plan may be, and where it may never go (seed 001's knowledge base). 0 lifts a number."""

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
"""Names of folders that a build fills."""

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
"""Names of files that hold secrets, or settings of other programs."""


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCaps:
    """What one plan may be. A cap of N allows exactly N. Raises ConfigError on a number below 0.

    The second document of the knowledge base allows 50 files a plan and 100 KB an operation: the smaller 15 stands, and
    the 100 KB beside it.
    """

    steps: int = 10
    files_per_step: int = 3
    files: int = 15
    """Different files of the whole plan."""
    diff_lines: int = 500
    """Added and removed lines of one step; each line of a new file counts as added."""
    constraints: int = 10
    """Of one step."""
    deletions: int = 1
    """Of the whole plan."""
    operation_bytes: int = 102_400
    """New bytes of one step: contents and diffs as given."""
    file_bytes: int = 1_048_576
    """A file before and after it is edited."""
    command_seconds: float = 300.0
    """The longest that a command may ask for."""
    build_output: tuple[str, ...] = BUILD_OUTPUT
    """Patterns (shell style, case does not count) of folder names."""
    denied: tuple[str, ...] = DENIED
    """Patterns of file and folder names."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value, whole = getattr(self, item.name), isinstance(item.default, int)
            if not isinstance(item.default, tuple) and (fault := out_of_range(item.name, value, whole=whole)):
                raise ConfigError(f"limit {fault}")
