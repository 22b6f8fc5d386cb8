"""The rubric for a judge's scores, as data: the scale, the thresholds, and the categories of plan and implementation.

The default scale is 0 to 10. For scores from 0 to 100 use `Rubric(top=100, approve=70, hard=60, category=60)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """Thresholds for scores, and the categories of plan and implementation.

    Raises:
        ConfigError: The thresholds contradict each other, or a category belongs to both plan and implementation.
    """

    top: float = 10.0
    """The best score; the worst is 0. A judge that returns a score outside this range fails."""
    approve: float = 7.0
    """Minimum score for approval."""
    hard: float = 5.0
    """Minimum score for refinement; below it a new plan is made."""
    category: float = 6.0
    """A category fails below this score."""
    plan: tuple[str, ...] = ("template_variety", "energy_matching")
    """Categories about the plan."""
    implementation: tuple[str, ...] = ("musical_alignment", "timing_coverage", "transition_quality")
    """Categories about the implementation. Categories in neither list do not influence the decision."""

    def __post_init__(self) -> None:
        if not 0 <= self.hard <= self.approve <= self.top < math.inf:
            raise ConfigError(
                f"a rubric needs 0 <= hard <= approve <= top, not {self.hard}, {self.approve}, {self.top}"
            )
        if not 0 <= self.category <= self.top:
            raise ConfigError(f"category is {self.category}; it must be from 0 to top, {self.top}")
        object.__setattr__(self, "plan", tuple(self.plan))
        object.__setattr__(self, "implementation", tuple(self.implementation))
        if both := set(self.plan) & set(self.implementation):
            raise ConfigError(
                f"category {min(both)!r} is in both plan and implementation; put it into one of them"
            )
