"""How a run ends, parks and waits: a run that does not continue now, and the services of the driver for hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from orchestrator.errors import CancelRequested, Fenced, JournalError
from orchestrator.kernel.clock import Clock, micros
from orchestrator.kernel.journal import Draft
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.report import Reporter
from orchestrator.kernel.run import Run
from orchestrator.kernel.transition_executor import TransitionExecutor
from orchestrator.kernel.writer import Codec, Writer


class RunFinalizer:
    """Ends, settles and parks runs for a driver. `ending` and `summary` are functions of the composition."""

    def __init__(
        self,
        report: Reporter,
        writer: Writer | None,
        clock: Clock,
        *,
        ending: Callable[[Any], Ending] | None,
        summary: Callable[[Any], Any] | None,
        codec: Codec | None = None,
    ) -> None:
        self._report = report
        self._writer = writer
        self._clock = clock
        self._ending = ending or _plain_ending
        self._summary = summary
        self._codec = codec

    async def end(self, run: Run[Any, Any]) -> None:
        """End a run in its terminal state: outcome, record, fact. Raises the errors of the journal."""
        try:
            ending = self._ending(run)
            summary = self._summary(run) if self._summary else None
        except Exception as error:  # noqa: BLE001 - the composition's own; the run has ended all the same
            self._report.failed(run, None, error)
            ending, summary = Ending(Outcome.FAILED, "internal"), None
        at, late = self._clock.time(), None
        if self._writer is not None and not run.control.detached:
            run.writes.drafts.append(Draft("ended", self._last(run, ending, at)))
            late = await self._write(run)
        run.cursor.ended, run.cursor.ending = True, ending
        self._report.send(run)
        self._report.completed(run, ending, summary, at)
        if self._writer is not None:
            late = await self._writer.release(run) or late
        if late is not None:
            raise late

    async def settle(self, run: Run[Any, Any]) -> None:
        """Write the drafts and the folded records, and publish their facts."""
        late = await self._write(run)
        self._report.send(run)
        if late is not None:
            raise late

    async def _write(self, run: Run[Any, Any]) -> asyncio.CancelledError | None:
        writing = None if self._writer is None else self._writer.write(run)
        return None if writing is None else await writing

    async def keep(self, run: Run[Any, Any]) -> None:
        """Write the drafts and the changes of the context, and publish their facts."""
        if self._writer is not None:
            self._writer.context(run)
        await self.settle(run)

    async def park(self, run: Run[Any, Any], reason: str, detail: Mapping[str, Any] | None = None) -> None:
        """Park the run: write a record with the reason first, then publish it."""
        self._stand(run, reason, detail or {})
        await self.settle(run)
        self._report.parked(run, reason)

    async def leave(self, run: Run[Any, Any]) -> None:
        """Settle without raising: the caller raises its own error, not another one."""
        self._record_end(run)
        await self._settle_quietly(run)

    async def abandon(self, run: Run[Any, Any]) -> None:
        """Leave a run that does not continue here: write its folded records, then report it as parked."""
        if run.cursor.started_at is None or run.cursor.ended:
            return
        if run.writes.drafts or not run.cursor.parked:
            self._stand(run, "interrupted", {})
        await self._settle_quietly(run)
        if not run.cursor.parked:
            self._report.parked(run, "interrupted")

    async def _settle_quietly(self, run: Run[Any, Any]) -> None:
        try:
            await self.settle(run)
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - published; the run is detached
            self._report.failed(run, None, error)

    async def release(self, run: Run[Any, Any]) -> None:
        """Return the run to the journal: any process may continue it from its present state."""
        late = None if self._writer is None else await self._writer.release(run)
        if late is not None:
            raise late

    def _stand(self, run: Run[Any, Any], reason: str, detail: Mapping[str, Any]) -> None:
        """Draft the position of the run and a `parked` record."""
        self._record_end(run)
        active = micros(run.elapsed(self._clock.monotonic()))
        body = {"reason": reason, "at": self._clock.time(), "t": active, **detail}
        run.note("parked", body | run.writes.take_attached())

    def _record_end(self, run: Run[Any, Any]) -> None:
        """Draft the position of the run, unless it is the one of the last record: the begin of its state."""
        if self._writer is None:
            return
        if run.cursor.entry_pending:
            if run.writes.has_transition:
                self._writer.context(run)
        elif run.cursor.pending_event is not None:
            self._writer.context(run, run.cursor.pending_event)

    def _last(self, run: Run[Any, Any], ending: Ending, at: float) -> dict[str, Any]:
        active = micros(run.elapsed(self._clock.monotonic()))
        body = {"outcome": ending.outcome.value, "reason": ending.reason, "at": at, "t": active}
        return body | (dict(self._codec.closing(run)) if self._codec else {})


def _plain_ending(run: Run[Any, Any]) -> Ending:
    if run.cursor.error is None:
        return Ending(Outcome.COMPLETED, "none")
    if isinstance(run.cursor.error, CancelRequested):
        return Ending(Outcome.CANCELLED, run.cursor.error.reason)
    return Ending(Outcome.FAILED, "internal")


class Park(Exception):
    """A hook cannot continue and the driver must not wait in place: the hook runs again later."""

    def __init__(self, reason: str, detail: Mapping[str, Any]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class Evicted(Park):
    """The run has waited in place for long enough and was detached from this process. It is parked already."""


class ConcurrencyLimiter(Protocol):
    """Limits how many runs are active at the same time. A run that waits for an answer needs no seat."""

    def leave(self, run_id: str, reason: str, /) -> None:
        """Free the seat of a run that is parked and reported as parked."""
        ...

    async def back(self, run_id: str, /) -> None:
        """Return when a run that could continue has a seat again."""
        ...


class HookServices:
    """Services of a driver for the hooks of a run; they also park a run that was paused."""

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
        self.around = report.around
        """Makes the context manager of a call for observers; None if no observer wants one."""
        self.overlaps = writer is not None and not writer.at_once and report.around is None
        """Whether a hook may begin a call beside the append before it: no observer sees the call begin."""
        self.limiter: ConcurrencyLimiter | None = None
        """Called before and after every wait in place; None: the runs have no limit."""
        self._waiting: dict[Run[Any, Any], str] = {}
        """Runs that wait in place -> why their wait must end: `_FENCED`, `_LATE`, or empty."""

    async def settle(self, run: Run[Any, Any]) -> None:
        """Make the drafted records durable. Raises JournalError if the run has lost its journal."""
        await self._finalizer.settle(run)
        _must_be_attached(run)

    async def keep(self, run: Run[Any, Any]) -> None:
        """Make the drafted records and the present context durable. Raises as `settle` does."""
        await self._finalizer.keep(run)
        _must_be_attached(run)

    def doubts_lease(self, run: Run[Any, Any]) -> bool:
        """Return whether a hook must await `confirm_lease` before an effect: the lease was not proved recently."""
        return self._writer is not None and self._writer.doubts_lease(run)

    async def confirm_lease(self, run: Run[Any, Any]) -> None:
        """Raise Fenced if the run has another owner now, StoreDown if that is unknown."""
        late = None if self._writer is None else await self._writer.confirm_lease(run)
        if late is not None:
            raise late

    async def wait(
        self, run: Run[Any, Any], reason: str, detail: Mapping[str, Any], ready: Callable[[], bool]
    ) -> None:
        """Return when `ready` is true. Until then the run is parked: observers know it, and none of its time passes.

        Raises Park if the driver does not wait in place, Evicted if the run was detached after some time, JournalError
        if no answer could arrive, Fenced if another owner took the run meanwhile.
        """
        if ready():
            return
        _must_be_attached(run)
        if not run.control.waits_in_place:
            raise Park(reason, detail)
        await self._finalizer.park(run, reason, detail)
        self._waiting[run] = ""
        began = self._clock.monotonic()
        if run.control.alarm is not None:
            run.control.alarm.set(None)
        try:
            await self._answered(run, reason, ready)
        finally:
            self._waiting.pop(run, None)
            self.exclude_time(run, self._clock.monotonic() - began)
        at = self._clock.time()
        # Else a crash after this would find it parked, and charge no lost answer.
        run.note("unparked", {"at": at})
        await self._finalizer.settle(run)
        self._report.started(run, at)

    async def _answered(self, run: Run[Any, Any], reason: str, ready: Callable[[], bool]) -> None:
        """Return when `ready` is true and the run has a seat. A run that is stopped meanwhile needs no seat to end."""
        while not ready():  # again, if that changed while a seat was waited for
            if self.limiter is not None:
                self.limiter.leave(run.run_id, reason)
            await self._woken(run, ready)
            if self._waiting[run] is _FENCED:
                raise Fenced(run.run_id, run.control.lease.epoch if run.control.lease else 0)
            if ready():
                if self.limiter is not None:
                    await self.limiter.back(run.run_id)
            elif self._evicts(run):
                raise Evicted(reason, {})

    async def _woken(self, run: Run[Any, Any], ready: Callable[[], bool]) -> None:
        """Return when `ready` is true, or when the wait has to end for another reason."""
        if self._waiting[run] is _LATE:
            self._waiting[run] = ""
        seconds, alarm = run.control.evict_after, None
        if seconds:
            alarm = self._clock.call_later(seconds, partial(self._end_wait, run, _LATE))
        try:
            await run.control.mailbox.until(lambda: bool(self._waiting[run]) or ready())
        finally:
            if alarm is not None:
                alarm.cancel()

    def _evicts(self, run: Run[Any, Any]) -> bool:
        """Detach a run from this process, unless it has unwritten records or was asked to stop or to pause."""
        control, stays = run.control, run.writes.drafts or run.control.halted or run.control.detached
        if not stays and control.evict is not None and control.evict():
            control.evicted = True
        return control.evicted

    async def hold(self, run: Run[Any, Any]) -> None:
        """Park a paused run until it is resumed. Raises Park as `wait` does.

        A run that lost its journal is not parked: it continues to its end, because no request to resume could reach
        it.
        """
        if run.control.pause_request is not None and not run.control.detached:
            reason = "shutdown" if run.control.pause_request.by == "shutdown" else "paused"
            await self.wait(
                run,
                reason,
                {"by": run.control.pause_request.by, "why": run.control.pause_request.why},
                lambda: run.control.pause_request is None,
            )

    def accept_control_request(self, run: Run[Any, Any], signal: Signal) -> None:
        """Accept a request to stop, pause or resume at once; the journal gets its author and reason."""
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
        """Notify a run that waits in place that another owner has it: its wait raises Fenced."""
        self._end_wait(run, _FENCED)

    def _end_wait(self, run: Run[Any, Any], why: str) -> None:
        if run in self._waiting and self._waiting[run] is not _FENCED:
            self._waiting[run] = why
            run.control.mailbox.wake()

    def exclude_time(self, run: Run[Any, Any], seconds: float) -> None:
        """Shift the times of the run and its alarm, so that the seconds of a wait count for no limit."""
        run.cursor.started_at = (run.cursor.started_at or 0.0) + seconds
        run.cursor.entered_at += seconds
        if run.control.expires_at is not None:
            run.control.expires_at += seconds
        self._executor.arm(run)


_FENCED, _LATE = "fenced", "late"
"""Why a wait ends without an answer: another owner has the run; it has lasted for long enough."""


def _must_be_attached(run: Run[Any, Any]) -> None:
    if run.control.detached:
        raise JournalError(f"run {run.run_id!r} lost its journal; nothing more may be done for it")
