"""How a run leaves its driver: it ended, or it goes no further here for now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from orchestrator.errors import CancelRequested
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.journal import Draft
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.report import Reporter
from orchestrator.kernel.run import Run
from orchestrator.kernel.writer import Writer


class Closer:
    """Ends, settles and parks runs for a driver. `ending` and `summary` are the composition's."""

    def __init__(
        self,
        report: Reporter,
        writer: Writer | None,
        clock: Clock,
        ending: Callable[[Any], Ending] | None,
        summary: Callable[[Any], Any] | None,
    ) -> None:
        self._report = report
        self._writer = writer
        self._clock = clock
        self._ending = ending or _plain_ending
        self._summary = summary

    async def end(self, run: Run[Any, Any]) -> None:
        """End a run in its terminal state: outcome, record, fact. Raises what the journal raises."""
        try:
            ending = self._ending(run)
            summary = self._summary(run) if self._summary else None
        except Exception as error:  # noqa: BLE001 - the composition's own; the run has ended all the same
            self._report.failed(run, None, error)
            ending, summary = Ending(Outcome.FAILED, "internal"), None
        at, late = self._clock.time(), None
        if self._writer is not None and not run.detached:
            body = {"outcome": ending.outcome.value, "reason": ending.reason, "at": at}
            run.drafts.append(Draft("ended", body))
            late = await self._writer.write(run)
        run.ended = True
        self._report.send(run)
        self._report.completed(run, ending, summary, at)
        if self._writer is not None:
            late = await self._writer.release(run) or late
        if late is not None:
            raise late

    async def settle(self, run: Run[Any, Any]) -> None:
        """Write what is folded and tell it."""
        late = None if self._writer is None else await self._writer.write(run)
        self._report.send(run)
        if late is not None:
            raise late

    async def leave(self, run: Run[Any, Any]) -> None:
        """Settle on the way out; the caller gets the error that this is about, not another one."""
        try:
            await self.settle(run)
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - told, and the run is detached
            self._report.failed(run, None, error)

    async def abandon(self, run: Run[Any, Any]) -> None:
        """Leave a run that goes no further here: what is folded is written, then it counts as parked."""
        if run.started_at is not None and not run.ended:
            await self.leave(run)
            self._report.parked(run, "interrupted")


def _plain_ending(run: Run[Any, Any]) -> Ending:
    if run.error is None:
        return Ending(Outcome.COMPLETED, "none")
    if isinstance(run.error, CancelRequested):
        return Ending(Outcome.CANCELLED, run.error.reason)
    return Ending(Outcome.FAILED, "internal")
