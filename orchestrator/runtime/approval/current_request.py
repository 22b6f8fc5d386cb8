"""Checks and transitions of the current request of a project."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from orchestrator.errors import RunUnknown
from orchestrator.kernel.journal import Posted
from orchestrator.llm.port import Clock
from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.approval.graph import is_approved
from orchestrator.machines.approval.intent import spoken
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.model import ApprovalEvent, ApprovalState, PlanStatus
from orchestrator.machines.approval.plan import ApprovalPlan, PlanStep, selection
from orchestrator.machines.approval.refusal import GateRefused
from orchestrator.runtime.approval import recovery
from orchestrator.runtime.approval.session import ApprovalSession
from orchestrator.runtime.approval.status import Status, StepFact
from orchestrator.runtime.approval.status_view import status_of
from orchestrator_callbacks.approval import before
from orchestrator_callbacks.approval import plan_request as request
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_guards import BlockedGate

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
        error, recovered = recovery.damaged(str(session.damage), self._clock.time())
        actions = (recovery.DISCARD,)
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

    def _actor(self, by: str) -> str:
        return spoken(by, "the name of who asks") or self._by

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

    def _request_action(self, action: str, why: str = "") -> None:
        self._stops_waiting = True
        if self._session.run is not None:
            self._session.request(self._session.run.run_id, action, by=self._by, why=why)

    def _step(  # noqa: PLR0917 - the parts of one fact
        self, step: PlanStep, index: int, of: int, phase: str, seconds: float, status: str, output: str
    ) -> Awaitable[None] | None:
        on_step = self._on_step
        return None if on_step is None else on_step(StepFact(step, index, of, phase, status, seconds, output))
