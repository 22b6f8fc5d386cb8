"""The commands of a person about the current request of a project."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import Posted
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.graph import is_approved
from orchestrator.machines.approval.intent import spoken
from orchestrator.machines.approval.model import (
    ApprovalEvent,
    ApprovalState,
    Consent,
    PlanStatus,
)
from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator.machines.approval.refusal import GateRefused
from orchestrator.runtime.approval import posted_answer as posted
from orchestrator.runtime.approval import project_journal as store
from orchestrator.runtime.approval.control_request import POLL
from orchestrator.runtime.approval.current_request import CurrentRequest, inside
from orchestrator.runtime.approval.status import Status
from orchestrator_callbacks.approval import before
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_guards.approval import LEAST


def refuse_limits(limits: object) -> None:
    """Raise ConfigError for limits of one request."""
    if limits is not None:
        raise ConfigError("a request of Approval has no limits of its own; give them to Approval(limits=...)")


class ApprovalCommands(CurrentRequest):
    """The commands of a person. Base of `Approval`."""

    @inside
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

    @inside
    async def approve(
        self,
        run_id: str | None = None,
        *,
        steps: Sequence[int | str] | None = None,
        digest: str | None = None,
        by: str = "",
        start: bool = True,
    ) -> Status:
        """Approve the plan, or a new plan that is derived from some of its `steps`.

        With `digest` the approval counts only for the plan of that digest. With `start` the plan is executed at once;
        otherwise call `execute`. If chosen steps depend on others, the plan with all of them waits for another
        approval. Raises GateRefused for a plan that has expired, has changed, or was not shown.
        """
        run = self._allow("approve", ApprovalState.AWAITING_APPROVAL, run_id=run_id)
        posted.refuse_second(await self._answer(run))
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
        await self._approve(run, plan, self._actor(by))
        return await self.execute() if start else self._status()

    @inside
    async def execute(self) -> Status:
        """Execute the approved plan until it is done, paused or cancelled."""
        run = self._allow("execute", ApprovalState.AWAITING_APPROVAL)
        if not is_approved(run.ctx):
            raise self._refusal("plan", "the plan is not approved", "diff", "approve", code="ST-003")
        await self._still_holds(run)
        run.ctx.recovery = None
        return await self._go(ApprovalEvent.APPROVE)

    @inside
    async def reject(self, run_id: str | None = None, *, why: str = "") -> Status:
        """Discard the plan. `why` is stored."""
        run = self._allow("reject", ApprovalState.AWAITING_APPROVAL, run_id=run_id)
        posted.refuse_second(await self._answer(run))
        return await self._go(ApprovalEvent.REJECT, why)

    @inside
    async def changes(self, text: str) -> Status:
        """Request another version of the plan with the given changes."""
        run = self._allow("changes", ApprovalState.AWAITING_APPROVAL)
        posted.refuse_second(await self._answer(run))
        if not spoken(text, "the changes").strip():
            raise ApprovalError(Fault("VAL-001", "the changes are empty; describe them"))
        run.ctx.changes = text
        return await self._go(ApprovalEvent.REQUEST_CHANGES)

    @inside
    async def wait(self, *, seconds: float = 0.0) -> Status:
        """Wait for an answer to the plan that another process posts, and carry it out.

        The answer comes from the console, `orchestrator runs`, or `Runs(journal)`. An approval executes the plan, a
        rejection discards it, and after a request for changes the next version waits for its answer. `ask_pause` and
        `ask_cancel` end the waiting.

        Args:
            seconds: Longest time to wait for one answer; 0 is no limit.

        Raises:
            GateRefused: No plan waits, it has expired, or the project has changed since.
            TimeoutError: No answer came in time.
        """
        self._stops_waiting = False
        while True:
            run = self._allow("wait", ApprovalState.AWAITING_APPROVAL)
            if not self._session.journal.projection.stored.questions:
                raise self._refusal("plan", "the plan is approved already", "execute")
            async with asyncio.timeout(seconds or None):
                answer = await self._next_answer(run)
            if answer is None:
                return self._status()
            status = await self._apply_answer(run, answer)
            if status.state is not ApprovalState.AWAITING_APPROVAL:
                return status

    # ---- during execution ----

    def ask_pause(self) -> None:
        """Request that the plan under execution here pauses after its current step. For signal handlers."""
        self._request_action("pause")

    def ask_cancel(self, why: str = "") -> None:
        """Request that the work in this process is cancelled. For signal handlers."""
        self._request_action("cancel", why)

    @inside
    async def pause(self, run_id: str | None = None, *, why: str = "") -> Status:
        """Request that the plan under execution here pauses after its current step.

        Of a plan that another process executes, request it with `ask`.
        """
        self._allow("pause", ApprovalState.EXECUTING, run_id=run_id)
        self._request_action("pause", spoken(why, "the reason"))
        return self._status()

    @inside
    async def resume(
        self,
        run_id: str | None = None,
        *,
        limits: None = None,
        by: str = "",  # noqa: ARG002 - the person of a project is that of its Approval
        again: bool = False,
    ) -> Status:
        """Resume a paused plan, or execute an approved one; with `again` an interrupted command runs again.

        `limits` and `by` are those of Approval: an engine passes them. Raises GateRefused if files have changed
        meanwhile.
        """
        refuse_limits(limits)
        if self._waits_for_start(run_id):
            return await self.execute()
        run = self._allow("resume", ApprovalState.PAUSED, run_id=run_id)
        ctx = run.ctx
        if not self._is_plan_whole(run):
            ctx.fault = Fault("ST-002", "the plan to resume cannot be read").plain()
            return await self._go(ApprovalEvent.RESUME_FAILED)
        if again:
            work = await self._session.executor.work(run)
            ctx.again = sorted({*ctx.again, *work.unknown.values()})
        ctx.recovery = None
        return await self._go(ApprovalEvent.RESUME)

    @inside
    async def cancel(self, run_id: str | None = None, *, why: str = "") -> Status:
        """Cancel the plan and undo its changes. A plan that waits for approval is only discarded.

        Of a plan that is executed here, this is a request: the call that executes it returns when it is undone.
        """
        if self._works_here(run_id):
            self._request_action("cancel", spoken(why, "the reason"))
            return self._status()
        run = self._allow("cancel", ApprovalState.AWAITING_APPROVAL, ApprovalState.PAUSED, run_id=run_id)
        waits = run.cursor.state == ApprovalState.AWAITING_APPROVAL
        posted.refuse_second(await self._answer(run))
        return await self._go(ApprovalEvent.REJECT if waits else ApprovalEvent.CANCEL, why)

    # ---- after a failure ----

    @inside
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

    @inside
    async def retry(self) -> Status:
        """Make a new plan for the same intent."""
        run = self._allow("retry", ApprovalState.FAILED)
        if run.ctx.intent is None:
            raise self._refusal("state", "there is no intent to plan for again", "acknowledge")
        return await self._go(ApprovalEvent.RETRY)

    @inside
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

    async def _answer(self, run: ApprovalRun) -> Posted | None:
        return await posted.PostedAnswers(run, self._session.journal).next(self._clock.time())

    async def _next_answer(self, run: ApprovalRun) -> Posted | None:
        """Wait for an answer to the plan; None if the waiting is stopped. Raises GateRefused if the plan expires."""
        answers = posted.PostedAnswers(run, self._session.journal)
        while not self._stops_waiting:
            if (answer := await answers.next(self._clock.time())) is not None:
                return answer
            if before.expired(run) is not None:
                await self._still_holds(run)
            await asyncio.sleep(POLL)
        return None

    async def _apply_answer(self, run: ApprovalRun, answer: Posted) -> Status:
        if answer.kind == "request_changes":
            self._can_plan(answer)
        await self._still_holds(run)
        said = str(answer.body.get("why") or "")
        if answer.kind == "reject":
            return await self._go(ApprovalEvent.REJECT, said, answer)
        if answer.kind == "request_changes":
            run.ctx.changes = said
            return await self._go(ApprovalEvent.REQUEST_CHANGES, answer=answer)
        plan = ApprovalPlan.read(run.ctx.plan or {})
        run.ctx.previewed = plan.digest  # the digest of the answer covers what the person was shown
        posted.note_answer(run, answer)
        await self._approve(run, plan, answer.by)
        return await self.execute()

    def _can_plan(self, answer: Posted) -> None:
        """Raise GateRefused if this process cannot make the version that was requested; the request stays posted."""
        session = self._session
        if not session.has_planner:
            reason = f"{answer.by} requested changes, and this process has no planner; name one"
            raise self._refusal("state", reason, "wait")
        if (blocked := session.deps.actions.affordable()) is not None:
            raise GateRefused(blocked)

    async def _approve(self, run: ApprovalRun, plan: ApprovalPlan, by: str) -> None:
        run.ctx.consent = Consent(plan.id, plan.version, plan.digest, by, self._clock.time())
        run.ctx.plan_status = PlanStatus.APPROVED.value
        await self._session.remember(run)

    async def _discarded(self, *, discard: bool) -> Status:
        if not discard:
            raise self._refusal("state", "the store of this project cannot be read", "acknowledge --discard")
        await self._session.close()
        store.set_aside(self._session.folder)
        self._session.damage = None
        await self._session.open()
        return self._status()
