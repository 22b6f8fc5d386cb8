"""What a judge's scores mean, as data: the scale, the thresholds, and which categories speak about what.

The scale of seed 000's present code is 0 to 10; an older one of it was 0 to 100, with 70 to pass and 60 for a category:
`Rubric(top=100, approve=70, hard=60, category=60)` is that one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """Raises ConfigError for thresholds that contradict each other, and a category that speaks about both."""

    top: float = 10.0
    """The best score there is; the worst is 0. A judge that says anything else has failed."""
    approve: float = 7.0
    """The least score that passes."""
    hard: float = 5.0
    """The least score that can be refined; below it a new plan is made."""
    category: float = 6.0
    """A category below this is failing."""
    plan: tuple[str, ...] = ("template_variety", "energy_matching")
    """Categories that speak about the plan."""
    implementation: tuple[str, ...] = ("musical_alignment", "timing_coverage", "transition_quality")
    """Categories that speak about the implementation. Those in neither have no say in what is done."""

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
            raise ConfigError(f"category {min(both)!r} is named for the plan and for the implementation")
