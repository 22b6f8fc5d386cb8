"""Waiting for somebody: a run that goes no further until a person, or another process, has answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.errors import JournalError
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.closer import Closer
from orchestrator.kernel.report import Reporter
from orchestrator.kernel.run import Run, Signal
from orchestrator.kernel.stepper import Stepper


class Park(Exception):
    """A hook cannot go on, and the driver was told not to wait in place: the hook is run again later."""

    def __init__(self, reason: str, detail: Mapping[str, Any]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class Parking:
    """What the hooks of a run may ask of its driver (`run.Keeper`), and how a driver holds a run."""

    def __init__(self, report: Reporter, stepper: Stepper, closer: Closer, clock: Clock) -> None:
        self._report = report
        self._stepper = stepper
        self._closer = closer
        self._clock = clock

    async def settle(self, run: Run[Any, Any]) -> None:
        """Make durable what was noted. Raises JournalError where the run has lost its journal."""
        await self._closer.settle(run)
        if run.detached:
            raise JournalError(f"run {run.run_id!r} lost its journal; nothing more may be done for it")

    async def wait(
        self, run: Run[Any, Any], reason: str, detail: Mapping[str, Any], ready: Callable[[], bool]
    ) -> None:
        """Return once `ready`. Until then the run is parked: known as such, and none of its time passes.

        Raises Park where the driver does not wait in place.
        """
        if ready():
            return
        if not run.stays:
            raise Park(reason, detail)
        await self._closer.park(run, reason, detail)
        began = self._clock.monotonic()
        if run.alarm is not None:
            run.alarm.set(None)
        try:
            await run.mailbox.until(ready)
        finally:
            self._pass_over(run, self._clock.monotonic() - began)
        self._report.started(run, "resumed", self._clock.time())

    async def hold(self, run: Run[Any, Any]) -> None:
        """Park a run that somebody paused until it is resumed. Raises Park as `wait` does."""
        if run.held is not None:
            await self.wait(run, "paused", {"by": run.held.by, "why": run.held.why}, lambda: run.held is None)

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
        run.signal = signal
        match signal.asks:
            case "pause":
                run.held = signal
            case "resume":
                run.held = None
            case _:
                run.cancel("shutdown" if signal.by == "shutdown" else "caller", signal.why)

    def _pass_over(self, run: Run[Any, Any], seconds: float) -> None:
        """Move the run's times on, so that what it waited for somebody is nobody's time."""
        run.started_at = (run.started_at or 0.0) + seconds
        run.entered_at += seconds
        if run.expires_at is not None:
            run.expires_at += seconds
        self._stepper.arm(run)
