"""The seven outcomes of a run, and for each the closed set of reasons (metric label values)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """The outcome of a run."""

    COMPLETED = "completed"
    PARTIAL = "partial"
    BUDGET_EXCEEDED = "budget_exceeded"
    NO_PROGRESS = "no_progress"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"


_BUDGETS = frozenset(
    (
        "max_iterations",
        "input_tokens",
        "output_tokens",
        "cost",
        "cost_unknown",
        "time",
        "tokens",
        "tool_calls",
        "tool_errors",
        "retries",
        "handoffs",
    )
)
_STALLS = frozenset(("stalled", "repeated_success"))

REASONS: Mapping[Outcome, frozenset[str]] = {
    Outcome.COMPLETED: frozenset(("none", "memory_degraded", "empty_answer", "handed_over")),
    Outcome.PARTIAL: _BUDGETS | _STALLS | {"policy_stop", "truncated", "filtered", "refused"},
    Outcome.BUDGET_EXCEEDED: _BUDGETS,
    Outcome.NO_PROGRESS: _STALLS,
    Outcome.CANCELLED: frozenset(("caller", "shutdown")),
    Outcome.REJECTED: frozenset(("guardrail", "operator")),
    Outcome.FAILED: frozenset(
        (
            "llm_error",
            "tool_error",
            "stage_error",
            "max_iterations",
            "max_task_attempts",
            "max_qa_cycles",
            "planner_blocked",
            "completion_invalid",
            "guard_error",
            "guardrail",
            "callback_error",
            "invalid_transition",
            "journal_error",
            "state_timeout",
            "memory_error",
            "policy_stop",
            "internal",
        )
    ),
}
"""Outcome -> its allowed reasons. A reason that is not in this table is a defect."""


class Ending(NamedTuple):
    """An outcome with its reason."""

    outcome: Outcome
    reason: str
