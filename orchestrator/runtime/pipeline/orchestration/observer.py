"""Observers of the specification as the kernel's reporter calls them: isolated, and counted in their own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.kernel.record import Fact, Transition
from orchestrator.runtime.pipeline.orchestration.model import StateMachineObserver, StateTransition


class Recorder:
    """Hands each transition to whoever writes the history, before anybody else hears of it."""

    def __init__(self, record: Callable[[Transition], None]) -> None:
        self._record = record

    def hears(self, kind: type[Fact]) -> Callable[[Any], None] | None:
        """Return what is called for facts of a kind."""
        return self._record if kind is Transition else None


class ObserverSlot:
    """One observer. `last` returns the newest transition, `totals` what `on_metrics_update` is told."""

    component = "observer"

    def __init__(
        self,
        observer: StateMachineObserver,
        last: Callable[[], StateTransition],
        totals: Callable[[], dict[str, Any]],
    ) -> None:
        self.__self__ = observer  # the reporter names it when it raises
        self._last = last
        self._totals = totals

    def hears(self, kind: type[Fact]) -> Callable[[Any], None] | None:
        """Return what is called for facts of a kind."""
        return self if kind is Transition else None

    def __call__(self, _: Transition) -> None:
        """Tell of the transition that was just committed, then of the totals, whatever the first call raised."""
        try:
            self.__self__.on_state_transition(self._last())
        finally:
            self.__self__.on_metrics_update(self._totals())
