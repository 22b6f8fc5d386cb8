"""Limits of approval: those of one plan, the paths that a plan may never touch, and those of a project.

0 disables a numeric limit; there are no on/off switches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

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


MOST_KEPT = 100
"""Maximum value of `keep_plans`."""


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalLimits:
    """Limits of one project.

    Raises:
        ConfigError: A name is unknown, a number is below 0, or the thresholds are in the wrong order.
    """

    proceed: float = 0.85
    """Minimum confidence of an intent that proceeds without confirmation."""
    confirm: float = 0.60
    """Minimum confidence at which the person is asked; below it the request is rejected."""
    expiry_seconds: float = 1800.0
    """Seconds that a plan may wait for approval, and an approval for execution. 0 means no expiry.

    A plan expires by time only, because each command is a process of its own and there is no session to end.
    """
    ai_seconds: float = 120.0
    """Maximum seconds for one answer of the planner. 0 means no limit."""
    file_seconds: float = 30.0
    """Maximum seconds for one file operation. 0 means no limit."""
    index_seconds: float = 5.0
    """Maximum seconds for each file when all files of a project are listed with their digests. 0 means no limit."""
    keep_plans: int = 10
    """Number of requests whose plans, prior contents and records are kept: from 1 to 100."""
    ai_per_minute: int = 60
    """Requests to the planner per minute."""
    writes_per_minute: int = 100
    """Files that steps may touch per minute."""
    builds_per_minute: int = 10
    """Commands that steps may run per minute."""
    log_days: int = 7
    """Days that logs are kept."""
    log_file_bytes: int = 100_000_000
    """Maximum bytes of one day's log. Further lines are dropped."""
    log_total_bytes: int = 1_000_000_000
    """Maximum bytes of all logs. The oldest are deleted first."""
    caps: PlanCaps = field(default_factory=PlanCaps)
    """Limits of one plan."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.name == "caps":
                continue
            whole = isinstance(item.default, int)
            if fault := out_of_range(item.name, getattr(self, item.name), whole=whole):
                raise ConfigError(f"limit {fault}")
        if not self.confirm <= self.proceed <= 1:
            raise ConfigError(
                f"limits confirm {self.confirm:g} and proceed {self.proceed:g}: confirm must not be above proceed, "
                "and proceed not above 1"
            )
        if not 1 <= self.keep_plans <= MOST_KEPT:
            raise ConfigError(f"limit keep_plans is {self.keep_plans}; it must be from 1 to {MOST_KEPT}")
