"""One step of a run: resolve the edge, run its hooks, make the move durable, let `transitions` commit it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NoReturn

from orchestrator.errors import Fenced, JournalError, Refused, RunError
from orchestrator.kernel.clock import Clock, micros
from orchestrator.kernel.failure import error_body
from orchestrator.kernel.hooks import Hook, where
from orchestrator.kernel.journal import Draft
from orchestrator.kernel.machine import Machine, Step
from orchestrator.kernel.record import EventFailed, Remark, Transition
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
        """Nobody keeps or hears of a step."""
        graph = machine.graph
        self._failures = {state.value: graph.failure_event(state) for state in graph.states}
        """State -> its failure event, or None."""
        self._limits = {state.value: limit[0] for state in graph.states if (limit := graph.dwell_of(state))}
        """State -> the seconds a run may stay in it."""

    async def fire(
        self, run: Run[Any, Any], event: StrEnum, *, fold: bool = True, steps: Sequence[Step] = ()
    ) -> None:
        """Carry out one event. Raises EventError with the state unchanged, or whatever a hook raises.

        With `fold` the record of a pure state may stay with the run, to be written with the next one. `steps` are the
        candidates where somebody has looked them up already. What the kernel has done for the step, its hooks and the
        journal left out, is the overhead told.
        """
        began = self._clock.monotonic()
        run.hook = ""
        run.committed = False
        steps = steps or run.machine.steps(run.cursor, event)
        step = run.step = steps[0] if steps[0].guard is None else self._allowed(run, steps)
        if step.ahead:
            asked = self._clock.monotonic()
            if not await self._ahead(run, step):
                return
            began += self._clock.monotonic() - asked
        fold = fold and step.folded and self._writer is not None
        now = self._clock.monotonic()
        fact = self._draft(run, step, now, fold=fold)
        late, written = (None, 0.0) if fold or fact is None else await self._journalled(run, step)
        self._commit(run, step, now)
        if fact is not None:  # nobody has it yet, so it may still be completed
            fact.overhead = self._clock.monotonic() - began - written  # type: ignore[misc]
        if not fold:
            self._report.send(run)
        if late is not None:
            raise late
        if run.halted or not (step.internal or await self.enter(run)):
            return
        if step.after:
            await self._after(run, step)

    async def go_on(self, run: Run[Any, Any]) -> None:
        """Go on with a run in a state whose work was cut short: the enter hooks, then the after hooks of the edge."""
        if await self.enter(run) and run.step is not None and run.step.dest.value == run.cursor:
            await self._after(run, run.step)

    async def enter(self, run: Run[Any, Any]) -> bool:
        """Run the enter hooks of the present state; the last event that one returns is the pending one then.

        An event that was pending before, because the caller gave one, stays. Returns False when halted, and where a
        paused run was only let out of its last state because it would have lost that state's work.
        """
        if run.held is not None and run.given is not None:
            return False
        chosen: StrEnum | None = None
        by: tuple[str, Hook] | None = None
        for named in run.machine.enter[run.cursor]:
            run.hook = named[0]
            answer = await named[1](run)
            if run.halted:
                return False
            if answer is not None:
                chosen, by = answer, named
        run.fresh = False
        if run.pending is None:
            run.pending = chosen
            if by is not None and chosen == self._failures[run.cursor] and run.error is None:
                self._gave_up(run, *by)
        return True

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

    # ---- the parts of a step, in their order ----

    def _allowed(self, run: Run[Any, Any], steps: Sequence[Step]) -> Step:
        """Choose the edge: the first whose guard allows it. Guards are asked once and counted."""
        denial: Any = None
        for step in steps:
            if step.guard is None:
                return step
            run.hook = step.guard_label
            try:
                verdict = step.ask(run)
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
        raise Refused(reason, graph=run.graph.name, state=run.cursor, event=steps[0].event, verdict=denial)

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
        place = {"graph": run.graph.name, "state": run.cursor, "event": step.event.value}
        raise Refused(error.reason, verdict=error.verdict, **place) from error

    def _draft(self, run: Run[Any, Any], step: Step, now: float, *, fold: bool) -> Transition | None:
        """Hold back the fact about a step until its record is written, and draft that.

        None where no journal is left, or there is nobody to tell.
        """
        if self._mute:
            run.seq += 1
            return None
        if run.detached:  # the move is made in memory and told as a failure only
            if not step.failing:
                raise JournalError(f"run {run.run_id!r} lost its journal; it can only fail")
            return None
        run.seq += 1
        fact = self._report.transition(run, step, now)
        run.unsent.append(fact)
        if self._writer is not None:
            failure = run.failure if step.failing else None
            body = _body(fact, run.elapsed(now), failure)
            run.drafts.append(
                Draft("transition", body if run.remark is None else _remarked(body, run.remark))
            )
            run.folded = run.folded or fold
        return fact

    async def _journalled(
        self, run: Run[Any, Any], step: Step
    ) -> tuple[asyncio.CancelledError | None, float]:
        """Make a step durable, with what changed of the context; return a cancellation for later, and the seconds."""
        if self._writer is None:
            return None, 0.0
        asked = self._clock.monotonic()
        self._writer.context(run)
        late = await self._write(self._writer, run, step)
        return late, self._clock.monotonic() - asked

    async def _write(self, writer: Writer, run: Run[Any, Any], step: Step) -> asyncio.CancelledError | None:
        """Write what is folded. A journal that breaks cannot keep a failed run from failing either."""
        try:
            return await writer.write(run)
        except Exception as error:
            if not step.failing or isinstance(error, Fenced):
                raise
            self._report.failed(run, step.event, error)
            return None

    def _commit(self, run: Run[Any, Any], step: Step, now: float) -> None:
        """Move the cursor: the record is durable, or folded."""
        step.commit(run)
        run.committed = True
        run.pending = run.remark = None
        if not step.internal:
            run.entered_at = now
            run.fresh = True
            if run.overdue is not None:
                self._left(run)
            if run.alarm is not None:
                run.alarm.set(self.due(run))

    def _left(self, run: Run[Any, Any]) -> None:
        """Forget the time limit of a state that is left, and the interruption for it if it came too late."""
        if run.interruption is run.overdue:
            run.interruption = None  # still halted, so the driver looks, sees nothing, and goes on
        run.overdue = None

    def _gave_up(self, run: Run[Any, Any], name: str, by: Hook) -> None:
        """Take down that a hook asked for the failure event itself: a failed run has an error that says where."""
        run.hook = name
        asked = f"{where(by, name)} returned {str(run.pending)!r}"
        run.error = RunError(f"{asked} and no error; raise one that says why")
        run.failure = self._report.failed(run, None, run.error)

    async def _after(self, run: Run[Any, Any], step: Step) -> None:
        for name, hook in step.after:
            run.hook = name
            await hook(run)
            if run.halted:
                return


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


def _remarked(body: dict[str, Any], remark: Remark) -> dict[str, Any]:
    said = {"tokens": remark.tokens, "reason": remark.reason}
    body |= {name: value for name, value in said.items() if value}
    return body if remark.seconds is None else body | {"dwell": remark.seconds}
