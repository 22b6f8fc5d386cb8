"""Ends, parks and releases the runs of a driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.errors import CancelRequested
from orchestrator.kernel.clock import Clock, micros
from orchestrator.kernel.codec import Codec
from orchestrator.kernel.journal import Draft
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.report import Reporter
from orchestrator.kernel.run import Run
from orchestrator.kernel.writer import Writer


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
