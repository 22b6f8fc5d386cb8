"""Drives the runs of a typed machine: a driver with an event source in place of hooks and mailbox."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeAlias, cast

from orchestrator.errors import ConfigError, EventError, Refused, RunError
from orchestrator.kernel.cancel_scope import CallerScope
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.kernel.typed_machine import TypedMachine

_REASONS = {
    "guard_error": "guard_error",
    "undeclared_edge": "invalid_transition",
    "unknown_event": "invalid_transition",
    "refused": "policy_stop",
    "callback_error": "callback_error",
    "journal_error": "journal_error",
}


class EventSource:
    """The source of events of one run: `ask(state, context)`.

    `max_unhandled` events in a row may lead nowhere; the next one ends the run.
    """

    def __init__(self, name: str, ask: Callable[[Any, Any], Any], max_unhandled: int) -> None:
        given: object = ask
        if not callable(given):
            kind = type(given).__name__
            raise ConfigError(f"{name}: the event source is a {kind}; give a function of (state, context)")
        self._ask = ask
        self._max_unhandled = max_unhandled
        self._unhandled = 0
        """Events in a row that led nowhere, since transition number `_seq`."""
        self._seq = 0

    def ask(self, state: Any, context: Any) -> Any:
        """Return the next event or None; an async source returns an awaitable. Raises the errors of the source."""
        try:
            return self._ask(state, context)
        except StopIteration as error:  # which a coroutine may not raise
            raise RunError(
                "the event source raised StopIteration; it gives None when there is no event left: next(events, None)"
            ) from error

    def may_continue(self, run: TypedRun) -> bool:
        """Count an event that led nowhere; return whether the run stays in its state and asks for another one."""
        self._unhandled = self._unhandled + 1 if run.cursor.seq == self._seq else 1
        self._seq = run.cursor.seq
        return self._unhandled <= self._max_unhandled


TypedRun: TypeAlias = Run[Any, EventSource]


class TypedDriver(Driver):
    """Drives the runs of one typed machine, each in the task of its caller."""

    machine: TypedMachine

    def __init__(self, machine: TypedMachine, **options: Any) -> None:
        super().__init__(machine, ending=ending, **options)

    async def complete(self, run: TypedRun, *, in_loop: bool) -> None:
        """Drive a new run until its source returns None or it is in a terminal state; then end it.

        Nothing parks or interrupts the run, so it needs an event loop only if a callable waits. Raises the errors of
        callables; the run has then ended as failed.
        """
        self._claim(run, None)
        try:
            await self._create(run)
            await self._advance(run, CallerScope(in_loop=in_loop), park=False)
        except Exception:
            await self._end_failed(run)
            raise
        except BaseException:  # cancelled, or the process stops: nothing resumes the run here
            await self._finalizer.abandon(run)
            await self._finalizer.release(run)
            raise
        finally:
            run.control.driving = False

    async def _next(self, run: TypedRun, event: StrEnum | None, *, park: bool) -> bool:  # noqa: ARG002
        """Fire the next event of the source; end the run if there is none, or in a terminal state."""
        cursor, machine = run.cursor, self.machine
        if cursor.entry_pending:
            return await self._executor.enter(run)
        given = None
        if cursor.state not in run.graph.terminal:
            cursor.hook = "source"
            given = run.deps.ask(machine.objects[cursor.state], run.ctx)
            if hasattr(given, "__await__"):
                given = await given
        if given is None:
            await self._finalizer.end(run)
            return False
        cursor.event_object = given
        cursor.pending_event = following = cast("StrEnum", machine.event_name(cursor.state, type(given)))
        await self._executor.trigger(run, following)
        return True

    def _failed(self, run: TypedRun, event: StrEnum | None, error: Exception) -> None:
        """Raise the error that ends the run, or leave the run in its state if an event led nowhere."""
        cursor = run.cursor
        event, cursor.pending_event = cursor.pending_event, None
        if cursor.hook == "on_enter" and cursor.step is not None:
            event = cursor.step.event
        failure = self._report.failed(run, event, error)
        try:
            self._raise_unless_unhandled(run, str(event), error)
        except Exception as final:
            cursor.error, cursor.failure = final, failure
            raise

    def _raise_unless_unhandled(self, run: TypedRun, event: str, error: Exception) -> None:
        """Raise the error, or UnhandledEventError for an event that led nowhere; return if another event may follow.

        A refusal by a guard means that the event led nowhere; a refusal by an action is an error.
        """
        hook = run.cursor.hook
        if not isinstance(error, EventError) or not (hook == "" or hook.startswith("when:")):
            raise error
        if not run.deps.may_continue(run):
            verdict = error.verdict if isinstance(error, Refused) else None
            raise self.machine.unhandled(run.cursor.state, event, verdict) from error

    async def _end_failed(self, run: TypedRun) -> None:
        """End a run that raised. Later errors are only published: the caller gets the first error."""
        if run.cursor.error is None:  # the journal did not take it, or another process has it
            await self._finalizer.abandon(run)
            return
        try:
            await self._finalizer.end(run)
        except Exception as late:  # noqa: BLE001 - published
            self._report.failed(run, None, late)


def ending(run: TypedRun) -> Ending:
    """Return outcome and reason of a run: it stalled if its source returned None before a terminal state."""
    if run.cursor.failure is not None:
        return Ending(Outcome.FAILED, _REASONS.get(run.cursor.failure.reason, "internal"))
    if run.state in run.graph.terminal or not run.graph.terminal:
        return Ending(Outcome.COMPLETED, "none")
    return Ending(Outcome.NO_PROGRESS, "stalled")
