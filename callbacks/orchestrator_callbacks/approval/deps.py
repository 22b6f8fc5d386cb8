"""Dependencies of the approval hooks: live handles that the runtime builds, never stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from orchestrator.kernel.run import Run
from orchestrator.llm.port import Clock
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.model import ApprovalContext
from orchestrator.machines.approval.plan import ApprovalPlan, Extraction, PlanStep
from orchestrator_guards import BlockedGate


class RollbackReport(Protocol):
    """The result of a rollback."""

    @property
    def changes(self) -> Sequence[Any]:
        """Changes that were reverted, each with its path."""
        ...

    @property
    def conflicts(self) -> Sequence[Any]:
        """Files that were kept, because they were changed outside."""
        ...


class StepOutcomeReport(Protocol):
    """The result of a completed step."""

    @property
    def output(self) -> str:
        """Last part of a command's output, only for the person who watches."""
        ...


class PlanActions(Protocol):
    """The planner and the project, as the hooks use them. Answers of the planner are validated here."""

    async def extract(self, run: ApprovalRun) -> Extraction:
        """Request the person's intent from the planner. Raises ApprovalError after the retries of the error table."""
        ...

    async def draft(self, run: ApprovalRun, plan_id: str, version: int) -> ApprovalPlan:
        """Request a valid plan from the planner. Raises ApprovalError after the retries of the error table."""
        ...

    async def ready(self, run: ApprovalRun, *, provider: bool) -> BlockedGate | None:
        """Return the gate that blocks a plan: drift, an uncertain command, the log, or with `provider` the planner."""
        ...

    def affordable(self) -> BlockedGate | None:
        """Return the gate that blocks another planner request, a used-up budget, or None."""
        ...

    async def left(self, run: ApprovalRun) -> tuple[PlanStep, ...]:
        """Return the remaining steps in order."""
        ...

    async def turn(self, step: PlanStep) -> None:
        """Return when a step may start within the rate limits."""
        ...

    async def perform(self, run: ApprovalRun, step: PlanStep) -> StepOutcomeReport:
        """Execute one step completely or not at all. Raises ApprovalError."""
        ...

    async def undo(self, run: ApprovalRun) -> RollbackReport:
        """Revert the changes of the plan, and those of failed earlier plans of this request."""
        ...


@dataclass(slots=True, kw_only=True)
class ApprovalDeps:
    """Handles of one project."""

    actions: PlanActions
    clock: Clock
    limits: ApprovalLimits
    on_step: Callable[[PlanStep, int, int, str, float, str, str], Awaitable[None] | None] | None = None
    """Called when a step starts and ends: step, number, total, `begins` or `ends`, seconds, status (`running`, then
    `done` or `failed`), last part of a command's output."""
    operation: asyncio.Task[StepOutcomeReport] | None = None
    """The step in flight. Cancelling is entered at once and waits for it before it reverts anything."""
    refusal: Exception | None = None
    """Why the last outside event was refused."""


ApprovalRun: TypeAlias = Run[ApprovalContext, ApprovalDeps]


async def settled(operation: asyncio.Task[Any]) -> None:
    """Wait until a step has ended, with any result. A cancellation meanwhile is raised afterwards."""
    late: asyncio.CancelledError | None = None
    while not operation.done():
        try:
            await asyncio.wait((operation,))
        except asyncio.CancelledError as cancelled:
            late = cancelled
    if late is not None:
        raise late
