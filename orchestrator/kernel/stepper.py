"""One step of a run: resolve the edge, run its hooks, make the move durable, let `transitions` commit it."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Any, NoReturn

from orchestrator.errors import Fenced, JournalError, Refused, RunError
from orchestrator.kernel.clock import Clock, micros
from orchestrator.kernel.failure import error_body
from orchestrator.kernel.hooks import Hook, where
from orchestrator.kernel.journal import Draft
from orchestrator.kernel.machine import Machine, Step
from orchestrator.kernel.record import EventFailed, Transition
from orchestrator.kernel.report import Reporter
from orchestrator.kernel.run import Run
from orchestrator.kernel.writer import Writer


class Stepper:
    """Carries out single events for a driver. At each await the run can be gone on from where it stands.

    Where `run.halted` is set, no further hook is started.
    """

    def __init__(self, machine: Machine, report: Reporter, writer: Writer | None, clock: Clock) -> None:
        self._report = report
        self._writer = writer
        self._clock = clock
        self._mute = writer is None and not report.heard
        graph = machine.graph
        self._failures = {state.value: graph.failure_event(state) for state in graph.states}
        self._limits = {state.value: limit[0] for state in graph.states if (limit := graph.dwell_of(state))}

    async def enter(self, run: Run[Any, Any]) -> bool:
        """Run the enter hooks of the present state; the last event that one returns is the pending one then.

        An event that was pending before, because the caller gave one, stays. Returns False when halted.
        """
        chosen: StrEnum | None = None
        by: Hook | None = None
        for name, hook in run.machine.enter[run.cursor]:
            run.hook = name
            answer = await hook(run)
            if run.halted:
                return False
            if answer is not None:
                chosen, by = answer, hook
        run.fresh = False
        if run.pending is None:
            run.pending = chosen
            if by is not None and chosen == self._failures[run.cursor] and run.error is None:
                self._gave_up(run, by)
        return True

    def _gave_up(self, run: Run[Any, Any], by: Hook) -> None:
        """Take down that a hook asked for the failure event itself: a failed run has an error that says where."""
        run.hook = next(name for name, hook in run.machine.enter[run.cursor] if hook is by)
        asked = f"{where(by, run.hook)} returned {str(run.pending)!r}"
        run.error = RunError(f"{asked} and no error; raise one that says why")
        run.failure = self._report.failed(run, None, run.error)

    async def go_on(self, run: Run[Any, Any]) -> None:
        """Go on with a run in a state whose work was cut short: the enter hooks, then the after hooks of the edge."""
        if await self.enter(run) and run.step is not None and run.step.dest.value == run.cursor:
            await self._after(run, run.step)

    async def fire(self, run: Run[Any, Any], event: StrEnum, *, fold: bool = True) -> None:
        """Carry out one event. Raises EventError with the state unchanged, or whatever a hook raises.

        With `fold` the record of a pure state may stay with the run, to be written with the next one.
        """
        began = self._clock.monotonic()
        run.hook = ""
        run.committed = False
        step = run.step = self._resolve(run, event)
        if step.ahead:
            asked = self._clock.monotonic()
            if not await self._ahead(run, step):
                return
            began += self._clock.monotonic() - asked
        late = await self._commit(run, step, began, fold=fold and step.folded and self._writer is not None)
        if late is not None:
            raise late
        if run.halted or not (step.internal or await self.enter(run)):
            return
        if step.after:
            await self._after(run, step)

    def due(self, run: Run[Any, Any]) -> float | None:
        """Return the monotonic time at which the next limit of the run passes, or None."""
        limit = self._limits.get(run.cursor) if run.overdue is None else None
        due = None if limit is None else run.entered_at + limit
        if run.expires_at is not None and (due is None or run.expires_at < due):
            return run.expires_at
        return due

    def arm(self, run: Run[Any, Any]) -> None:
        """Set the run's alarm, if it has one, to its next limit."""
        if run.alarm is not None:
            run.alarm.set(self.due(run))

    def _resolve(self, run: Run[Any, Any], event: StrEnum) -> Step:
        """Choose the edge: the first whose guard allows it. Guards are asked once and counted."""
        denial: Any = None
        for step in run.machine.steps(run.cursor, event):
            if step.guard is None:
                return step
            run.hook = step.guard_label
            try:
                verdict = step.guard(run.ctx)
            except Exception as error:
                self._report.guard(run, step, "error")
                if not step.failing:
                    raise
                self._report.failed(run, step.event, error)
                continue
            self._report.guard(run, step, "allow" if verdict else "deny", verdict)
            if verdict:
                return step
            denial = verdict
        explain = getattr(denial, "explain", None)
        reason = f"guard {run.hook.removeprefix('when:')} said no" if explain is None else explain()
        raise Refused(reason, graph=run.graph.name, state=run.cursor, event=event, verdict=denial)

    async def _ahead(self, run: Run[Any, Any], step: Step) -> bool:
        """Run the hooks that may veto; on a failure edge their errors are only told. False when halted."""
        if step.settle_first and self._writer is not None:
            await self._settle(self._writer, run, step)
        for name, hook in step.ahead:
            run.hook = name
            try:
                await hook(run)
            except Exception as error:  # noqa: BLE001 - raised again, or told where nothing may keep the run
                if not step.failing:
                    self._veto(run, step, error)
                self._report.failed(run, step.event, error)
            if run.halted:
                return False
        return True

    async def _settle(self, writer: Writer, run: Run[Any, Any], step: Step) -> None:
        """Before a host's hook: make durable all it may depend on, the work of the present state included."""
        writer.context(run, step.event)
        late = await self._write(writer, run, step)
        self._report.send(run)
        if late is not None:
            raise late

    def _veto(self, run: Run[Any, Any], step: Step, error: Exception) -> NoReturn:
        """Raise what a hook raised; a refusal gets the place it was said in."""
        if not isinstance(error, Refused) or error.event:
            raise error
        where = {"graph": run.graph.name, "state": run.cursor, "event": step.event.value}
        raise Refused(error.reason, verdict=error.verdict, **where) from error

    async def _after(self, run: Run[Any, Any], step: Step) -> None:
        for name, hook in step.after:
            run.hook = name
            await hook(run)
            if run.halted:
                return

    async def _commit(
        self, run: Run[Any, Any], step: Step, began: float, *, fold: bool
    ) -> asyncio.CancelledError | None:
        """Make the record durable, move the cursor, tell the observers. Returns a cancellation for later.

        What the kernel has done for the step since `began`, its hooks and the journal left out, is the overhead told.
        """
        now = asked = written = self._clock.monotonic()
        fact = late = None
        if self._mute:
            run.seq += 1
        else:
            fact = self._draft(run, step, now, fold=fold)
            if fact is not None and self._writer is not None and not fold:
                asked = self._clock.monotonic()
                self._writer.context(run)
                late = await self._write(self._writer, run, step)
                written = self._clock.monotonic()
        step.commit(run)
        run.committed = True
        run.pending = None
        if not step.internal:
            run.entered_at = now
            run.fresh = True
            self._left(run)
            self.arm(run)
        if fact is not None:  # nobody has it yet, so it may still be completed
            fact.overhead = self._clock.monotonic() - began - (written - asked)  # type: ignore[misc]
        if not fold:
            self._report.send(run)
        return late

    def _draft(self, run: Run[Any, Any], step: Step, now: float, *, fold: bool) -> Transition | None:
        """Hold back the fact about a step until its record is written, and draft that. None: no journal is left."""
        if run.detached:  # the move is made in memory and told as a failure only
            if not step.failing:
                raise JournalError(f"run {run.run_id!r} lost its journal; it can only fail")
            return None
        run.seq += 1
        fact = self._report.transition(run, step, now)
        run.unsent.append(fact)
        if self._writer is not None:
            failure = run.failure if step.failing else None
            run.drafts.append(Draft("transition", _body(fact, run.elapsed(now), failure)))
            run.folded = run.folded or fold
        return fact

    async def _write(self, writer: Writer, run: Run[Any, Any], step: Step) -> asyncio.CancelledError | None:
        """Write what is folded. A journal that breaks cannot keep a failed run from failing either."""
        try:
            return await writer.write(run)
        except Exception as error:
            if not step.failing or isinstance(error, Fenced):
                raise
            self._report.failed(run, step.event, error)
            return None

    def _left(self, run: Run[Any, Any]) -> None:
        """Forget the time limit of a state that is left, and the interruption for it if it came too late."""
        if run.overdue is not None:
            if run.interruption is run.overdue:
                run.interruption = None  # still halted, so the driver looks, sees nothing, and goes on
            run.overdue = None


def _body(fact: Transition, elapsed: float, failure: EventFailed | None) -> dict[str, Any]:
    body = {
        "seq": fact.seq,
        "event": fact.event,
        "source": fact.source,
        "dest": fact.dest,
        "at": fact.at,
        "t": micros(elapsed),
    }
    if fact.internal:
        body["internal"] = True
    if failure is not None:
        body["error"] = error_body(failure)
    return body
