"""The planner and the project as the hooks of approval use them: all effects outside the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from orchestrator.files.atomic import Hook, silent
from orchestrator.files.change import Change, Conflict, UndoReport
from orchestrator.kernel.journal import Journal, Lease
from orchestrator.llm.port import Clock
from orchestrator.llm.retry import RetryAttempt
from orchestrator.machines.approval import rules
from orchestrator.machines.approval.drift import DriftReport
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.intent import Extraction
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.plan import ApprovalPlan, PlanDraft, PlanStep, StepKind, digest_of, part
from orchestrator.machines.approval.ports import ApprovalPlanner, PlanRequest
from orchestrator.runtime.approval import plan_request as planning
from orchestrator.runtime.approval.project_log import ProjectLog
from orchestrator.runtime.approval.rate_limiter import OperationRateLimiter
from orchestrator.runtime.approval.step_work import StepReport, StepWork, completed
from orchestrator.runtime.approval.workspace import Workspace
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_callbacks.approval.plan_request import intent_of
from orchestrator_guards import BlockedGate, first_blocked

T = TypeVar("T")

_RESOLVE = (
    "resume, once the files are as the plan expects them",
    "cancel, which undoes the plan and keeps changes from outside; then submit for a new plan",
)
"""Actions of a person about a conflict."""


class PlanExecutor:
    """Implement `PlanActions` for one project. `hook` is called at each point where a crash can happen."""

    def __init__(  # noqa: PLR0917 - the parts of one project
        self,
        root: Path,
        journal: Journal,
        planner: ApprovalPlanner | None,
        limits: ApprovalLimits,
        clock: Clock,
        log: ProjectLog,
        hook: Hook = silent,
    ) -> None:
        self._root = root
        self._journal = journal
        self._limits = limits
        self._clock = clock
        self._log = log
        self._hook = hook
        self._rate_limiter = OperationRateLimiter(
            {
                "ai": limits.ai_per_minute,
                "writes": limits.writes_per_minute,
                "builds": limits.builds_per_minute,
            },
            clock,
        )
        self._planner = None if planner is None else _InTime(planner, self._rate_limiter, limits.ai_seconds)
        self._workspace = Workspace(root, limits.caps, limits.file_seconds, limits.index_seconds)
        self._work: tuple[str, StepWork] | None = None
        """The work on the plan of that digest, under the lease of the run."""

    # ---- the planner ----

    async def extract(self, run: ApprovalRun) -> Extraction:
        """Request the person's intent from the planner."""
        return await planning.extracted(
            self._require_planner(), run.ctx.request, clock=self._clock, on_attempt=self._attempts_of(run)
        )

    async def draft(self, run: ApprovalRun, plan_id: str, version: int) -> ApprovalPlan:
        """Request a valid plan from the planner."""
        ctx = run.ctx
        request = PlanRequest(
            intent=intent_of(ctx),
            changes=ctx.changes,
            previous=ApprovalPlan.read(ctx.plan) if ctx.changes and ctx.plan else None,
            tree=await self._workspace.tree(),
        )
        return await planning.drafted(
            self._require_planner(),
            self._workspace,
            request,
            plan_id=plan_id,
            version=version,
            clock=self._clock,
            on_attempt=self._attempts_of(run),
        )

    def _require_planner(self) -> ApprovalPlanner:
        if self._planner is None:
            raise ApprovalError(Fault("CFG-001", "no planner is configured; give a plan file or a model"))
        return self._planner

    def _attempts_of(self, run: ApprovalRun) -> planning.OnAttempt:
        def publish(tried: RetryAttempt) -> None:
            """Log code, attempt and delay of a retry."""
            code = str(getattr(tried.error, "code", ""))
            with suppress(OSError):  # a gate reports it before the plan starts
                self._log.write(
                    "Retry",
                    run_id=run.run_id,
                    code=code,
                    attempt=tried.number,
                    delay=tried.delay,
                    outcome=tried.outcome,
                )

        return publish

    # ---- gates ----

    async def ready(self, run: ApprovalRun, *, provider: bool) -> BlockedGate | None:
        """Return the gate that blocks the execution or the resumption of the plan, or None.

        The execution of an approved plan needs no provider; a resume requires one.
        """
        work = await self.work(run)
        asked = [await self.outdated(run), await self._reachable() if provider else None]
        open_commands = [step for step, key in work.unknown.items() if key not in run.ctx.again]
        if open_commands:
            reason = f"the command of step {', '.join(open_commands)} was interrupted; it is unknown whether it has run"
            asked.append(BlockedGate("plan", reason, ("resume --again", "cancel"), code="ST-006"))
        if not self._log.is_ready():
            asked.append(
                BlockedGate(
                    "logging_ready",
                    "the log cannot be written",
                    ("status",),
                    retryable_now=True,
                    code="FS-003",
                )
            )
        return first_blocked(asked)

    async def outdated(self, run: ApprovalRun) -> BlockedGate | None:
        """Return the gate of an outdated plan: a target or the settings changed."""
        plan = ApprovalPlan.read(run.ctx.plan or {})
        return first_blocked([self._configured(plan), await self._drifted(run)])

    def affordable(self) -> BlockedGate | None:
        """Return the gate of a used-up token budget, which blocks another plan, or None."""
        fault = None if self._planner is None else self._planner.budget()
        if fault is None:
            return None
        return BlockedGate("token_budget", fault.message, ("reject", "acknowledge"), code=fault.code)

    def _configured(self, plan: ApprovalPlan) -> BlockedGate | None:
        if plan.caps_digest != digest_of(asdict(self._limits.caps)):
            reason = "the settings changed since the plan was made"
            return BlockedGate("plan", reason, ("changes", "cancel"), code="CFG-004")
        # A stored plan was valid, but a plan in a copied folder may not be.
        found = rules.faults(plan, self._limits.caps)
        return BlockedGate("plan", str(found[0]), ("cancel",), code=found[0].code) if found else None

    async def _drifted(self, run: ApprovalRun) -> BlockedGate | None:
        found = await self.drifted(run)
        if not found:
            return None
        reason = f"differs from the plan: {'; '.join(map(str, found.entries))}"
        return BlockedGate("drift", reason, _RESOLVE, code="ST-005")

    async def drifted(self, run: ApprovalRun) -> DriftReport:
        """Return the targets that differ from the plan and its finished steps."""
        return await self._workspace.drift(ApprovalPlan.read(run.ctx.plan or {}), await self.done(run))

    async def done(self, run: ApprovalRun) -> tuple[str, ...]:
        """Return the ids of the finished steps."""
        plan = ApprovalPlan.read(run.ctx.plan or {})
        return tuple(completed(await self._journal.load(run.run_id), plan))

    async def _reachable(self) -> BlockedGate | None:
        fault = None if self._planner is None else await self._planner.reachable()
        if fault is None:
            return None
        return BlockedGate("ai", fault.message, ("resume", "cancel"), retryable_now=True, code=fault.code)

    # ---- the project ----

    async def work(self, run: ApprovalRun) -> StepWork:
        """Return the work on the current plan, restored from the records of the run."""
        plan = ApprovalPlan.read(run.ctx.plan or {})
        if run.lease is None:
            raise ApprovalError(Fault("ST-001", "this process does not hold the project"))
        if self._work is None or self._work[0] != plan.digest:
            self._work = (plan.digest, await self._work_on(plan, run, run.lease))
        return self._work[1]

    async def _work_on(self, plan: ApprovalPlan, run: ApprovalRun, lease: Lease) -> StepWork:
        return StepWork(
            self._journal,
            lease,
            self._root,
            plan,
            records=await self._journal.load(run.run_id),
            hook=self._hook,
            clock=self._clock,
            caps=self._limits.caps,
            seconds=self._limits.file_seconds,
        )

    async def left(self, run: ApprovalRun) -> tuple[PlanStep, ...]:
        """Return the remaining steps."""
        plan = ApprovalPlan.read(run.ctx.plan or {})
        done = await self.done(run)
        return tuple(step for step in plan.steps if step.id not in done)

    async def turn(self, step: PlanStep) -> None:
        """Wait until the rate limits allow a step."""
        if step.kind is StepKind.RUN:
            await self._rate_limiter.turn("builds")
        else:
            await self._rate_limiter.turn("writes", len(step.files))

    async def perform(self, run: ApprovalRun, step: PlanStep) -> StepReport:
        """Execute one step."""
        work = await self.work(run)
        return await work.perform(step)

    async def undo(self, run: ApprovalRun) -> UndoReport:
        """Revert the changes of the plan, and those of failed earlier plans of this request."""
        changes: list[Change] = []
        conflicts: dict[str, Conflict] = {}
        for one in reversed(run.ctx.versions):
            plan = ApprovalPlan.read(one["plan"])
            if run.lease is None or plan.label in run.ctx.completed:
                continue
            present = run.ctx.plan is not None and plan.digest == ApprovalPlan.read(run.ctx.plan).digest
            work = await self.work(run) if present else await self._work_on(plan, run, run.lease)
            undone = await work.undo_plan()
            changes += undone.changes
            conflicts = {conflict.path: conflict for conflict in undone.conflicts} | conflicts
        return UndoReport(tuple(changes), tuple(conflicts.values()))

    async def derived(self, plan: ApprovalPlan, chosen: Collection[str], plan_id: str) -> ApprovalPlan:
        """Return a new validated plan for some of the steps of another one."""
        draft = part(plan, chosen)
        return await self._workspace.validated(draft, plan_id=plan_id, version=1, derived_from=plan.digest)

    async def undo_open(self, run: ApprovalRun) -> UndoReport:
        """Revert a step that a crash left incomplete."""
        work = await self.work(run)
        return await work.undo_open()


class _InTime:
    """A planner with a time limit for its answers and a rate limit."""

    def __init__(self, planner: ApprovalPlanner, rate_limiter: OperationRateLimiter, seconds: float) -> None:
        self._planner = planner
        self._rate_limiter = rate_limiter
        self._seconds = 0.0 if getattr(planner, "bounds_itself", False) else seconds

    @property
    def regenerates(self) -> bool:
        return self._planner.regenerates

    async def extract(self, text: str) -> Extraction:
        return await self._timed(self._planner.extract(text))

    async def plan(self, request: PlanRequest) -> PlanDraft:
        return await self._timed(self._planner.plan(request))

    def budget(self) -> Fault | None:
        asked = getattr(self._planner, "budget", None)
        fault: Fault | None = None if asked is None else asked()
        return fault

    async def reachable(self) -> Fault | None:
        return await self._timed(self._planner.reachable(), counts=False)

    async def _timed(self, answer: Awaitable[T], *, counts: bool = True) -> T:
        if counts:
            await self._rate_limiter.turn("ai")
        try:
            async with asyncio.timeout(self._seconds or None):
                return await answer
        except TimeoutError:
            message = f"the planner did not answer within {self._seconds:g} s"
            raise ApprovalError(Fault("AI-002", message)) from None
