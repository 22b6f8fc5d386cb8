"""The commands of a person about the current request of a project."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from orchestrator.errors import ConfigError, Corrupt, RunUnknown, TooNew
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal, Posted, Record, RunHead
from orchestrator.llm.port import Clock
from orchestrator.machines.approval.fault import ApprovalError, Fault, GateRefused
from orchestrator.machines.approval.graph import (
    ApprovalEvent,
    ApprovalState,
    Consent,
    PlanStatus,
    is_approved,
)
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.plan import ApprovalPlan, PlanStep, selection, spoken
from orchestrator.runtime.approval import project_journal, session
from orchestrator.runtime.approval import project_journal as store
from orchestrator.runtime.approval import session as posted
from orchestrator.runtime.approval import session as record
from orchestrator.runtime.approval.project_journal import StepLog
from orchestrator.runtime.approval.session import DISCARD, ApprovalSession, damaged
from orchestrator.runtime.approval.status import POLL, WORKING, Status, StepFact, status_of
from orchestrator_callbacks.approval import before, enter
from orchestrator_callbacks.approval.control_request import WISHES
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_guards import BlockedGate
from orchestrator_guards.approval import LEAST

P = ParamSpec("P")
S = TypeVar("S", bound="CurrentRequest")


def inside(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, Status]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, Status]]:
    """Open the project for a call outside of `async with`."""

    @functools.wraps(method)
    async def opened(self: S, /, *args: P.args, **options: P.kwargs) -> Status:
        async with self:
            return await method(self, *args, **options)

    return opened


OnStep = Callable[[StepFact], Awaitable[None] | None]


class CurrentRequest:
    """The current request of a project. Base of `Approval`, which sets its members."""

    _session: ApprovalSession
    _clock: Clock
    _limits: ApprovalLimits
    _by: str
    _on_step: OnStep | None
    _stops_waiting: bool = False
    """Whether `wait` returns without an answer."""

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        raise NotImplementedError

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
        error, recovered = damaged(str(session.damage), self._clock.time())
        actions = (DISCARD,)
        return Status(state=ApprovalState.FAILED, error=error, recovery=recovered, actions=actions)

    def _run(self, action: str) -> ApprovalRun:
        run = self._session.run
        if run is None:
            what = "nothing was submitted yet" if self._session.damage is None else str(self._session.damage)
            raise self._refusal("state", f"{action}: {what}", *self._status().actions)
        return run

    def _allow(self, action: str, *states: ApprovalState, run_id: str | None = None) -> Any:
        """Return the run if it is in one of these states; without a run the state is Idle.

        Raises GateRefused, and RunUnknown if `run_id` is not the current request.
        """
        status = self._status()
        self._refuse_other(run_id)
        if status.state not in states or (self._session.run is None and action != "submit"):
            reason = f"{action} is not possible in {status.state.value}; possible in {', '.join(states)}"
            raise self._refusal("state", reason, *status.actions)
        return self._session.run

    def _refuse_other(self, run_id: str | None) -> None:
        if run_id is not None and (self._session.run is None or self._session.run.run_id != run_id):
            raise RunUnknown(run_id)

    def _works_here(self, run_id: str | None) -> bool:
        """Return whether the plan of the current request is executed in this process."""
        self._refuse_other(run_id)
        run = self._session.run
        return run is not None and run.control.driving and run.cursor.state == ApprovalState.EXECUTING

    def _waits_for_start(self, run_id: str | None) -> bool:
        """Return whether the plan was approved and is not executed yet."""
        self._refuse_other(run_id)
        run = self._session.run
        if run is None or run.cursor.state != ApprovalState.AWAITING_APPROVAL or run.ctx.plan is None:
            return False
        return run.ctx.consent is not None and self._is_plan_whole(run)

    def _refusal(self, gate: str, reason: str, *steps: str, code: str = "ST-001") -> GateRefused:
        return GateRefused(BlockedGate(gate, reason, steps, code=code if gate in ("state", "plan") else ""))

    async def _go(self, event: ApprovalEvent, why: str = "", answer: Posted | None = None) -> Status:
        run = self._run(event.value)
        run.ctx.why = spoken(why, "the reason")
        await self._session.drive(run, event, answer)
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
        derived = await self._session.executor.derived(plan, chosen, enter.next_id(run.ctx))
        enter.present(run.ctx, derived, self._clock.time(), self._limits.expiry_seconds)
        if set(chosen) == set(steps):
            run.ctx.previewed = derived.digest
        return derived

    def _is_plan_whole(self, run: ApprovalRun) -> bool:
        try:
            return is_approved(run.ctx).ok
        except ApprovalError:
            return False

    def _request_action(self, action: str, why: str = "") -> None:
        self._stops_waiting = True
        if self._session.run is not None:
            self._session.request(self._session.run.run_id, action, by=self._by, why=why)

    def _step(  # noqa: PLR0917 - the parts of one fact
        self, step: PlanStep, index: int, of: int, phase: str, seconds: float, status: str, output: str
    ) -> Awaitable[None] | None:
        on_step = self._on_step
        return None if on_step is None else on_step(StepFact(step, index, of, phase, status, seconds, output))


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
        await self._approve(run, plan, spoken(by, "the name of who asks") or self._by)
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


_FEW = 20
"""Number of last requests that are checked for a duplicate."""


async def look(project: Path | str) -> Status:
    """Return the status of a project, even if another process holds it."""
    folder = store.folder_of(project)
    begun = (
        folder / project_journal.STATE
    ).exists()  # before the journal is read, because it is written later
    path = folder / "journal.db"
    if not path.exists():
        return _damaged(store.EMPTY) if begun else Status(state=ApprovalState.IDLE, actions=("submit",))
    journal = SqliteJournal(path, only_reads=True)
    try:
        head = await record.newest(journal)
        if head is None:
            return _damaged(store.EMPTY) if begun else Status(state=ApprovalState.IDLE, actions=("submit",))
        return _status_of(head, await journal.load(head.run_id))
    except (Corrupt, TooNew) as damage:
        return _damaged(str(damage))
    finally:
        await journal.close()


def _damaged(why: str) -> Status:
    error, found = session.damaged(why, time.time())
    return Status(state=ApprovalState.FAILED, error=error, recovery=found, actions=(session.DISCARD,))


def _status_of(head: RunHead, records: list[Record]) -> Status:
    stored = StoredRun.of(head.run_id, records)
    log = StepLog()
    for one in records:
        log.fold(one.kind, one.body)
    ctx = record.codec(dict).decoded(stored.context)
    state = ApprovalState(stored.state or ApprovalState.IDLE)
    launch = stored.created.get("launch") or {}
    return status_of(head.run_id, state, ctx, log, owner=head.owner, launch=launch)


async def ask(project: Path | str, action: str, by: str, why: str) -> None:
    """Post a control request to the process that works on a project. Raises GateRefused if there is none."""
    if action not in WISHES:
        raise GateRefused(
            BlockedGate("state", f"unknown control request {action!r}; allowed: {', '.join(WISHES)}")
        )
    path = store.folder_of(project) / "journal.db"
    journal = SqliteJournal(path) if path.exists() else None
    if journal is None:
        raise _nobody("Idle")
    try:
        await _posted(journal, action, by, why)
    finally:
        await journal.close()


async def _posted(journal: Journal, action: str, by: str, why: str) -> None:
    head = await record.newest(journal)
    if head is None:
        raise _nobody("Idle")
    stored = StoredRun.of(head.run_id, await journal.load(head.run_id))
    state = ApprovalState(stored.state or ApprovalState.IDLE)
    if head.owner is None or state not in WORKING:
        raise _nobody(state.value)
    if state is ApprovalState.CANCELLING:
        reason = "it is being cancelled already, which cannot be stopped"
        raise GateRefused(BlockedGate("not_cancelling", reason, ("status",), code="IPC-002"))
    if action == "pause" and state is not ApprovalState.EXECUTING:
        reason = f"pause is not possible in {state.value}; possible in Executing"
        raise GateRefused(BlockedGate("state", reason, ("cancel",), code="ST-001"))
    posted = await journal.inbox(head.run_id, stored.inbox)
    if any(one.kind == action and one.id not in stored.handled for one in posted[-_FEW:]):
        reason = f"a request to {action} is pending already and takes effect as soon as possible"
        raise GateRefused(BlockedGate("state", reason, ("status",), code="IPC-006"))
    await journal.post(
        head.run_id, Posted(f"{action}-{head.seq}-{len(posted) + 1}", action, {"why": why}, by)
    )


def _nobody(state: str) -> GateRefused:
    return GateRefused(
        BlockedGate(
            "state", f"no process works on the project now; it is {state}", ("status",), code="ST-001"
        )
    )
