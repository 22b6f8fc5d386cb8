"""Waiting for somebody: a run that goes no further until a person, or another process, has answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from orchestrator.errors import Fenced, JournalError
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.finalizer import RunFinalizer
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.report import Reporter
from orchestrator.kernel.run import Run
from orchestrator.kernel.transition_executor import TransitionExecutor
from orchestrator.kernel.writer import Writer


class Park(Exception):
    """A hook cannot go on, and the driver was told not to wait in place: the hook is run again later."""

    def __init__(self, reason: str, detail: Mapping[str, Any]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class ConcurrencyLimiter(Protocol):
    """Who limits how many runs go on at once; a run that waits for somebody needs no seat meanwhile."""

    def leave(self, run_id: str, reason: str, /) -> None:
        """Take the seat of a run that is parked now, and known as such."""
        ...

    async def back(self, run_id: str, /) -> None:
        """Return once a run that could go on has a seat again."""
        ...


class HookServices:
    """What the hooks of a run may ask of its driver, and how a driver parks a run that was paused."""

    def __init__(
        self,
        report: Reporter,
        writer: Writer | None,
        executor: TransitionExecutor,
        finalizer: RunFinalizer,
        clock: Clock,
    ) -> None:
        self._report = report
        self._writer = writer
        self._executor = executor
        self._finalizer = finalizer
        self._clock = clock
        self.seats: ConcurrencyLimiter | None = None
        """Asked round every wait in place; None: nobody limits the runs."""
        self._waiting: dict[Run[Any, Any], bool] = {}
        """Runs that wait in place; whether they are known to be somebody else's by now."""

    async def settle(self, run: Run[Any, Any]) -> None:
        """Make durable what was noted. Raises JournalError where the run has lost its journal."""
        await self._finalizer.settle(run)
        _must_be_attached(run)

    async def keep(self, run: Run[Any, Any]) -> None:
        """Make durable what was noted and the context as it is. Raises as `settle` does."""
        await self._finalizer.keep(run)
        _must_be_attached(run)

    def doubts_lease(self, run: Run[Any, Any]) -> bool:
        """Return whether a hook must await `confirm_lease` before an effect: the lease was not proved of late."""
        return self._writer is not None and self._writer.doubts_lease(run)

    async def confirm_lease(self, run: Run[Any, Any]) -> None:
        """Raise Fenced where the run has another owner by now, StoreDown where that cannot be known."""
        late = None if self._writer is None else await self._writer.confirm_lease(run)
        if late is not None:
            raise late

    async def wait(
        self, run: Run[Any, Any], reason: str, detail: Mapping[str, Any], ready: Callable[[], bool]
    ) -> None:
        """Return once `ready`. Until then the run is parked: known as such, and none of its time passes.

        Raises Park where the driver does not wait in place, JournalError where no answer could be heard, Fenced where
        somebody else took the run meanwhile.
        """
        if ready():
            return
        _must_be_attached(run)
        if not run.control.waits_in_place:
            raise Park(reason, detail)
        await self._finalizer.park(run, reason, detail)
        self._waiting[run] = False
        began = self._clock.monotonic()
        if run.control.alarm is not None:
            run.control.alarm.set(None)
        try:
            await self._answered(run, reason, ready)
        finally:
            self._waiting.pop(run, None)
            self.pass_over(run, self._clock.monotonic() - began)
        at = self._clock.time()
        # Else a crash after this would find it parked, and charge no lost answer.
        run.note("unparked", {"at": at})
        await self._finalizer.settle(run)
        self._report.started(run, at)

    async def _answered(self, run: Run[Any, Any], reason: str, ready: Callable[[], bool]) -> None:
        """Return once `ready`, with a seat. A run that is stopped meanwhile goes to its end without one."""
        while not ready():  # again, if that changed while a seat was waited for
            if self.seats is not None:
                self.seats.leave(run.run_id, reason)
            await run.control.mailbox.until(lambda: self._waiting.get(run) or ready())
            if self._waiting.get(run):
                raise Fenced(run.run_id, run.control.lease.epoch if run.control.lease else 0)
            if self.seats is not None:
                await self.seats.back(run.run_id)

    async def hold(self, run: Run[Any, Any]) -> None:
        """Park a run that somebody paused until it is resumed. Raises Park as `wait` does.

        One that lost its journal is not held: it goes to its end, and nobody could tell it to go on.
        """
        if run.control.pause_request is not None and not run.control.detached:
            reason = "shutdown" if run.control.pause_request.by == "shutdown" else "paused"
            await self.wait(
                run,
                reason,
                {"by": run.control.pause_request.by, "why": run.control.pause_request.why},
                lambda: run.control.pause_request is None,
            )

    def asked(self, run: Run[Any, Any], signal: Signal) -> None:
        """Take a request to stop, pause or resume, at once; who asked and why goes to the journal."""
        body = {
            "id": signal.id,
            "kind": signal.asks,
            "by": signal.by,
            "why": signal.why,
            "number": signal.number,
        }
        run.note("control", body | {"at": self._clock.time()})
        run.control.signal = signal
        match signal.asks:
            case "pause":
                if not run.stopping:  # on its way out nothing holds it any more
                    run.control.pause_request = signal
            case "resume":
                run.control.pause_request = None
            case _:
                run.cancel("shutdown" if signal.by == "shutdown" else "caller", signal.why)

    def fence(self, run: Run[Any, Any]) -> None:
        """Let a run that waits in place know that somebody else has it now: its wait raises Fenced."""
        if run in self._waiting:
            self._waiting[run] = True
            run.control.mailbox.post(Signal(kind="decision"))  # wakes it; an answer that answers nothing

    def pass_over(self, run: Run[Any, Any], seconds: float) -> None:
        """Move the run's times on, its alarm included, so that what it waited for somebody is nobody's time."""
        run.cursor.started_at = (run.cursor.started_at or 0.0) + seconds
        run.cursor.entered_at += seconds
        if run.control.expires_at is not None:
            run.control.expires_at += seconds
        self._executor.arm(run)


def _must_be_attached(run: Run[Any, Any]) -> None:
    if run.control.detached:
        raise JournalError(f"run {run.run_id!r} lost its journal; nothing more may be done for it")
