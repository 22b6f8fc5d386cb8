"""The error for an action that a gate of approval refused: the gate, the reason, and the next steps."""

from __future__ import annotations

from orchestrator.errors import Refused
from orchestrator_guards import BlockedGate


class GateRefused(Refused):
    """An action was refused before any change was made."""

    def __init__(self, blocked: BlockedGate, *, state: str = "", event: str = "") -> None:
        super().__init__(blocked.reason, graph="approval" if event else "", state=state, event=event)
        self.gate = blocked.gate
        self.next_steps = blocked.next_steps
        self.retryable_now = blocked.retryable_now
        self.code = blocked.code

    def __str__(self) -> str:
        """Return one sentence with reason and next steps."""
        hint = f"; next: {', '.join(self.next_steps)}" if self.next_steps else ""
        code = f"{self.code}: " if self.code else ""
        return f"{code}{self.reason} (gate {self.gate}){hint}"
