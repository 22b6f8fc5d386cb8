"""Carries typed runs: an event source is asked for one event after the other, and the kernel makes each step.

A Driver without what a typed run has no use for: no state does work of its own, so there is no hook to interrupt, no
time limit and no mailbox, and nothing here needs an event loop but what the callables of the machine wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, cast

from orchestrator.errors import EventError, Refused, RunError
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.kernel.table import CompiledTransition
from orchestrator.kernel.typed_error import UnhandledEventError
from orchestrator.kernel.typed_table import TypedMachine

TURNS = 64
"""A source that never waits would keep other tasks out: after so many turns these are let in."""

_REASONS = {
    "guard_error": "guard_error",
    "undeclared_edge": "invalid_transition",
    "unknown_event": "invalid_transition",
    "refused": "policy_stop",
    "callback_error": "callback_error",
    "journal_error": "journal_error",
}


def ending(run: Run[Any, Any]) -> Ending:
    """Return outcome and reason of a typed run.

    A source that returns None before a terminal state has stalled it; without terminal states it has ended it.
    """
    if run.cursor.failure is not None:
        return Ending(Outcome.FAILED, _REASONS.get(run.cursor.failure.reason, "internal"))
    if run.state in run.graph.terminal or not run.graph.terminal:
        return Ending(Outcome.COMPLETED, "none")
    return Ending(Outcome.NO_PROGRESS, "stalled")


class Walker(Driver):
    """Drives the runs of one typed machine. `max_unhandled` events in a row may lead nowhere; the next one raises."""

    machine: TypedMachine

    def __init__(self, machine: TypedMachine, max_unhandled: int, **options: Any) -> None:
        super().__init__(machine, ending=ending, **options)
        self._max_unhandled = max_unhandled
        self._ends = frozenset(state.value for state in machine.graph.terminal)

    async def walk(self, run: Run[Any, Any], source: Callable[[Any, Any], Any], *, breathe: bool) -> None:
        """Carry a new run on until it ends. Raises what its callables raise; the run has ended as failed then.

        With `breathe` other tasks get their turn even where no callable waits.
        """
        self._claim(run, None)
        try:
            await self._create(run)
            await self._executor.enter(run)
            await self._go(run, source, breathe=breathe)
            await self._finalizer.end(run)
        except Exception as error:
            await self._fail(run, error)
            raise
        except BaseException:  # cancelled, or the process is told to stop: nobody goes on with it here
            await self._finalizer.abandon(run)
            await self._finalizer.release(run)
            raise
        finally:
            run.control.driving = False

    async def _go(self, run: Run[Any, Any], source: Callable[[Any, Any], Any], *, breathe: bool) -> None:
        """Ask for events and fire them until the run is in a terminal state, or there is none."""
        machine, ctx, ends = self.machine, run.ctx, self._ends
        turns = skipped = 0
        while (state := run.cursor.state) not in ends:
            run.cursor.hook = "source"
            event = _asked(source, machine.objects[state], ctx)
            steps = machine.known.get((state, type(event)))
            if steps is None:
                if hasattr(event, "__await__"):
                    event = await event
                if event is None:
                    return
                steps = machine.candidates(state, type(event))
            run.cursor.event_object = event
            if state in machine.awaited:
                await machine.judge(run, steps)
            refusal = await self._step(run, steps)
            if refusal is None:
                skipped = 0
            else:
                skipped += 1
                self._skip(run, refusal, skipped)
            turns += 1
            if breathe and not turns % TURNS:
                await asyncio.sleep(0)

    async def _step(self, run: Run[Any, Any], steps: Sequence[CompiledTransition]) -> EventError | None:
        """Fire an event; return why it leads nowhere, where it does."""
        if not steps:
            return self.machine.strange(run.cursor.state, type(run.cursor.event_object))
        run.cursor.pending_event, run.cursor.committed = steps[0].event, False
        try:
            step = self._executor.choose(run, steps)
            await step.transition.execute(run, step, self._executor.now())
        except Refused as refusal:
            if run.cursor.hook.startswith("when:"):
                return refusal
            raise  # an action said so, and not a guard
        return None

    def _skip(self, run: Run[Any, Any], refusal: EventError, skipped: int) -> None:
        """Stay in the state, and tell of it. Raises UnhandledEventError where that was done too often in a row."""
        if skipped <= self._max_unhandled:
            self._report.failed(run, cast("StrEnum", refusal.event), refusal)
            run.cursor.pending_event = None
            return
        handled = [event.value for event in self.machine.events_from(run.cursor.state)]
        verdict = getattr(refusal, "verdict", None)
        name, state = run.graph.name, run.cursor.state
        raise UnhandledEventError(
            graph=name, state=state, event=str(refusal.event), handled=handled, verdict=verdict
        ) from refusal

    async def _fail(self, run: Run[Any, Any], error: Exception) -> None:
        """End a run that raised: observers and journal know how it ended. What goes wrong with that is only told."""
        if run.cursor.started_at is None:  # it never was: the journal refused it
            return
        told, event = error, run.cursor.pending_event
        if isinstance(error, UnhandledEventError) and isinstance(error.__cause__, EventError):
            told, event = error.__cause__, cast("StrEnum", error.event)
        elif run.cursor.hook == "on_enter" and run.cursor.step is not None:
            event = run.cursor.step.event
        run.cursor.error, run.cursor.failure = error, self._report.failed(run, event, told)
        try:
            await self._finalizer.end(run)
        except Exception as late:  # noqa: BLE001 - the caller gets the first error
            self._report.failed(run, None, late)


def _asked(source: Callable[[Any, Any], Any], state: Any, context: Any) -> Any:
    """Return what the source gives. Raises RunError for one that is used up: a coroutine may raise no StopIteration."""
    try:
        return source(state, context)
    except StopIteration as error:
        raise RunError(
            "the event source raised StopIteration; it gives None when there is no event left: next(events, None)"
        ) from error
