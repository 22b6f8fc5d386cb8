"""`Approval`, the facade of the approval machine: graph, guards, hooks, planner and project.

Nothing is written into the project without a person's approval, and every write can be undone. Each method is one
command of a person. No process has to live between two commands: the run waits in the journal.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from orchestrator.argument_names import checks_names
from orchestrator.errors import ConfigError, Corrupt, RunUnknown, TooNew
from orchestrator.files.atomic import Hook, silent
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import Follower, Observer
from orchestrator.kernel.journal import Journal, Posted, RunHead
from orchestrator.kernel.machine import Machine
from orchestrator.machines.approval.fault import ApprovalError, Fault, GateRefused
from orchestrator.machines.approval.graph import APPROVAL, is_approved
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.model import (
    ApprovalContext,
    ApprovalEvent,
    ApprovalState,
    Consent,
    PlanStatus,
)
from orchestrator.machines.approval.plan import ApprovalPlan, ApprovalPlanner, PlanStep, selection, spoken
from orchestrator.runtime.approval import project_journal as store
from orchestrator.runtime.approval.project_journal import StepLog
from orchestrator.runtime.approval.session import (
    DISCARD,
    ApprovalSession,
    PostedAnswers,
    codec,
    damaged,
    newest,
    note_answer,
    recover,
    refuse_second,
)
from orchestrator.runtime.approval.status import (
    POLL,
    WORKING,
    Drift,
    RecoveryNote,
    Status,
    StepFact,
    status_of,
)
from orchestrator.runtime.service import arguments
from orchestrator.runtime.service.answer import default_actor
from orchestrator.runtime.service.arguments import IfExists, agent_data, host_data, new_id
from orchestrator.runtime.service.runtime import Runtime, outside_loop, runtime_of, with_arguments_of
from orchestrator_callbacks.approval import before, enter
from orchestrator_callbacks.approval.control_request import WISHES
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_guards import BlockedGate
from orchestrator_guards.approval import LEAST

if TYPE_CHECKING:
    from orchestrator.runtime.approval.hosting import ApprovalHosting
    from orchestrator.runtime.run_stream import RunStream
    from orchestrator.runtime.runs.runs import Runs

P = ParamSpec("P")
S = TypeVar("S", bound="Approval")


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


@checks_names
class Approval:
    """Run the approval machine on one project, which this process holds while the context is entered.

    After a crash, entering recovers the project; `recovered` describes the result. Entering raises Held if another
    live process works on the project, and ApprovalError, StoreDown or OtherGraph if the project cannot be used.

    Args:
        planner: Makes plans (see `machines.approval.plan`). Without one no request can be submitted.
        launch: Stored with each request: how to make its planner. Must not contain a key.
        on_step: Called with each step, and awaited if it is async.

    Example:
        async with Approval("my/project", planner) as approval:
            await approval.run("Add a README.")
            print((await approval.show()).plan)
            await approval.approve()  # executes the plan
    """

    bound_to = "the directory of its project"
    """Why no other machine could execute its runs."""
    _stops_waiting = False
    """Whether `wait` returns without an answer."""
    parks = True
    """Whether a run that has to wait for a person is left in the journal; an engine reads it."""

    def __init__(
        self,
        project: Path | str,
        planner: ApprovalPlanner | None = None,
        *,
        limits: ApprovalLimits | None = None,
        hooks: Iterable[object] = (),
        runtime: Runtime | None = None,
        journal: Journal | None = None,
        observers: Iterable[Observer] | None = None,
        by: str = "",
        launch: Mapping[str, Any] | None = None,
        on_step: OnStep | None = None,
        hook: Hook = silent,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        arguments.check_agent(locals(), ApprovalLimits, planner=arguments.plans)
        runtime = runtime_of(runtime, journal, observers)
        self._clock = runtime.clock
        self._limits = limits or ApprovalLimits()
        self._by = spoken(by, "the name of who asks") or default_actor()
        self._launch, data = dict(launch or {}), agent_data(name, version)
        self._on_step = on_step
        self._session = ApprovalSession(
            project,
            planner,
            self._limits,
            runtime,
            hooks,
            self._launch,
            None if runtime.own_journal else runtime.journal,
            hook,
            data,
        )
        self._inside, self._door = 0, asyncio.Lock()
        self._turn = asyncio.Lock()
        self._runtime = runtime
        self.recovered: RecoveryNote | None = None
        """The recovery on entering after a crash; None if none was needed."""

    async def __aenter__(self) -> Self:
        async with self._door:
            if not self._inside:
                session = self._session
                await session.open()
                if self._on_step is not None:
                    session.deps.on_step = self._step
                try:
                    if session.run is None and session.damage is not None:
                        self.recovered = damaged(str(session.damage), self._clock.time())[1]
                    else:
                        self.recovered = await recover(session)
                except BaseException:
                    await session.close()
                    raise
            self._inside += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        async with self._door:
            self._inside -= 1
            if not self._inside:
                await self._session.close()

    # ---- status ----

    @property
    def name(self) -> str:
        """Name of the agent; empty if it has none."""
        return self._session.agent

    @property
    def machine(self) -> Machine:
        """The `transitions.Machine` of its graph, as `Agent.machine`."""
        return self._session.machine

    @cached_property
    def hosting(self) -> ApprovalHosting:
        """Engine-only interface of this agent."""
        from orchestrator.runtime.approval.hosting import ApprovalHosting  # a command starts without it

        return ApprovalHosting(self._session, self._runtime, check=self._check_run, begin=self._begin)

    @property
    def runs(self) -> Runs:
        """The runs of the project's journal. Raises ConfigError outside of `async with` if no journal was given."""
        from orchestrator.runtime.runs.runs import Runs

        return Runs(self.hosting.journal)

    @inside
    async def status(self) -> Status:
        """Return the status of the project with the files that differ from the plan. Changes nothing."""
        status, run = self._status(), self._session.run
        waiting = (ApprovalState.AWAITING_APPROVAL, ApprovalState.PAUSED)
        if run is None or status.plan is None or status.state not in waiting:
            return status
        drifted = await self._session.executor.drifted(run)
        return replace(status, drift=tuple(Drift(entry.path, entry.why) for entry in drifted.entries))

    @inside
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

    @inside
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
        folder = store.folder_of(project)
        begun = (folder / store.STATE).exists()  # before the journal is read, because it is written later
        path = folder / "journal.db"
        if not path.exists():
            return _damaged(store.EMPTY) if begun else Status(state=ApprovalState.IDLE, actions=("submit",))
        journal = SqliteJournal(path, only_reads=True)
        try:
            head = await newest(journal)
            if head is None:
                return (
                    _damaged(store.EMPTY) if begun else Status(state=ApprovalState.IDLE, actions=("submit",))
                )
            return await _stored_status(journal, head)
        except (Corrupt, TooNew) as damage:
            return _damaged(str(damage))
        finally:
            await journal.close()

    @staticmethod
    async def ask(project: Path | str, action: str, *, by: str = "", why: str = "") -> None:
        """Request `pause` or `cancel` from the process that works on a project. Raises GateRefused if there is none."""
        by = spoken(by, "the name of who asks") or default_actor()
        why = spoken(why, "the reason")
        if action not in WISHES:
            raise GateRefused(
                BlockedGate("state", f"unknown control request {action!r}; allowed: {', '.join(WISHES)}")
            )
        path = store.folder_of(project) / "journal.db"
        if not path.exists():
            raise _nobody("Idle")
        journal = SqliteJournal(path)
        try:
            head = await newest(journal)
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
        finally:
            await journal.close()

    # ---- request and plan ----

    async def run(
        self,
        request: str,
        *,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Status:
        """Submit a request and plan for it; return the Status in which it waits for a person, or failed.

        Works inside and outside of `async with`, like every command: outside, it opens the project and closes it.

        Args:
            request: The change, as text.
            run_id: Id of the run; by default the number of the request among those of the project.
            if_exists: For a request that exists: `raise` RunExists; `resume` it as `resume` does; `return` its Status,
                also while it waits for a person.
            deadline: Seconds from now for the plan; then the call raises TimeoutError, and the request can be repeated.
            metadata, tags: As for Agent.

        Raises:
            GateRefused: Another request is not done yet.
            Held: Another process works on the project.
            RunExists: `run_id` is in use.
            ApprovalError: The request is empty.
        """
        data = self._check_run(run_id, None, None, deadline, metadata=metadata, tags=tags)
        arguments.check_if_exists(if_exists, run_id)
        return await self._submit(request, run_id, if_exists, deadline, data)

    @with_arguments_of(run)
    def run_sync(self, request: str, **options: Any) -> Status:
        """Run from code without an event loop; options as for `run`. Raises ConfigError inside a running loop."""
        return outside_loop("run_sync", "approval.run", lambda: self.run(request, **options))

    def stream(
        self,
        request: str,
        *,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RunStream[Any, Status]:
        """Submit a request as `run` does and stream the facts until it waits for a person; as `Agent.stream`.

        Without `run_id` the id of the run is random.
        """
        from orchestrator.runtime.run_stream import RunStream  # a command starts without it

        data = self._check_run(run_id, None, None, deadline, metadata=metadata, tags=tags)
        arguments.check_if_exists(if_exists, run_id)
        name = run_id or new_id()
        return RunStream(name, functools.partial(self._submit, request, name, if_exists, deadline, data))

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
        refuse_second(await self._answer(run))
        plan = ApprovalPlan.read(run.ctx.plan or {})
        if digest is not None and not (len(digest) >= LEAST and plan.digest.startswith(digest)):
            raise self._refusal("plan", "this is not the plan that waits for approval", "diff", code="ST-003")
        await self._still_holds(run)
        if run.ctx.previewed != plan.digest:
            raise self._refusal("preview_acknowledged", "this plan was not shown yet", "diff", "approve")
        named = () if steps is None else tuple(map(str, steps))
        chosen = None if steps is None else tuple(selection(plan, named))
        if chosen is not None and chosen != tuple(step.id for step in plan.steps):
            plan = await self._session.executor.derived(plan, chosen, enter.next_id(run.ctx))
            enter.present(run.ctx, plan, self._clock.time(), self._limits.expiry_seconds)
            if {*chosen} == {*named}:
                run.ctx.previewed = plan.digest
            else:  # other steps belong to them, which the person has not chosen
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
        refuse_second(await self._answer(run))
        return await self._go(ApprovalEvent.REJECT, why)

    @inside
    async def changes(self, text: str) -> Status:
        """Request another version of the plan with the given changes."""
        run = self._allow("changes", ApprovalState.AWAITING_APPROVAL)
        refuse_second(await self._answer(run))
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
            answers, answer = PostedAnswers(run, self._session.journal), None
            async with asyncio.timeout(seconds or None):
                while not self._stops_waiting:
                    if (answer := await answers.next(self._clock.time())) is not None:
                        break
                    if before.expired(run) is not None:
                        await self._still_holds(run)
                    await asyncio.sleep(POLL)
            if answer is None:
                return self._status()
            status = await self._apply(run, answer)
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

        With `run_id`, a request that waits for a person or is over is only read, also an earlier one. `limits` and
        `by` are those of Approval: an engine passes them. Raises GateRefused if files have changed meanwhile, and
        RunUnknown.
        """
        _refuse_limits(limits)
        current = self._session.run
        if run_id is not None and (current is None or current.run_id != run_id):
            return await self._earlier(run_id)
        if (  # approved, and not executed yet
            current is not None
            and current.cursor.state == ApprovalState.AWAITING_APPROVAL
            and current.ctx.plan is not None
            and current.ctx.consent is not None
            and self._is_plan_whole(current)
        ):
            return await self.execute()
        if run_id is not None and current is not None and current.cursor.state in _NEEDS_NO_RESUME:
            return self._status()
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

    @inside
    async def cancel(self, run_id: str | None = None, *, why: str = "") -> Status:
        """Cancel the plan and undo its changes. A plan that waits for approval is only discarded.

        Of a plan that is executed here, this is a request: the call that executes it returns when it is undone.
        """
        self._refuse_other(run_id)
        current = self._session.run
        if (
            current is not None
            and current.control.driving
            and current.cursor.state == ApprovalState.EXECUTING
        ):
            self._request_action("cancel", spoken(why, "the reason"))
            return self._status()
        run = self._allow("cancel", ApprovalState.AWAITING_APPROVAL, ApprovalState.PAUSED, run_id=run_id)
        waits = run.cursor.state == ApprovalState.AWAITING_APPROVAL
        refuse_second(await self._answer(run))
        return await self._go(ApprovalEvent.REJECT if waits else ApprovalEvent.CANCEL, why)

    # ---- after a failure ----

    @inside
    async def acknowledge(self, *, discard: bool = False) -> Status:
        """Leave the Failed state after its error was shown.

        `discard` sets aside an unreadable store and starts anew.
        """
        session = self._session
        if session.run is None and session.damage is not None:
            if not discard:
                raise self._refusal(
                    "state", "the store of this project cannot be read", "acknowledge --discard"
                )
            await session.close()
            store.set_aside(session.folder)
            session.damage = None
            await session.open()
            return self._status()
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

    # ---- called by an engine ----

    def _check_run(
        self, run_id: object, conversation_id: object, limits: object, deadline: object, /, **options: Any
    ) -> Mapping[str, Any]:
        arguments.check_run(run_id, None, None, deadline, kind=ApprovalLimits)
        _refuse_limits(limits)
        if conversation_id is not None:
            raise ConfigError("a request of Approval has no conversations: leave conversation_id out")
        return host_data("Approval", options)

    async def _begin(  # noqa: PLR0917 - the arguments of a new run
        self,
        prompt: str,
        run_id: str | None,
        conversation_id: str | None,  # noqa: ARG002 - always None, see `_check_run`
        limits: object,  # noqa: ARG002 - likewise
        deadline: float | None,
        settings: Mapping[str, Any],
        follower: Follower | None = None,
        /,
    ) -> Status:
        """Submit a request with checked arguments."""
        async with asyncio.timeout(deadline), self:
            self._allow("submit", ApprovalState.IDLE)
            if not spoken(prompt, "the request").strip():
                raise ApprovalError(Fault("VAL-001", "the request is empty; describe the change"))
            before = self._session.run
            ctx = ApprovalContext(number=1 if before is None else before.ctx.number + 1, request=prompt)
            await self._session.begin(ctx, self._launch, run_id, settings, follower)
            try:
                return await self._go(ApprovalEvent.SUBMIT)
            finally:
                if self._session.run is not None:
                    self._session.run.follow(None)

    # ---- private ----

    async def _submit(  # noqa: PLR0917 - the arguments of a new run
        self,
        request: str,
        run_id: str | None,
        if_exists: IfExists,
        deadline: float | None,
        data: Mapping[str, Any],
        follower: Follower | None = None,
    ) -> Status:
        """Submit a request; if it exists, resume it or return its Status, as `if_exists` says."""
        # The second of two callers waits for the plan of the first one.
        turn = nullcontext() if if_exists == "raise" else self._turn
        async with asyncio.timeout(deadline), turn, self:
            if run_id is None or not await self.hosting.continues(run_id, if_exists):
                return await self._begin(request, run_id, None, None, None, data, follower)
            current = self._session.run
            if current is not None:
                current.follow(follower)
            try:
                return await self.resume(run_id)
            finally:
                if current is not None:
                    current.follow(None)

    async def _earlier(self, run_id: str) -> Status:
        """Return the Status of an earlier request. Raises RunUnknown."""
        journal = self.hosting.journal
        head = await journal.head(run_id)
        if head.graph != APPROVAL.name:
            raise RunUnknown(run_id)
        return await _stored_status(journal, head)

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

    async def _answer(self, run: ApprovalRun) -> Posted | None:
        return await PostedAnswers(run, self._session.journal).next(self._clock.time())

    async def _apply(self, run: ApprovalRun, answer: Posted) -> Status:
        """Carry out an answer of another process. One that this process cannot carry out stays posted."""
        session, said = self._session, str(answer.body.get("why") or "")
        if answer.kind == "request_changes":
            if not session.has_planner:
                reason = f"{answer.by} requested changes, and this process has no planner; name one"
                raise self._refusal("state", reason, "wait")
            if (blocked := session.deps.actions.affordable()) is not None:
                raise GateRefused(blocked)
        await self._still_holds(run)
        if answer.kind == "reject":
            return await self._go(ApprovalEvent.REJECT, said, answer)
        if answer.kind == "request_changes":
            run.ctx.changes = said
            return await self._go(ApprovalEvent.REQUEST_CHANGES, answer=answer)
        plan = ApprovalPlan.read(run.ctx.plan or {})
        run.ctx.previewed = plan.digest  # the digest of the answer covers what the person was shown
        note_answer(run, answer)
        await self._approve(run, plan, answer.by)
        return await self.execute()

    async def _approve(self, run: ApprovalRun, plan: ApprovalPlan, by: str) -> None:
        run.ctx.consent = Consent(plan.id, plan.version, plan.digest, by, self._clock.time())
        run.ctx.plan_status = PlanStatus.APPROVED.value
        await self._session.remember(run)


def _refuse_limits(limits: object) -> None:
    """Raise ConfigError for limits of one request."""
    if limits is not None:
        raise ConfigError("a request of Approval has no limits of its own; give them to Approval(limits=...)")


_NEEDS_NO_RESUME = frozenset(
    (ApprovalState.IDLE, ApprovalState.AWAITING_APPROVAL, ApprovalState.COMPLETED, ApprovalState.FAILED)
)
"""States in which a request waits for a person, or is over."""
_FEW = 20
"""Number of last requests that are checked for a duplicate."""


async def _stored_status(journal: Journal, head: RunHead) -> Status:
    """Return the status of a request of the journal."""
    records = await journal.load(head.run_id)
    stored, log = StoredRun.of(head.run_id, records), StepLog()
    for one in records:
        log.fold(one.kind, one.body)
    ctx = codec(dict).decoded(stored.context)
    state = ApprovalState(stored.state or ApprovalState.IDLE)
    launch = stored.created.get("launch") or {}
    return status_of(head.run_id, state, ctx, log, owner=head.owner, launch=launch)


def _damaged(why: str) -> Status:
    error, found = damaged(why, time.time())
    return Status(state=ApprovalState.FAILED, error=error, recovery=found, actions=(DISCARD,))


def _nobody(state: str) -> GateRefused:
    return GateRefused(
        BlockedGate(
            "state", f"no process works on the project now; it is {state}", ("status",), code="ST-001"
        )
    )
