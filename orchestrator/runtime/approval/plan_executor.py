"""The planner and the project as the hooks of approval use them: everything that is outside the machine."""

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
    "cancel, which undoes the plan and keeps what others changed; then submit for a new plan",
)
"""What a person can do about a conflict (seed 001: re-plan, cancel, or manually resolve; B7)."""


class PlanExecutor:
    """Implements `Hands` for one project. `hook` hears of every boundary that a crash can fall on."""

    def __init__(  # noqa: PLR0917 - the parts of one project
        self,
        root: Path,
        journal: Journal,
        planner: ApprovalPlanner | None,
        limits: ApprovalLimits,
        clock: Clock,
        diary: ProjectLog,
        hook: Hook = silent,
    ) -> None:
        self._root = root
        self._journal = journal
        self._limits = limits
        self._clock = clock
        self._diary = diary
        self._hook = hook
        self._pace = OperationRateLimiter(
            {
                "ai": limits.ai_per_minute,
                "writes": limits.writes_per_minute,
                "builds": limits.builds_per_minute,
            },
            clock,
        )
        self._planner = None if planner is None else _InTime(planner, self._pace, limits.ai_seconds)
        self._ground = Workspace(root, limits.caps, limits.file_seconds, limits.index_seconds)
        self._work: tuple[str, StepWork] | None = None
        """The work on the plan of that digest, by the lease of the run."""

    # ---- the planner ----

    async def extract(self, run: ApprovalRun) -> Extraction:
        """Ask the planner what the person wants."""
        return await planning.extracted(
            self._asked(), run.ctx.request, clock=self._clock, on_attempt=self._told(run)
        )

    async def draft(self, run: ApprovalRun, plan_id: str, version: int) -> ApprovalPlan:
        """Ask the planner for a plan that breaks no rule."""
        ctx = run.ctx
        request = PlanRequest(
            intent=intent_of(ctx),
            changes=ctx.changes,
            previous=ApprovalPlan.read(ctx.plan) if ctx.changes and ctx.plan else None,
            tree=await self._ground.tree(),
        )
        return await planning.drafted(
            self._asked(),
            self._ground,
            request,
            plan_id=plan_id,
            version=version,
            clock=self._clock,
            on_attempt=self._told(run),
        )

    def _asked(self) -> ApprovalPlanner:
        if self._planner is None:
            raise ApprovalError(Fault("CFG-001", "no planner is configured; give a plan file or a model"))
        return self._planner

    def _told(self, run: ApprovalRun) -> planning.OnAttempt:
        def told(tried: RetryAttempt) -> None:
            """Write down code, attempt and delay: what the log of retries has to say."""
            code = str(getattr(tried.error, "code", ""))
            with suppress(OSError):  # a gate says so before the plan is begun
                self._diary.write(
                    "Retry",
                    run_id=run.run_id,
                    code=code,
                    attempt=tried.number,
                    delay=tried.delay,
                    outcome=tried.outcome,
                )

        return told

    # ---- gates ----

    async def ready(self, run: ApprovalRun, *, provider: bool) -> BlockedGate | None:
        """Say what keeps the plan from being carried out, or gone on with.

        A plan that is approved needs no provider; the seed asks for one before a resume.
        """
        work = await self.work(run)
        asked = [await self.standing(run), await self._reachable() if provider else None]
        open_commands = [step for step, key in work.unknown.items() if key not in run.ctx.again]
        if open_commands:
            reason = f"the command of step {', '.join(open_commands)} was cut short; nobody knows whether it has run"
            asked.append(BlockedGate("plan", reason, ("resume --again", "cancel"), code="ST-006"))
        if not self._diary.is_ready():
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

    async def standing(self, run: ApprovalRun) -> BlockedGate | None:
        """Say why the plan does not hold any more: a target or the settings changed."""
        plan = ApprovalPlan.read(run.ctx.plan or {})
        return first_blocked([self._configured(plan), await self._drifted(run)])

    def affordable(self) -> BlockedGate | None:
        """Say that the planner has used too much of its token budget to be asked for another plan."""
        fault = None if self._planner is None else self._planner.budget()
        if fault is None:
            return None
        return BlockedGate("token_budget", fault.message, ("reject", "acknowledge"), code=fault.code)

    def _configured(self, plan: ApprovalPlan) -> BlockedGate | None:
        if plan.caps_digest != digest_of(asdict(self._limits.caps)):
            reason = "the settings changed since the plan was made"
            return BlockedGate("plan", reason, ("changes", "cancel"), code="CFG-004")
        # A plan that is stored was within the rules; one that came with somebody's folder need not be.
        found = rules.faults(plan, self._limits.caps)
        return BlockedGate("plan", str(found[0]), ("cancel",), code=found[0].code) if found else None

    async def _drifted(self, run: ApprovalRun) -> BlockedGate | None:
        found = await self.drifted(run)
        if not found:
            return None
        reason = f"not as the plan expects it: {'; '.join(map(str, found.entries))}"
        return BlockedGate("drift", reason, _RESOLVE, code="ST-005")

    async def drifted(self, run: ApprovalRun) -> DriftReport:
        """Return the targets of the plan that are not as it, and its finished steps, left them."""
        return await self._ground.drift(ApprovalPlan.read(run.ctx.plan or {}), await self.done(run))

    async def done(self, run: ApprovalRun) -> tuple[str, ...]:
        """Return the ids of the steps that are done."""
        plan = ApprovalPlan.read(run.ctx.plan or {})
        return tuple(completed(await self._journal.load(run.run_id), plan))

    async def _reachable(self) -> BlockedGate | None:
        fault = None if self._planner is None else await self._planner.reachable()
        if fault is None:
            return None
        return BlockedGate("ai", fault.message, ("resume", "cancel"), retryable_now=True, code=fault.code)

    # ---- the project ----

    async def work(self, run: ApprovalRun) -> StepWork:
        """Return the work on the present plan, as the records of the run tell it."""
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
        """Return the steps that are still to be done."""
        plan = ApprovalPlan.read(run.ctx.plan or {})
        done = await self.done(run)
        return tuple(step for step in plan.steps if step.id not in done)

    async def turn(self, step: PlanStep) -> None:
        """Wait until a step is no more than is allowed in a minute."""
        if step.kind is StepKind.RUN:
            await self._pace.turn("builds")
        else:
            await self._pace.turn("writes", len(step.files))

    async def perform(self, run: ApprovalRun, step: PlanStep) -> StepReport:
        """Carry out one step."""
        work = await self.work(run)
        return await work.perform(step)

    async def undo(self, run: ApprovalRun) -> UndoReport:
        """Take back what the plan has changed, and what plans of this request had that failed before it."""
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
        """Return a plan of its own for some of the steps of another one, looked over anew."""
        draft = part(plan, chosen)
        return await self._ground.validated(draft, plan_id=plan_id, version=1, derived_from=plan.digest)

    async def undo_open(self, run: ApprovalRun) -> UndoReport:
        """Take back what a crash left half done."""
        work = await self.work(run)
        return await work.undo_open()


class _InTime:
    """A planner whose answers have a time limit, and are asked for no more often than is allowed."""

    def __init__(self, planner: ApprovalPlanner, pace: OperationRateLimiter, seconds: float) -> None:
        self._planner = planner
        self._pace = pace
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
            await self._pace.turn("ai")
        try:
            async with asyncio.timeout(self._seconds or None):
                return await answer
        except TimeoutError:
            message = f"the planner did not answer within {self._seconds:g} s"
            raise ApprovalError(Fault("AI-002", message)) from None
