"""Limits of approval. Numbers where 0 disables; there are no on/off switches beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from orchestrator.errors import ConfigError
from orchestrator.machines.approval.caps import PlanCaps
from orchestrator.machines.bound import by_name, out_of_range

MOST_KEPT = 100
"""More plans than this are not kept."""


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalLimits:
    """What one project may use. Defaults are those of seed 001's knowledge base (systems.md 5.2).

    Raises ConfigError on a name that is none, a number below 0, or thresholds in the wrong order.
    """

    proceed: float = 0.85
    """An intent is gone on with from this confidence on."""
    confirm: float = 0.60
    """From this confidence on a person is asked; below, the request is refused."""
    expiry_seconds: float = 1800.0
    """How long a plan may wait for approval, and an approval for execution; 0: for ever.

    The knowledge base lets a plan expire with the session too; here each command is a process, so time has to do."""
    ai_seconds: float = 120.0
    """How long one answer of the planner may take; 0: for ever."""
    file_seconds: float = 30.0
    """How long one operation on a file may take; 0: for ever."""
    index_seconds: float = 5.0
    """How long one file may take where all of a project are listed, with their digests; 0: for ever."""
    keep_plans: int = 10
    """Requests whose plans, prior contents and records are kept: from 1 to 100."""
    ai_per_minute: int = 60
    """Questions to the planner."""
    writes_per_minute: int = 100
    """Files that steps may touch."""
    builds_per_minute: int = 10
    """Commands that steps may run."""
    log_days: int = 7
    """Days of logs that are kept."""
    log_file_bytes: int = 100_000_000
    """Of the log of one day: what comes after that is not written."""
    log_total_bytes: int = 1_000_000_000
    """Of all logs: the oldest go first."""
    caps: PlanCaps = field(default_factory=PlanCaps)
    """What one plan may contain."""

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
            raise ConfigError(f"limit keep_plans is {self.keep_plans}; possible: 1 to {MOST_KEPT}")
