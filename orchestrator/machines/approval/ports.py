"""The planner port: a model or a file that states intents and plans. Its answers are untrusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.machines.approval.fault import Fault
from orchestrator.machines.approval.intent import Extraction, Intent
from orchestrator.machines.approval.plan import ApprovalPlan, Fingerprint, PlanDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The input of a plan."""

    intent: Intent
    changes: str = ""
    """Changes to the previous plan that the person requested."""
    previous: ApprovalPlan | None = None
    """The previous plan."""
    faults: tuple[Fault, ...] = ()
    """Faults of the previous answer."""
    tree: tuple[Fingerprint, ...] = ()
    """The files of the project."""


class ApprovalPlanner(Protocol):
    """Makes plans. Raises ApprovalError with a code of the families AI, CFG or VAL."""

    @property
    def regenerates(self) -> bool:
        """Whether another request can give another plan."""
        ...

    async def extract(self, text: str) -> Extraction:
        """Return the intents of a person's text."""
        ...

    async def plan(self, request: PlanRequest) -> PlanDraft:
        """Return the plan for one intent."""
        ...

    async def reachable(self) -> Fault | None:
        """Return the fault that prevents requests now, or None."""
        ...
