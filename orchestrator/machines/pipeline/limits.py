"""Limits of the pipeline. 0 disables a limit; there are no on/off switches."""

from __future__ import annotations

from dataclasses import dataclass, fields

from orchestrator.errors import ConfigError
from orchestrator.machines.bound import by_name, out_of_range


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLimits:
    """Limits of one pipeline run. A limit of N allows exactly N; 0 means unlimited or off.

    Raises:
        ConfigError: A name is unknown, or a number is below 0.
    """

    max_iterations: int = 3
    """Plans: how often planning may lead to validating. Counted only there."""
    max_refinements: int = 3
    """Soft failures of the whole run that may be followed by another implementation of the same plan."""
    token_budget: int = 75_000
    """Input and output tokens of all stages together."""
    headroom: float = 1.2
    """A stage starts if the remaining budget is at least this multiple of its estimate."""
    plan_tokens: int = 5_500
    """Estimated tokens of one plan; with 0 planning always fits. The other estimates work alike."""
    validate_tokens: int = 0
    implement_tokens: int = 8_500
    refine_tokens: int = 7_000
    """Estimated tokens of an implementation after a soft failure."""
    judge_tokens: int = 6_500
    feedback_tokens: int = 2_000
    """Tokens of feedback that is kept for the stages, newest first, estimated at four characters per token."""
    max_seconds: float = 0.0
    """Wall time of the run; a stage in flight is interrupted."""

    def __post_init__(self) -> None:
        for item in fields(self):
            whole = isinstance(item.default, int)
            if fault := out_of_range(item.name, getattr(self, item.name), whole=whole):
                raise ConfigError(f"limit {fault}")


OFF = PipelineLimits(max_iterations=0, max_refinements=0, token_budget=0, feedback_tokens=0)
"""No limits: for code that drives the machine itself and has its own limits."""
