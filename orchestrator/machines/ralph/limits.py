"""Limits of the ralph loop. Numbers where 0 disables; there are no on/off switches beside them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from orchestrator.errors import ConfigError
from orchestrator.machines.bound import by_name, out_of_range
from orchestrator_guards import qa_cycles, task_attempts


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class RalphLimits:
    """What one run of the loop may use. A limit of N allows exactly N; 0 is unlimited.

    The first three are seed 002's `RetryPolicy` with its numbers (R8); the others are ours. Raises ConfigError on a
    name that is none, or a number below 0.
    """

    max_task_attempts: int = 3
    """Executions of one task in total, the first included; after that many without success the run fails (R4)."""
    max_qa_cycles: int = 3
    """Rounds of questions and answers in a run."""
    max_planning_retries: int = 2
    """How often a planner whose answer cannot be used is asked again in one stay."""
    max_replans: int = 3
    """Returns to planning because work was blocked or the holistic check failed; requests of people are not counted."""
    max_agent_retries: int = 2
    """How often any other agent whose answer cannot be used, or who reports an error, is asked again."""
    max_executions: int = 100
    """Executions of a run, of all tasks together: what bounds a run whose agents find ever more tasks."""
    max_seconds: float = 0.0
    """Wall time of the run; an agent in flight is interrupted."""

    def __post_init__(self) -> None:
        for item in fields(self):
            whole = isinstance(item.default, int)
            if fault := out_of_range(item.name, getattr(self, item.name), whole=whole):
                raise ConfigError(f"limit {fault}")

    def should_retry_task(self, attempt_number: int) -> bool:
        """Tell whether a task whose attempt `attempt_number` (from 1) was not good enough gets another one."""
        return task_attempts(attempt_number, self.max_task_attempts).ok

    def should_continue_qa(self, cycle_number: int) -> bool:
        """Tell whether after `cycle_number` rounds of questions there may be another one."""
        return qa_cycles(cycle_number, self.max_qa_cycles).ok
