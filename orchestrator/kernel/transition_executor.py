"""One transition of a run: guards, hooks, journal, state, observers. `TransitionExecutor.trigger` is the algorithm."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, NoReturn

from transitions import MachineError

from orchestrator.errors import DeadlineExceeded, Fenced, JournalError, Refused, RunError, StateTimeout
from orchestrator.kernel.clock import WHOLE, Clock
from orchestrator.kernel.fact import GuardEvaluated, Transition
from orchestrator.kernel.hooks import Hook, where
from orchestrator.kernel.journal import draft
from orchestrator.kernel.machine import CompiledTransition
from orchestrator.kernel.report import Reporter
from orchestrator.kernel.run import Run
from orchestrator.kernel.writer import Writer, error_body
from orchestrator_guards.evaluation import foreign_row, row_of
from orchestrator_guards.verdict import GUARD_NAMES, Verdict


class TransitionExecutor:
    """Carries out transitions: `trigger` is their algorithm, `enter` runs the hooks of a state.

    At each await the run can be continued from its present position. While `run.control.halted` is set, no further
    hook starts.
    """

    def __init__(self, report: Reporter, writer: Writer | None, clock: Clock) -> None:
        self._report = report
        self._writer = writer
        self.now = clock.monotonic
        self._time = clock.time
        self.journals = writer is not None
        """Whether transitions become records."""
        self._mute = writer is None and not report.observed
        """Whether there is neither a journal nor an observer."""

    async def go_on(self, run: Run[Any, Any]) -> None:
        """Continue a run in a state whose work was interrupted: the enter hooks, then the after hooks of the edge."""
        step, state = run.cursor.step, run.cursor.state
        came = step is not None and step.dest.value == state
        await self.enter(run, after=step.after if step is not None and came else ())

    async def enter(
        self,
        run: Run[Any, Any],
        hooks: tuple[tuple[str, Hook], ...] | None = None,
        after: tuple[tuple[str, Hook], ...] = (),
    ) -> bool:
        """Run the enter hooks of the present state and then the `after` hooks; the last returned event becomes pending.

        A pending event that the caller gave stays. No further hook runs if the run is halted, or if a paused run left
        its last state only because it would have lost the work of that state; a run that lost its journal is not held.
        Returns True: the transition was carried out.
        """
        cursor, control = run.cursor, run.control
        if control.pause_request is not None and cursor.event_object is not None and not control.detached:
            return True
        chosen: StrEnum | None = None
        by: tuple[str, Hook] | None = None
        for named in run.machine.enter_hooks(cursor.state) if hooks is None else hooks:
            cursor.hook, hook = named
            answer = await hook(run)
            if control.halted:
                return True
            if answer is not None:
                chosen, by = answer, named
        cursor.entry_pending = False
        if cursor.pending_event is None:
            cursor.pending_event = chosen
            if by is not None and chosen == run.graph.failure_events[cursor.state] and cursor.error is None:
                self._gave_up(run, *by)
        if after:
            await self._callbacks(run, after)
        return True

    def due(self, run: Run[Any, Any]) -> float | None:
        """Return the monotonic time of the next limit of the run, or None."""
        control, cursor = run.control, run.cursor
        expires_at = control.expires_at
        limit = run.graph.time_limits.get(cursor.state) if control.overdue is None else None
        if limit is None:
            return expires_at
        due = cursor.entered_at + limit
        return due if expires_at is None or due <= expires_at else expires_at

    def arm(self, run: Run[Any, Any]) -> None:
        """Set the run's alarm, if it has one, to its next limit."""
        if run.control.alarm is not None:
            run.control.alarm.set(self.due(run))

    def is_overdue(self, run: Run[Any, Any]) -> bool:
        """Return whether a time limit has passed; a parked run has no alarm that would ring."""
        due = self.due(run)
        return due is not None and self.now() >= due

    def stop_overdue(self, run: Run[Any, Any]) -> None:
        """Stop a run whose time limit has passed: that of the whole run, or of its present state."""
        control = run.control
        if control.interruption is not None:
            return
        cause: Exception
        if control.expires_at is not None and self.now() >= control.expires_at:
            cause = DeadlineExceeded(control.expires_at - (run.cursor.started_at or 0.0))
            control.expires_at = None  # raised once: the way to the end is not interrupted for it again
        else:
            limit = run.graph.time_limits.get(run.cursor.state, 0.0)
            cause = control.overdue = StateTimeout(run.cursor.state, limit)
        run.stop(cause)

    # ---- one transition ----

    async def trigger(  # noqa: C901, PLR0912, PLR0915 - the algorithm of a transition, in one place and in its order
        self, run: Run[Any, Any], event: StrEnum
    ) -> bool:
        """Fire an event: choose the transition whose conditions hold, and carry it out.

        Hooks that can veto, the record, the state, observers, the other hooks.

        Returns:
            False if the run was stopped before its state changed.

        Raises:
            UnknownEvent: The table has no such event.
            InvalidEvent: No transition of the event leaves the present state.
            Refused: No condition holds.
            MachineError: A hook has changed the state.
            CancelledError: The caller was cancelled while the record was written. No further hook has run.
            Exception: The errors of guards, of hooks and of the journal.
        """
        cursor, control, writes, report = run.cursor, run.control, run.writes, self._report
        cursor.hook, cursor.committed = "", False
        began = self.now()

        # The first transition whose conditions hold.
        if cursor.event_object is None:
            steps = run.table.steps.get((cursor.state, event)) or run.machine.steps(cursor.state, event)
            is_prepared = steps[0].is_prepared
        else:  # edges of the class of the object and of its bases, of several events
            steps = run.machine.steps_for(cursor.state, event, cursor.event_object)
            is_prepared = any(step.is_prepared for step in steps)
        step = cursor.step = steps[0]
        now = began
        if is_prepared:
            chosen = await self._prepared(run, steps)
            if chosen is None:
                return False
            step = chosen
            now = self.now() if step.prepare else began
        elif step.conditions:
            step = self.choose(run, steps)
        name_of_event, source, dest = step.names

        # before_<event>, before_event, leave_<source>, leave_state: their time does not count for the kernel
        if step.ahead:
            asked = self.now() if step.conditions or step.prepare else began
            if step.settle_first and self._writer is not None:
                await self._settle(self._writer, run, step)
            for name, hook in step.ahead:
                cursor.hook = name
                try:
                    answer = await hook(run)
                    if answer is not None:
                        _refuse_event(name, hook, answer)
                except Exception as error:  # noqa: BLE001 - raised again, or published on a failure edge
                    if not step.failing:
                        self._veto(run, step, error)
                    report.failed(run, step.event, error)
                if control.halted:
                    return False
            now = self.now()
            began += now - asked

        # The record. A run that lost its journal can only fail, in memory, and no observer learns of the move.
        fact: Transition | None = None
        late: asyncio.CancelledError | None = None
        if self._mute:
            cursor.seq += 1
        elif not control.detached:
            cursor.seq += 1
            fact = Transition(
                step.graph_name,
                run.run_id,
                cursor.seq,
                name_of_event,
                source,
                dest,
                now - cursor.entered_at,
                self._time(),
                getattr(run.ctx, "iteration", 0),
                step.guard_name,
                step.internal,
                getattr(run.ctx, "verdict", None) if step.ends else None,
            )
            if (stay := writes.stay) is not None:
                dwell = fact.dwell if stay.seconds is None else stay.seconds
                fact = replace(fact, dwell=dwell, tokens=stay.tokens, reason=stay.reason)
            writes.unpublished.append(fact)
            if self._writer is not None:
                elapsed = now - (cursor.started_at or 0.0)
                body: dict[str, Any] = {
                    "seq": cursor.seq,
                    "event": name_of_event,
                    "source": source,
                    "dest": dest,
                    "at": fact.at,
                    "t": (elapsed * 1e6 + WHOLE - WHOLE) / 1e6,  # `micros`, inline
                }
                if step.internal:
                    body["internal"] = True
                if (
                    step.failing
                    or writes.guards is not None
                    or writes.stay is not None
                    or (writes.attempts is not None or writes.table_members is not None)
                ):
                    _attach(run, step, body)
                writes.drafts.append(draft(("transition", body)))
                writes.seconds = 0.0
                if step.folded and control.folds:
                    writes.has_transition = True  # written with the next one
                else:
                    asked = self.now()
                    self._writer.context(run)
                    try:
                        writing = self._writer.write(run, step.enter)
                        if writing is not None:
                            late = await writing
                    except Exception as error:
                        if not step.failing or isinstance(error, Fenced):
                            raise
                        report.failed(run, step.event, error)  # a broken journal prevents no failure
                    finally:
                        writes.seconds += self.now() - asked
        elif not step.failing:
            raise JournalError(f"run {run.run_id!r} lost its journal; it can only fail")

        # The state: from here on the transition is committed.
        if cursor.state != source:
            raise MachineError(f"a hook moved the run from state {source!r} to {cursor.state!r}")
        cursor.state, cursor.committed = dest, True
        cursor.pending_event = writes.stay = None
        if not step.internal:
            cursor.entered_at, cursor.entry_pending = now, True
            if control.overdue is not None:
                # The limit of the state that was left passed too late. The run is still halted, so the driver looks,
                # sees nothing, and continues.
                if control.interruption is control.overdue:
                    control.interruption = None
                control.overdue = None
            if (alarm := control.alarm) is not None:
                due = control.expires_at
                if step.seconds is not None and (due is None or now + step.seconds < due):
                    due = now + step.seconds
                alarm.due = due
                if due is not None and due < alarm.rings_at:
                    alarm.set(due)

        # Observers. They hear of a folded transition, and of one whose append goes on, when its record is written.
        if fact is not None:
            fact.overhead = self.now() - began - writes.seconds  # type: ignore[misc]  # no observer has it yet
        if not (writes.has_transition or writes.overlap):
            report.send(run)
        if late is not None:
            raise late

        # enter_<dest>, enter_state, after_<event>, after_event
        if control.halted:
            return True
        return await (
            self._callbacks(run, step.after) if step.internal else self.enter(run, step.enter, step.after)
        )

    def choose(self, run: Run[Any, Any], steps: Sequence[CompiledTransition]) -> CompiledTransition:
        """Return the first transition whose conditions hold; each guard is evaluated once and counted.

        Raises Refused if there is none, and the errors of guards.
        """
        cursor, writes = run.cursor, run.writes
        cursor.step = steps[0]
        denial: Any = None
        for step in steps:
            for condition in step.conditions:
                cursor.hook = condition.label
                try:
                    answer = condition.evaluate(run)
                    allowed = condition.allows(answer)
                except Exception as error:
                    self._report.guard(run, step, condition, "error")
                    if not step.failing:
                        raise
                    self._report.failed(run, step.event, error)
                    denial = None
                    break
                if self.journals and answer is not writes.guard_verdict:  # otherwise a hook has recorded it
                    run.attach_guards((_guard_row(condition.name, answer),))
                if GuardEvaluated in writes.observed_kinds:
                    self._report.guard(run, step, condition, "allow" if allowed else "deny", answer)
                if not allowed:
                    denial = answer if answer is not True else None
                    break
            else:
                cursor.step = step
                return step
        explain = getattr(denial, "explain", None)
        reason = f"guard {cursor.hook.removeprefix('when:')} said no" if explain is None else explain()
        raise Refused(reason, graph=run.graph.name, state=cursor.state, event=steps[0].event, verdict=denial)

    async def _prepared(
        self, run: Run[Any, Any], steps: Sequence[CompiledTransition]
    ) -> CompiledTransition | None:
        """Choose as `choose` does, but run the prepare callbacks of each transition before its conditions.

        Returns None if the run was stopped meanwhile.
        """
        refusal: Refused | None = None
        for step in steps:
            run.cursor.step = step
            await self._callbacks(run, step.prepare)
            if run.control.halted:
                return None
            try:
                return self.choose(run, (step,))
            except Refused as error:
                refusal = error
        assert refusal is not None  # noqa: S101 - there is at least one step
        raise refusal

    async def _settle(self, writer: Writer, run: Run[Any, Any], step: CompiledTransition) -> None:
        """Make everything durable that a hook of the host may depend on, including the work of the present state."""
        writer.context(run, step.event)
        late = None
        try:
            writing = writer.write(run)
            late = None if writing is None else await writing
        except Exception as error:
            if not step.failing or isinstance(error, Fenced):
                raise
            self._report.failed(run, step.event, error)
        self._report.send(run)
        if late is not None:
            raise late

    def _veto(self, run: Run[Any, Any], step: CompiledTransition, error: Exception) -> NoReturn:
        """Raise the error of a hook; add the place to a refusal."""
        if not isinstance(error, Refused) or error.event:
            raise error
        place = {"graph": run.graph.name, "state": run.cursor.state, "event": step.event.value}
        raise Refused(error.reason, verdict=error.verdict, **place) from error

    def _gave_up(self, run: Run[Any, Any], name: str, by: Hook) -> None:
        """Note that a hook itself chose the failure event: a failed run has an error that says where."""
        run.cursor.hook = name
        asked = f"{where(by, name)} returned {str(run.cursor.pending_event)!r}"
        run.cursor.error = RunError(f"{asked} and no error; raise one that says why")
        run.cursor.failure = self._report.failed(run, None, run.cursor.error)

    async def _callbacks(self, run: Run[Any, Any], hooks: Sequence[tuple[str, Hook]]) -> bool:
        """Run hooks that return nothing, until the run is halted. Returns True."""
        for name, hook in hooks:
            run.cursor.hook = name
            answer = await hook(run)
            if answer is not None:
                _refuse_event(name, hook, answer)
            if run.control.halted:
                break
        return True


