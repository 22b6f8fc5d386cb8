"""`Approval`, the facade of the approval machine: graph, guards, hooks, planner and project.

Nothing is written into the project without a person's approval, and every write can be undone. Each method is one
command of a person. No process has to live between two commands: the run waits in the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from orchestrator.errors import ConfigError
from orchestrator.files.atomic import Hook, silent
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.record import Follower, Observer
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.graph import ApprovalContext, ApprovalEvent, ApprovalState
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.plan import ApprovalPlan, ApprovalPlanner, spoken
from orchestrator.runtime.approval import commands as outside
from orchestrator.runtime.approval.commands import ApprovalCommands, OnStep, inside, refuse_limits
from orchestrator.runtime.approval.session import ApprovalSession, damaged, recover
from orchestrator.runtime.approval.status import Drift, RecoveryNote, Status
from orchestrator.runtime.service import option as arguments
from orchestrator.runtime.service.answer import default_actor
from orchestrator.runtime.service.option import agent_data, host_data
from orchestrator.runtime.service.runtime import Runtime, outside_loop, runtime_of, with_arguments_of

if TYPE_CHECKING:
    from orchestrator.runtime.approval.hosting import ApprovalHosting
    from orchestrator.runtime.run_stream import RunStream
    from orchestrator.runtime.runs.runs import Runs


class Approval(ApprovalCommands):
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
        self._runtime = runtime
        self.recovered: RecoveryNote | None = None
        """The recovery on entering after a crash; None if none was needed."""

    async def __aenter__(self) -> Self:
        async with self._door:
            if not self._inside:
                await self._open()
            self._inside += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        async with self._door:
            self._inside -= 1
            if not self._inside:
                await self._session.close()

    async def _open(self) -> None:
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
        return await outside.look(project)

    @staticmethod
    async def ask(project: Path | str, action: str, *, by: str = "", why: str = "") -> None:
        """Request `pause` or `cancel` from the process that works on a project. Raises GateRefused if there is none."""
        by = spoken(by, "the name of who asks") or default_actor()
        await outside.ask(project, action, by, spoken(why, "the reason"))

    # ---- request and plan ----

    async def run(
        self,
        request: str,
        *,
        run_id: str | None = None,
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Status:
        """Submit a request and plan for it; return the Status in which it waits for a person, or failed.

        Works inside and outside of `async with`, like every command: outside, it opens the project and closes it.

        Args:
            request: The change, as text.
            run_id: Id of the run; by default the number of the request among those of the project.
            deadline: Seconds from now for the plan; then the call raises TimeoutError, and the request can be repeated.
            metadata, tags: As for Agent.

        Raises:
            GateRefused: Another request is not done yet.
            Held: Another process works on the project.
            RunExists: `run_id` is in use.
            ApprovalError: The request is empty.
        """
        data = self._check_run(run_id, None, None, deadline, metadata=metadata, tags=tags)
        return await self._begin(request, run_id, None, None, deadline, data)

    @with_arguments_of(run)
    def run_sync(self, request: str, **options: Any) -> Status:
        """Run from code without an event loop; options as for `run`. Raises ConfigError inside a running loop."""
        return outside_loop("run_sync", "approval.run", lambda: self.run(request, **options))

    def stream(
        self,
        request: str,
        *,
        run_id: str | None = None,
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RunStream[Any, Status]:
        """Submit a request as `run` does and stream the facts until it waits for a person; as `Agent.stream`.

        Without `run_id` the id of the run is random.
        """
        from orchestrator.runtime.run_stream import new_stream  # a command starts without it

        data = self._check_run(run_id, None, None, deadline, metadata=metadata, tags=tags)
        return new_stream(self._begin, request, run_id, None, None, deadline, data)

    # ---- called by an engine ----

    def _check_run(
        self, run_id: object, conversation_id: object, limits: object, deadline: object, /, **options: Any
    ) -> Mapping[str, Any]:
        arguments.check_run(run_id, None, None, deadline, kind=ApprovalLimits)
        refuse_limits(limits)
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
