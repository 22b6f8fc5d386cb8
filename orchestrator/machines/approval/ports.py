"""Who says what is wanted and what is to be done: a model, or a file. What they say is untrusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.machines.approval.fault import Fault
from orchestrator.machines.approval.intent import Extraction, Intent
from orchestrator.machines.approval.plan import ApprovalPlan, Fingerprint, PlanDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a plan is to be made for."""

    intent: Intent
    changes: str = ""
    """What the person wants to be different from the plan before."""
    previous: ApprovalPlan | None = None
    """That plan."""
    faults: tuple[Fault, ...] = ()
    """What was wrong with the answer before."""
    tree: tuple[Fingerprint, ...] = ()
    """The files of the project."""


class ApprovalPlanner(Protocol):
    """Makes plans. Raises Faulted with a code of the family AI, CFG or VAL."""

    @property
    def regenerates(self) -> bool:
        """Whether asking again can bring another plan."""
        ...

    async def extract(self, text: str) -> Extraction:
        """Say what a person wants."""
        ...

    async def plan(self, request: PlanRequest) -> PlanDraft:
        """Say what is to be done for one intent."""
        ...

    async def reachable(self) -> Fault | None:
        """Say why nothing could be asked now, or None."""
        ...