def _guard_row(name: str, answer: object) -> Sequence[Any]:
    """Return the row of the answer of a guard of an edge."""
    if isinstance(answer, Verdict) and answer.guard in GUARD_NAMES:
        return row_of(answer)
    return foreign_row(name, answer)


def _attach(run: Run[Any, Any], step: CompiledTransition, body: dict[str, Any]) -> None:
    """Add to the record of a transition what was noted for it."""
    cursor, writes = run.cursor, run.writes
    if step.failing and cursor.failure is not None:
        body["error"] = error_body(cursor.failure)
    if writes.guards is not None:
        body["guards"] = writes.guards
        writes.guards = writes.guard_verdict = None
    if writes.attempts is not None:
        body["attempts"], writes.attempts = writes.attempts, None
    if writes.table_members is not None:
        body |= writes.table_members
        writes.table_members = None
    if (stay := writes.stay) is not None:
        members = {"tokens": stay.tokens, "reason": stay.reason}
        body |= {name: value for name, value in members.items() if value}
        if stay.seconds is not None:
            body["dwell"] = stay.seconds


def _refuse_event(name: str, hook: Hook, answer: object) -> NoReturn:
    """Raise RunError: a hook that is not an enter hook returned an event, which nothing would fire."""
    text = f"{where(hook, name)} returned {str(answer)!r}; only an enter_ hook chooses the next event"
    raise RunError(f"{text}: return None, or return the event from the enter_ hook of the state")
