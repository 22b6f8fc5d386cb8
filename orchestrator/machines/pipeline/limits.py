"""Limits of the pipeline. Numbers where 0 disables; there are no on/off switches beside them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from orchestrator.errors import ConfigError
from orchestrator.machines.bound import by_name, out_of_range


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLimits:
    """What one run of the pipeline may use. A limit of N allows exactly N; 0 is unlimited, or off.

    Defaults are seed 000's. Raises ConfigError on a name that is none, or a number below 0.
    """

    max_iterations: int = 3
    """Plans: how often planning may be left for validating. Counted there and nowhere else."""
    max_refinements: int = 3
    """Soft failures over the whole run that may be answered by another implementation of the same plan."""
    token_budget: int = 75_000
    """Input and output tokens of all stages together."""
    headroom: float = 1.2
    """A stage is begun when what is left covers its estimate so many times."""
    plan_tokens: int = 5_500
    """Estimate of one plan; with 0 planning is never too dear. The others likewise."""
    validate_tokens: int = 0
    implement_tokens: int = 8_500
    refine_tokens: int = 7_000
    """Of an implementation after a soft failure."""
    judge_tokens: int = 6_500
    feedback_tokens: int = 2_000
    """How much feedback is kept for the stages: the newest, by an estimate of four characters a token."""
    max_seconds: float = 0.0
    """Wall time of the run; a stage in flight is interrupted."""

    def __post_init__(self) -> None:
        for item in fields(self):
            whole = isinstance(item.default, int)
            if fault := out_of_range(item.name, getattr(self, item.name), whole=whole):
                raise ConfigError(f"limit {fault}")


OFF = PipelineLimits(max_iterations=0, max_refinements=0, token_budget=0, feedback_tokens=0)
"""No limit at all: for those who move the machine themselves and ask their own limits."""
