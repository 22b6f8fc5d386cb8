"""Execution of runs, the same for every graph: live in this process, durable in one journal, with control requests."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeVar

from orchestrator.errors import (
    ConfigError,
    Corrupt,
    DeadlineExceeded,
    Held,
    OrchestratorError,
    OtherGraph,
    Suspended,
)
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.clock import GRACE
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.journal import Journal, Lease, Record, let_go
from orchestrator.kernel.record import Observer, RunParked, RunRecovered, Transition
from orchestrator.kernel.run import Run
from orchestrator.runtime.llm_loop import composition as compose
from orchestrator.runtime.service import argument_check as arguments
from orchestrator.runtime.service.control import Control
from orchestrator.runtime.service.live_run import LiveRuns
from orchestrator.runtime.service.program_recovery import REASON, ProgramsUnknown
from orchestrator.runtime.service.recovery import ClaimedRun, OpenRun, Recovery
from orchestrator.runtime.service.run_scope import RunScope
from orchestrator.telemetry.scope import scope

R = TypeVar("R")

_LOG = logging.getLogger("orchestrator")
_NOT_RECOVERED = {Suspended: "poison", OtherGraph: "other_graph", Corrupt: "corrupt"}


class RunService(Generic[R]):
    """Runs the runs of one graph; R is the type of their results. Base of the facades in `runtime`."""

    _journal: Journal
    _live: LiveRuns
    _driver: Driver
    _recovery: Recovery
    _control: Control
    _codec: ContextCodec[Any]
    _observers: Sequence[Observer]
    _retire: Callable[[str], None]
    """Drops a run that is left where it is from the journal."""
    waits_for: str = "somebody"
    """Description of the cause that a parked run waits for."""
    parks: bool = False
    """Whether a run that has to wait for a person is left in the journal (Suspended); child runs always wait here."""

    # ---- implemented by facades ----

    def _result(self, run: Run[Any, Any], path: Sequence[Transition]) -> R:
        """Return the result of a run that ended here."""
        raise NotImplementedError

    def _out_of_hand(self, run: Run[Any, Any]) -> None:
        """Clean up a run that is not driven any more, before its result is made."""

    def _over(self, run: Run[Any, Any]) -> None:
        """Clean up a started run that is over here: it ended, or was left where it is."""

    # ---- deposit ----

    async def _deposit(self, run: Run[Any, Any], tenant: str) -> str:
        """Store a new run in the journal for a worker, and return its id. Raises ConfigError."""
        await self._driver.deposit(run, {"tenant": tenant} if arguments.checked_tenant(tenant) else {})
        return run.run_id

    # ---- control ----

    async def open_runs(self) -> list[OpenRun]:
        """List the runs of this graph in the journal that have not ended, with the effect of `resume` on each."""
        return await self._recovery.open_runs()

    def cancel(
        self, run_id: str, *, reason: str = "caller", by: str = "caller", why: str = ""
    ) -> Awaitable[None]:
        """Request that a run stops: it starts nothing more and ends as `cancelled`.

        A live run of this process has received the request when this returns. For a run of another process, await the
        result: the request is in the journal then.

        Args:
            run_id: Id of the run.
            reason: "caller", or "shutdown" if the process stops.
            by: Who cancels the run.
            why: The reason as text.

        Raises:
            RunUnknown: The run does not exist.
            ConfigError: `reason` has another value.
        """
        return self._control.stop(run_id, reason, by, why)

    def pause(self, run_id: str, *, by: str = "", why: str = "") -> Awaitable[None]:
        """Request that a run parks before its next step, after the work in flight; `resume` continues it.

        As `cancel`.
        """
        return self._control.hold(run_id, by, why)

    # ---- private ----

    def _limit_time(self, run: Run[Any, Any], deadline: float | None) -> None:
        """Set the end of a new run: its time limit, and the caller's `deadline` in seconds from now."""
        if deadline is not None:
            run.ctx.deadline = max(0.0, deadline)
            if deadline <= 0:
                run.stop(DeadlineExceeded(0.0))
        self._set_end(run, self._control.clock.monotonic())

    def _set_end(self, run: Run[Any, Any], began: float) -> None:
        """Set the time (monotonic) by which a run must end, from its start."""
        seconds = [limit for limit in (run.ctx.limits.max_seconds, run.ctx.deadline) if limit]
        expires_at = began + min(seconds) if seconds else None
        run.limit_time(expires_at, getattr(run.ctx.limits, "cancel_seconds", GRACE))

    async def _carry(self, run: Run[Any, Any], path: Iterable[Transition] = (), *, park: bool = False) -> R:
        """Drive a run to its end; with `park` until it has to wait for a person, which raises Suspended."""
        try:
            self._live.open(run, path)
        except OrchestratorError:
            await self._driver.release(run)
            raise
        end: R | None = None
        try:
            async with self._control.listening():
                try:
                    logger = compose.logger_of(self._observers, run)
                    with scope(run.ctx.limits, logger), RunScope(self, run):
                        await self._control.deliver(run.run_id)
                        await self._driver.drive(run, park=park)
                finally:
                    kept = self._live.close(run)
                    self._out_of_hand(run)
            if not run.ended:
                leaves = run.control.pause_request is not None and run.control.pause_request.by == "shutdown"
                raise Suspended(run.run_id, "shutdown" if leaves else self.waits_for)
            end = self._result(run, kept)
            return end
        finally:
            if run.started_at is not None:  # a refused run wrote no record
                self._over(run)
                if not run.ended:
                    await self._driver.release(run)
                    self._retire(run.run_id)
            self._live.ended(run.run_id, end or Suspended(run.run_id, "interrupted"))

    async def _resume_here(self, run: Run[Any, Any], by: str, *, changed: bool) -> R:
        """Resume a run that was paused here, and return its result. Raises Held if it is not paused."""
        if run.control.pause_request is None or changed:
            raise Held(run.run_id, "this process: it is active here")
        self._control.go_on(run.run_id, by)
        end: R = await asyncio.shield(self._live.end_of(run.run_id))
        return end

    async def _take_up(
        self,
        run_id: str,
        by: str,
        restore: Callable[[StoredRun, list[Record], Lease], Awaitable[Run[Any, Any]]],
        *,
        again: bool = False,
    ) -> tuple[Run[Any, Any], list[Record]]:
        """Claim a run of the journal, restore it with `restore`, and record its resumption; return run and records.

        The record contains the changes of the context by `restore` (other limits, a charge for lost answers) and the
        programs that the last owner left running. `again` as for `Recovery.claim`.
        """
        stored, records, lease, ended = await self._claimed(run_id, again=again)
        try:
            run = await restore(stored, records, lease)
            changes = self._codec.changes(run)
            self._set_end(run, run.started_at or 0.0)
            body = {"at": self._control.clock.time(), "by": by, "context": changes}
            if ended:
                body["ended"] = list(ended)
                _LOG.warning(
                    "run %r: %s was still running and was ended before its work is repeated",
                    run_id,
                    ", ".join(ended),
                )
            await self._driver.announce(run, "resumed", body)
        except BaseException:
            await let_go(self._journal, lease)
            raise
        return run, records

    async def _claimed(self, run_id: str, *, again: bool) -> ClaimedRun:
        """Claim a run, and publish the recovery of one that its last owner had left."""
        try:
            found = await self._recovery.claim(run_id, again=again)
        except ProgramsUnknown as error:
            if error.parked:
                self._driver.tell(await self._parked(run_id))
            raise
        except (Suspended, OtherGraph, Corrupt) as error:
            self._tell_recovered(run_id, _NOT_RECOVERED[type(error)])
            raise
        if found.stored.parked is None and found.stored.begun:
            self._tell_recovered(run_id, "resumed")
        return found

    async def _parked(self, run_id: str) -> RunParked:
        """Return the fact that a run waits for a person who has to check its programs."""
        stored, _ = await self._recovery.read(run_id)
        graph = self._driver.machine.graph
        state = stored.state or graph.initial.value
        return RunParked(graph.name, run_id, state, REASON, self._control.clock.time())

    def _tell_recovered(self, run_id: str, outcome: str) -> None:
        graph = self._driver.machine.graph.name
        self._driver.tell(RunRecovered(graph, run_id, outcome, self._control.clock.time()))


def new_id() -> str:
    """Return a random run id."""
    return secrets.token_hex(16)


def outside_loop(called: str, instead: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run `work` to its end outside an event loop.

    Raises ConfigError, which names the coroutine to await, inside one.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    raise ConfigError(f"{called} was called inside a running event loop; use `await {instead}(...)` there")
