"""Limits of the ralph loop. 0 disables a limit; there are no on/off switches."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from orchestrator.errors import ConfigError
from orchestrator.machines.bound import ON_UNKNOWN_COST, by_name, out_of_range, unknown_word
from orchestrator_guards import qa_cycles, task_attempts
from orchestrator_guards.money import limit_micros


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class RalphLimits:
    """Limits of one run of the loop. A limit of N allows exactly N; 0 means unlimited.

    Raises:
        ConfigError: A name is unknown, or a number is below 0.
    """

    max_task_attempts: int = 3
    """Executions of one task in total, including the first; after that many without success the run fails."""
    max_qa_cycles: int = 3
    """Rounds of questions and answers in a run."""
    max_planning_retries: int = 2
    """Repeated requests to a planner after an invalid answer, in one visit of the state."""
    max_replans: int = 3
    """Returns to planning after blocked work or a failed holistic check. New requests of people do not count."""
    max_agent_retries: int = 2
    """Repeated requests to any other agent after an invalid answer or a reported error."""
    max_executions: int = 100
    """Executions of all tasks of a run together. Bounds a run whose agents discover more and more tasks."""
    max_seconds: float = 0.0
    """Wall time of the run; an agent in flight is interrupted."""
    max_tokens: int = field(default=0, metadata={"fingerprint": None})
    """Input and output tokens of all agents together, with estimates. Checked before each call of an agent."""
    max_cost: float = field(default=0.0, metadata={"fingerprint": None})
    """Cost of all agents together, in the currency of the price table; coding agents report US dollars.

    Checked before each call of an agent. A coding agent that enforces a maximum cost gets the rest of the limit;
    another one may exceed the limit by the cost of one call.
    """
    on_unknown_cost: Literal["stop", "ignore"] = field(default="stop", metadata={"fingerprint": None})
    """Handling of a call of unknown cost under `max_cost`: `stop` calls no further agent, `ignore` counts it as 0."""

    def __post_init__(self) -> None:
        if fault := unknown_word("on_unknown_cost", self.on_unknown_cost, ON_UNKNOWN_COST):
            raise ConfigError(f"limit {fault}")
        for item in fields(self):
            if item.name == "on_unknown_cost":
                continue
            whole = isinstance(item.default, int)
            if fault := out_of_range(item.name, getattr(self, item.name), whole=whole):
                raise ConfigError(f"limit {fault}")

    @property
    def max_cost_micros(self) -> int:
        """`max_cost` in millionths of the currency."""
        return limit_micros(self.max_cost)

    def should_retry_task(self, attempt_number: int) -> bool:
        """Return whether a task gets another attempt after the unsuccessful attempt `attempt_number` (from 1)."""
        return task_attempts(attempt_number, self.max_task_attempts).ok

    def should_continue_qa(self, cycle_number: int) -> bool:
        """Return whether another round of questions is allowed after `cycle_number` rounds."""
        return qa_cycles(cycle_number, self.max_qa_cycles).ok
