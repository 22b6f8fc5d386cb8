"""Limits of approval. 0 disables a limit; there are no on/off switches."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from orchestrator.errors import ConfigError
from orchestrator.machines.approval.caps import PlanCaps
from orchestrator.machines.bound import by_name, out_of_range

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
