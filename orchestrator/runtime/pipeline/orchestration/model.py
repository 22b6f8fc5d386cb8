"""History entries, metrics, errors and observers of the host-driven state machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from orchestrator.errors import EventError
from orchestrator.machines.pipeline.model import OrchestrationState


@dataclass
class StateTransition:
    """One committed transition. Duration and tokens belong to `from_state`."""

    from_state: OrchestrationState
    to_state: OrchestrationState
    timestamp: float
    """UTC, in seconds since the epoch."""
    context: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    duration_seconds: float = 0.0
    tokens_consumed: int = 0


@dataclass
class StateMetrics:
    """Totals of all completed visits of one state. Times are in seconds."""

    state: OrchestrationState
    visit_count: int = 0
    total_duration_seconds: float = 0.0
    total_tokens: int = 0
    avg_duration_seconds: float = 0.0
    avg_tokens: float = 0.0
    min_duration_seconds: float | None = None
    """None before the first visit ends, because JSON has no infinity."""
    max_duration_seconds: float = 0.0


class InvalidTransitionError(EventError):
    """No edge leads from the current state to the requested one. The state does not change."""

    def __init__(
        self, from_state: str, to_state: str, allowed: Sequence[str], graph: str = "pipeline"
    ) -> None:
        said = f"Invalid transition: {from_state} → {to_state}. Valid transitions: {list(allowed)}"
        super().__init__(said, graph="", state=from_state, event=to_state)
        self.graph = graph
        self.allowed = tuple(allowed)


@runtime_checkable
class StateMachineObserver(Protocol):
    """Called after each committed transition. Its exceptions are counted and have no other effect."""

    def on_state_transition(self, transition: StateTransition) -> None:
        """Handle a transition."""
        ...

    def on_metrics_update(self, metrics: dict[str, Any]) -> None:
        """Handle the totals after a transition, as `get_total_metrics` returns them."""
        ...
