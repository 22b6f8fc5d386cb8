"""What the hooks of approval may touch: live handles, built by the runtime, never stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from orchestrator.kernel.run import Run
from orchestrator.llm.port import Clock
from orchestrator.machines.approval.intent import Extraction
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.model import ApprovalContext
from orchestrator.machines.approval.plan import ApprovalPlan, PlanStep
from orchestrator_guards import BlockedGate


class RollbackReport(Protocol):
    """What a rollback did."""

    @property
    def changes(self) -> Sequence[Any]:
        """Changes that were taken back, each with its path."""
        ...

    @property
    def conflicts(self) -> Sequence[Any]:
        """Files that were kept, because somebody else has changed them."""
        ...


class StepOutcomeReport(Protocol):
    """What came of a step that is complete."""

    @property
    def output(self) -> str:
        """The end of what a command said; for nobody but the person who looks on."""
        ...


class PlanActions(Protocol):
    """The planner and the project, as the hooks use them. All that a planner says has been looked over here."""

    async def extract(self, run: ApprovalRun) -> Extraction:
        """Ask the planner what the person wants. Raises Faulted after the table's retries."""
        ...

    async def draft(self, run: ApprovalRun, plan_id: str, version: int) -> ApprovalPlan:
        """Ask the planner for a plan that breaks no rule. Raises Faulted after the table's retries."""
        ...

    async def ready(self, run: ApprovalRun, *, provider: bool) -> BlockedGate | None:
        """Say what keeps a plan from being carried out: drift, a command in doubt, the log; `provider`: the planner."""
        ...

    def affordable(self) -> BlockedGate | None:
        """Say what keeps the planner from being asked for another plan: a budget that is used up."""
        ...

    async def left(self, run: ApprovalRun) -> tuple[PlanStep, ...]:
        """Return the steps that are still to be done, in their order."""
        ...

    async def turn(self, step: PlanStep) -> None:
        """Return once a step may be begun: no more is done in a minute than is allowed."""
        ...

    async def perform(self, run: ApprovalRun, step: PlanStep) -> StepOutcomeReport:
        """Carry out one step, wholly or not at all. Raises Faulted."""
        ...

    async def undo(self, run: ApprovalRun) -> RollbackReport:
        """Take back what the plan has changed, and what plans of this request had that failed before it."""
        ...


@dataclass(slots=True, kw_only=True)
class ApprovalDeps:
    """Handles of one project."""

    hands: PlanActions
    clock: Clock
    limits: ApprovalLimits
    on_step: Callable[[PlanStep, int, int, str, float, str, str], Awaitable[None] | None] | None = None
    """Told of each step as it begins and ends: step, number, of how many, `begins` or `ends`, seconds, status
    (`running`, then `done` or `failed`), the end of what a command said.
    """
    operation: asyncio.Task[StepOutcomeReport] | None = None
    """The step in flight: Cancelling, entered at once, waits for it before it takes anything back."""
    refusal: Exception | None = None
    """Why the last event from outside was refused."""


ApprovalRun: TypeAlias = Run[ApprovalContext, ApprovalDeps]
