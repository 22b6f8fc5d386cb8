"""`Approval`, the facade of the approval machine: graph, guards, hooks, planner and project.

Nothing is written into the project without a person's approval, and every write can be undone. Each method is one
command of a person. No process has to live between two commands: the run waits in the journal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from orchestrator.files.atomic import Hook, silent
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.record import Observer
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.graph import is_approved
from orchestrator.machines.approval.intent import spoken
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.model import (
    ApprovalContext,
    ApprovalEvent,
    ApprovalState,
    Consent,
    PlanStatus,
)
from orchestrator.machines.approval.plan import ApprovalPlan, PlanStep, selection
from orchestrator.machines.approval.ports import ApprovalPlanner
from orchestrator.machines.approval.refusal import GateRefused
from orchestrator.runtime.approval import other_process as outside
from orchestrator.runtime.approval import project_journal as store
from orchestrator.runtime.approval import recovery
from orchestrator.runtime.approval.session import ApprovalSession
from orchestrator.runtime.approval.status import Drift, RecoveryNote, Status, StepFact
from orchestrator.runtime.approval.status_view import status_of
from orchestrator.runtime.service import argument_check as arguments
from orchestrator.runtime.service.actor import default_actor
from orchestrator.runtime.service.run_data import agent_data
from orchestrator_callbacks.approval import before
from orchestrator_callbacks.approval import plan_request as request
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_guards import BlockedGate
from orchestrator_guards.approval import LEAST

OnStep = Callable[[StepFact], Awaitable[None] | None]


class Approval:
    """Run the approval machine on one project, which this process holds while the context is entered.

    After a crash, entering recovers the project; `recovered` describes the result. Entering raises Held if another
    live process works on the project, and ApprovalError, StoreDown or OtherGraph if the project cannot be used.

    Args:
        planner: Makes plans (see `machines.approval.ports`). Without one no request can be submitted.
        launch: Stored with each request: how to make its planner. Must not contain a key.
        on_step: Called with each step, and awaited if it is async.

    Example:
        async with Approval("my/project", planner) as approval:
            await approval.submit("Add a README.")
            print((await approval.show()).plan)
            await approval.approve()  # executes the plan
    """

    bound_to = "the directory of its project"
    """Why no other machine could execute its runs."""

    def __init__(
        self,
        project: Path | str,
        planner: ApprovalPlanner | None = None,
        *,
        limits: ApprovalLimits | None = None,
        clock: Clock | None = None,
        observers: Iterable[Observer] = (),
        hooks: Iterable[object] = (),
        journal: Journal | None = None,
        by: str = "",
        launch: Mapping[str, Any] | None = None,
        on_step: OnStep | None = None,
        hook: Hook = silent,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        arguments.check_agent(locals(), ApprovalLimits, planner=arguments.plans)
        self._clock = clock or SystemClock()
        self._limits = limits or ApprovalLimits()
        self._by = spoken(by, "the name of who asks") or default_actor()
        self._launch, data = dict(launch or {}), agent_data(name, version)
        self._on_step = on_step
        self._session = ApprovalSession(
            project, planner, self._limits, self._clock, observers, hooks, self._launch, journal, hook, data
        )
        self._requests = 0
        self.recovered: RecoveryNote | None = None
        """The recovery on entering after a crash; None if none was needed."""

    async def __aenter__(self) -> Self:
        session = self._session
        await session.open()
        if self._on_step is not None:
            session.deps.on_step = self._step
        try:
            if session.run is None and session.damage is not None:
                self.recovered = recovery.damaged(str(session.damage), self._clock.time())[1]
            else:
                self.recovered = await recovery.recover(session)
        except BaseException:
            await session.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    # ---- status ----

    async def status(self) -> Status:
        """Return the status of the project with the files that differ from the plan. Changes nothing."""
        status, run = self._status(), self._session.run
        waiting = (ApprovalState.AWAITING_APPROVAL, ApprovalState.PAUSED)
        if run is None or status.plan is None or status.state not in waiting:
            return status
        drifted = await self._session.executor.drifted(run)
        return replace(status, drift=tuple(Drift(entry.path, entry.why) for entry in drifted.entries))

    async def show(self, version: int | None = None) -> Status:
        """Return the plan, and record that the person has seen it, which its approval requires."""
        run = self._run("show")
        if version is None and run.ctx.plan is not None and run.state == ApprovalState.AWAITING_APPROVAL:
            run.ctx.previewed = ApprovalPlan.read(run.ctx.plan).digest
            await self._session.remember(run)
        found = self._status(version)
        if found.plan is None:
            known = ", ".join(map(str, sorted({number for _, number in found.versions})))
            reason = (
                f"this version of the plan does not exist; known: {known}" if known else "there is no plan"
            )
            raise self._refusal("plan", reason, *self._status().actions)
        return found

    async def shown(self) -> Status:
        """Record that the person has seen the error, which its acknowledgement requires."""
        run = self._run("acknowledge")
        if run.cursor.state == ApprovalState.FAILED:
            run.ctx.shown = True
            await self._session.remember(run)
        return self._status()

    @staticmethod
    async def look(project: Path | str) -> Status:
        """Return the status of a project, even if another process holds it. Raises ApprovalError, StoreDown."""
        return await outside.look(project)

    @staticmethod
    async def ask(project: Path | str, action: str, *, by: str = "", why: str = "") -> None:
        """Request `pause` or `cancel` from the process that works on a project. Raises GateRefused if there is none."""
        by = spoken(by, "the name of who asks") or default_actor()
        await outside.ask(project, action, by, spoken(why, "the reason"))

    # ---- request and plan ----

    async def submit(self, text: str, *, confirm: bool = False) -> Status:
        """Submit a request. With `confirm` and no text, confirm the waiting intent."""
        if confirm and not text.strip():
            return await self.confirm()
        self._allow("submit", ApprovalState.IDLE)
        if not spoken(text, "the request").strip():
            raise ApprovalError(Fault("VAL-001", "the request is empty; describe the change"))
        before = self._session.run
        number = 1 if before is None else before.ctx.number + 1
        await self._session.begin(ApprovalContext(number=number, request=text), self._launch)
        return await self._go(ApprovalEvent.SUBMIT)

    async def confirm(self) -> Status:
        """Confirm the waiting intent and plan for it."""
        run = self._allow("confirm", ApprovalState.IDLE)
        ctx = run.ctx
        if ctx.kept is None:
            raise self._refusal("state", "no intent waits to be confirmed", "submit")
        ctx.intent, ctx.confirmed, ctx.plan, ctx.plan_status = ctx.kept, True, None, ""
        ctx.recovery = None
        return await self._go(ApprovalEvent.SUBMIT)

    # ---- decision ----

    async def approve(
        self, *, steps: Sequence[int | str] | None = None, digest: str | None = None, start: bool = True
    ) -> Status:
        """Approve the plan, or a new plan that is derived from some of its `steps`.

        With `digest` the approval counts only for the plan of that digest. With `start` the plan is executed at once;
        otherwise call `execute`. If chosen steps depend on others, the plan with all of them waits for another
        approval. Raises GateRefused for a plan that has expired, has changed, or was not shown.
        """
        run = self._allow("approve", ApprovalState.AWAITING_APPROVAL)
        plan = ApprovalPlan.read(run.ctx.plan or {})
        if digest is not None and not (len(digest) >= LEAST and plan.digest.startswith(digest)):
            raise self._refusal("plan", "this is not the plan that waits for approval", "diff", code="ST-003")
        await self._still_holds(run)
        if run.ctx.previewed != plan.digest:
            raise self._refusal("preview_acknowledged", "this plan was not shown yet", "diff", "approve")
        if steps is not None:
            plan = await self._derived(run, plan, tuple(map(str, steps)))
            if run.ctx.previewed != plan.digest:
                await self._session.remember(run)
                return self._status()
        run.ctx.consent = Consent(plan.id, plan.version, plan.digest, self._by, self._clock.time())
        run.ctx.plan_status = PlanStatus.APPROVED.value
        await self._session.remember(run)
        return await self.execute() if start else self._status()

    async def execute(self) -> Status:
        """Execute the approved plan until it is done, paused or cancelled."""
        run = self._allow("execute", ApprovalState.AWAITING_APPROVAL)
        if not is_approved(run.ctx):
            raise self._refusal("plan", "the plan is not approved", "diff", "approve", code="ST-003")
        await self._still_holds(run)
        run.ctx.recovery = None
        return await self._go(ApprovalEvent.APPROVE)

    async def reject(self, why: str = "") -> Status:
        """Discard the plan. `why` is stored."""
        self._allow("reject", ApprovalState.AWAITING_APPROVAL)
        return await self._go(ApprovalEvent.REJECT, why)

    async def changes(self, text: str) -> Status:
        """Request another version of the plan with the given changes."""
        run = self._allow("changes", ApprovalState.AWAITING_APPROVAL)
        if not spoken(text, "the changes").strip():
            raise ApprovalError(Fault("VAL-001", "the changes are empty; describe them"))
        run.ctx.changes = text
        return await self._go(ApprovalEvent.REQUEST_CHANGES)

    # ---- during execution ----

    def ask_pause(self) -> None:
        """Request that the plan under execution here pauses after its current step. For signal handlers."""
        self._request_action("pause")

    def ask_cancel(self, why: str = "") -> None:
        """Request that the work in this process is cancelled. For signal handlers."""
        self._request_action("cancel", why)

    async def pause(self) -> Status:
        """Pause the execution. Another process executes the plan, so use `ask` instead."""
        self._allow("pause", ApprovalState.EXECUTING)
        return self._status()

    async def resume(self, *, again: bool = False) -> Status:
        """Resume a paused plan; with `again` an interrupted command runs again. Raises GateRefused after a change."""
        run = self._allow("resume", ApprovalState.PAUSED)
        ctx = run.ctx
        if not self._is_plan_whole(run):
            ctx.fault = Fault("ST-002", "the plan to resume cannot be read").plain()
            return await self._go(ApprovalEvent.RESUME_FAILED)
        if again:
            work = await self._session.executor.work(run)
            ctx.again = sorted({*ctx.again, *work.unknown.values()})
        ctx.recovery = None
        return await self._go(ApprovalEvent.RESUME)

    async def cancel(self, why: str = "") -> Status:
        """Cancel the plan and undo its changes. A plan that waits for approval is only discarded."""
        run = self._allow("cancel", ApprovalState.AWAITING_APPROVAL, ApprovalState.PAUSED)
        waits = run.cursor.state == ApprovalState.AWAITING_APPROVAL
        return await self._go(ApprovalEvent.REJECT if waits else ApprovalEvent.CANCEL, why)

    # ---- after a failure ----

    async def acknowledge(self, *, discard: bool = False) -> Status:
        """Leave the Failed state after its error was shown.

        `discard` sets aside an unreadable store and starts anew.
        """
        if self._session.run is None and self._session.damage is not None:
            return await self._discarded(discard=discard)
        run = self._allow("acknowledge", ApprovalState.FAILED, ApprovalState.COMPLETED)
        if run.cursor.state == ApprovalState.FAILED and not run.ctx.shown:
            raise self._refusal("state", "the error has not been shown yet", "status")
        return await self._go(ApprovalEvent.ACKNOWLEDGE)

    async def retry(self) -> Status:
        """Make a new plan for the same intent."""
        run = self._allow("retry", ApprovalState.FAILED)
        if run.ctx.intent is None:
            raise self._refusal("state", "there is no intent to plan for again", "acknowledge")
        return await self._go(ApprovalEvent.RETRY)

    async def rollback(self) -> Status:
        """Undo the changes of this request's failed plans. The state stays Failed: a rollback has no edge."""
        run = self._allow("rollback", ApprovalState.FAILED)
        if "rollback" not in self._status().actions:
            raise self._refusal("plan", "no step of a failed plan has changed anything", "acknowledge")
        undone = await self._session.executor.undo(run)
        ctx = run.ctx
        ctx.undone = [change.path for change in undone.changes]
        ctx.conflicts = [{"path": one.path, "why": str(one)} for one in undone.conflicts]
        await self._session.remember(run)
        return self._status()

    # ---- private ----

    def _status(self, version: int | None = None) -> Status:
        session = self._session
        run = session.run
        if run is not None:
            log = session.journal.projection.steps
            return status_of(
                run.run_id,
                ApprovalState(run.cursor.state),
                run.ctx,
                log,
                launch=session.launch,
                version=version,
                here=True,
            )
        if session.damage is None:
            return Status(state=ApprovalState.IDLE, actions=("submit",))
        error, recovered = recovery.damaged(str(session.damage), self._clock.time())
        actions = (recovery.DISCARD,)
        return Status(state=ApprovalState.FAILED, error=error, recovery=recovered, actions=actions)

    def _run(self, action: str) -> ApprovalRun:
        run = self._session.run
        if run is None:
            what = "nothing was submitted yet" if self._session.damage is None else str(self._session.damage)
            raise self._refusal("state", f"{action}: {what}", *self._status().actions)
        return run

    def _allow(self, action: str, *states: ApprovalState) -> Any:
        """Return the run if it is in one of these states; without a run the state is Idle. Raises GateRefused."""
        status = self._status()
        if status.state not in states or (self._session.run is None and action != "submit"):
            reason = f"{action} is not possible in {status.state.value}; possible in {', '.join(states)}"
            raise self._refusal("state", reason, *status.actions)
        return self._session.run

    def _refusal(self, gate: str, reason: str, *steps: str, code: str = "ST-001") -> GateRefused:
        return GateRefused(BlockedGate(gate, reason, steps, code=code if gate in ("state", "plan") else ""))

    async def _go(self, event: ApprovalEvent, why: str = "") -> Status:
        run = self._run(event.value)
        run.ctx.why = spoken(why, "the reason")
        await self._session.drive(run, event)
        return self._status()

    async def _still_holds(self, run: ApprovalRun) -> None:
        """Expire a plan that cannot be executed as shown any more. Raises GateRefused."""
        shut = before.expired(run) or await self._session.executor.outdated(run)
        if shut is None:
            return
        run.ctx.plan_status = PlanStatus.EXPIRED.value
        await self._session.drive(run, ApprovalEvent.REJECT)
        expired = shut._replace(reason=f"{shut.reason}; the plan has expired", next_steps=("submit",))
        raise GateRefused(expired)

    async def _derived(self, run: ApprovalRun, plan: ApprovalPlan, steps: tuple[str, ...]) -> ApprovalPlan:
        """Make a plan of some steps the waiting plan. It counts as shown if it contains only the named steps."""
        chosen = selection(plan, steps)
        if tuple(chosen) == tuple(step.id for step in plan.steps):
            return plan
        derived = await self._session.executor.derived(plan, chosen, request.next_id(run.ctx))
        request.present(run.ctx, derived, self._clock.time(), self._limits.expiry_seconds)
        if set(chosen) == set(steps):
            run.ctx.previewed = derived.digest
        return derived

    def _is_plan_whole(self, run: ApprovalRun) -> bool:
        try:
            return is_approved(run.ctx).ok
        except ApprovalError:
            return False

    async def _discarded(self, *, discard: bool) -> Status:
        if not discard:
            raise self._refusal("state", "the store of this project cannot be read", "acknowledge --discard")
        await self._session.close()
        store.set_aside(self._session.folder)
        self._session.damage = None
        await self._session.open()
        return self._status()

    def _request_action(self, action: str, why: str = "") -> None:
        run = self._session.run
        if run is None or not run.control.driving:
            return
        self._requests += 1
        number = f"{action}-{run.seq}-{self._requests}"
        run.mailbox.post(Signal(kind="decision", id=number, by=self._by, why=why, payload={"wish": action}))

    def _step(  # noqa: PLR0917 - the parts of one fact
        self, step: PlanStep, index: int, of: int, phase: str, seconds: float, status: str, output: str
    ) -> Awaitable[None] | None:
        on_step = self._on_step
        return None if on_step is None else on_step(StepFact(step, index, of, phase, status, seconds, output))
