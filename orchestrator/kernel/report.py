"""Creates the facts of a run and sends them to the observers, in order. An error of an observer changes neither."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from typing import Any

from orchestrator.errors import (
    CancelRequested,
    DeadlineExceeded,
    InvalidEvent,
    JournalError,
    Refused,
    StateTimeout,
    UnknownEvent,
)
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.fact import (
    FACTS,
    EventFailed,
    Fact,
    GuardEvaluated,
    Observer,
    RecordsWritten,
    RunCompleted,
    RunParked,
    RunStarted,
    around,
)
from orchestrator.kernel.machine import CompiledTransition, MachineCondition
from orchestrator.kernel.outcome import Ending
from orchestrator.kernel.run import Run


class Reporter:
    """The observers of a driver."""

    def __init__(self, observers: Iterable[Observer], clock: Clock) -> None:
        self.errors: Counter[str] = Counter()
        known = tuple(observers)
        self._routes = _Routes(known)
        self._counting = [one.observer_failed for one in known if hasattr(one, "observer_failed")]
        self.observed = frozenset(kind for kind in FACTS if self._routes[kind])
        """Kinds of facts that an observer receives."""
        self.around = around(known, self._observer_failed)
        """Makes the context manager of a call; None if no observer wants one."""
        self._clock = clock

    def publish(self, fact: Fact) -> None:
        """Send one fact to the observers. An observer that raises is counted; the others still receive the fact."""
        for receive in self._routes[type(fact)]:
            try:
                receive(fact)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the observer's own
                self._observer_failed(self._routes.observer(type(fact), receive), error)

    def follow(self, run: Run[Any, Any], written: RecordsWritten) -> None:
        """Send durable records to the follower of a run."""
        follower = run.control.follower
        if follower is not None:
            try:
                follower(written)
            except Exception as error:  # noqa: BLE001 - as in `publish`
                self._observer_failed(getattr(follower, "__self__", follower), error)

    def send(self, run: Run[Any, Any]) -> None:
        """Publish the facts that were held back."""
        writes, routes = run.writes, self._routes
        if writes.unpublished:
            facts, writes.unpublished = writes.unpublished, []
            for fact in facts:
                for receive in routes[type(fact)]:
                    try:
                        receive(fact)
                    except Exception as error:  # noqa: BLE001 - as in `publish`
                        self._observer_failed(routes.observer(type(fact), receive), error)

    def started(self, run: Run[Any, Any], at: float) -> None:
        """Publish that a driver took the run."""
        run.cursor.parked = False
        origin, run.cursor.is_new = "new" if run.cursor.is_new else "resumed", False
        now = self._clock.monotonic()
        self.publish(
            RunStarted(
                run.graph.name,
                run.run_id,
                at,
                origin,
                run.parent_run_id,
                run.cursor.state,
                now - run.cursor.entered_at,
                run.elapsed(now),
                run.agent,
                str((run.data or {}).get("agent_version", "")),
                getattr(run.ctx, "conversation_id", None),
            )
        )

    def parked(self, run: Run[Any, Any], reason: str) -> None:
        """Publish that no driver has the run any more although it has not ended."""
        run.cursor.parked, run.cursor.parked_for = True, reason
        self.publish(
            RunParked(run.graph.name, run.run_id, run.cursor.state, reason, self._clock.time(), run.agent)
        )

    def completed(self, run: Run[Any, Any], ending: Ending, summary: object, at: float) -> None:
        """Publish that the run ended."""
        now = self._clock.monotonic()
        self.publish(
            RunCompleted(
                run.graph.name,
                run.run_id,
                run.cursor.state,
                ending.outcome.value,
                ending.reason,
                at,
                now - (now if run.cursor.started_at is None else run.cursor.started_at),
                run.cursor.seq,
                getattr(run.ctx, "iteration", 0),
                summary,
                run.cursor.error,
                getattr(run.ctx, "verdict", None),
                run.agent,
            )
        )

    def guard(
        self,
        run: Run[Any, Any],
        step: CompiledTransition,
        condition: MachineCondition,
        result: str,
        verdict: object = None,
    ) -> None:
        """Publish the result of a guard: `allow`, `deny` or `error`.

        The fact has the name of the guard. BudgetChecked has the limits that it read, and counts them.
        """
        if GuardEvaluated in run.writes.observed_kinds:
            run.emit(
                GuardEvaluated(
                    run.graph.name,
                    run.run_id,
                    run.cursor.state,
                    step.names[0],
                    condition.name or "guard",
                    result,
                    getattr(verdict, "observed", 0),
                    getattr(verdict, "limit", 0),
                )
            )

    def failed(self, run: Run[Any, Any], event: StrEnum | None, error: Exception) -> EventFailed:
        """Publish and return the fact that an event failed; without an event, the failure event."""
        fact = EventFailed(
            run.graph.name,
            run.run_id,
            run.cursor.state,
            str(event or run.graph.failure_event(run.state) or ""),
            _reason(error, run.cursor.hook),
            self._clock.time(),
            getattr(run.ctx, "iteration", 0),
            run.cursor.hook,
            error,
            event is not None and run.cursor.committed,
        )
        run.emit(fact)
        return fact

    def _observer_failed(self, observer: object, error: Exception) -> None:
        name = type(observer).__name__
        self.errors[name] += 1
        for hear in self._counting:
            with suppress(Exception):  # it fails on the report of its failure; the count above has it
                hear(observer)
        if self.errors[name] == 1:  # name it once; a broken observer must not flood
            logging.getLogger("orchestrator").error("observer %s raised %s", name, type(error).__name__)


class _Routes(dict[type[Fact], tuple[Callable[[Any], None], ...]]):
    """Kind of fact -> its receivers. Nine of ten facts are not for every observer; calls of all cost more."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        super().__init__()
        self._observers = tuple(observers)

    def __missing__(self, kind: type[Fact]) -> tuple[Callable[[Any], None], ...]:
        asked = (_receiver(observer, kind) for observer in self._observers)
        self[kind] = found = tuple(receive for receive in asked if receive is not None)
        return found

    def observer(self, kind: type[Fact], receive: Callable[[Any], None]) -> object:
        """Return the observer to name for an error of a receiver. It may name another object by `__self__`."""
        found = next((one for one in self._observers if _receiver(one, kind) == receive), receive)
        return getattr(found, "__self__", found)


def _receiver(observer: Observer, kind: type[Fact]) -> Callable[[Any], None] | None:
    hears: Callable[[type[Fact]], Callable[[Any], None] | None] | None = getattr(observer, "hears", None)
    return observer.observe if hears is None else hears(kind)


_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (Refused, "refused"),
    (InvalidEvent, "undeclared_edge"),
    (UnknownEvent, "unknown_event"),
    (JournalError, "journal_error"),
    (StateTimeout, "timeout"),
    (DeadlineExceeded, "timeout"),
    (CancelRequested, "cancelled"),
)


def _reason(error: Exception, hook: str) -> str:
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    if hook == "journal":
        return "journal_error"
    return "guard_error" if hook.startswith("when:") else "callback_error"
