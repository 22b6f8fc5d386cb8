"""Adapters for the observers of the host-driven state machine: isolated, and counted under their own names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.kernel.record import Fact, Transition
from orchestrator.runtime.pipeline.orchestration.model import StateMachineObserver, StateTransition


class Recorder:
    """Passes each transition to the history before other observers are called."""

    def __init__(self, record: Callable[[Transition], None]) -> None:
        self._record = record

    def hears(self, kind: type[Fact]) -> Callable[[Any], None] | None:
        """Return the function for facts of a kind, or None."""
        return self._record if kind is Transition else None


class ObserverSlot:
    """One observer. `last` returns the newest transition, `totals` the argument of `on_metrics_update`."""

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
        """Return the function for facts of a kind, or None."""
        return self if kind is Transition else None

    def __call__(self, _: Transition) -> None:
        """Report the last transition and then the totals, even if the first call raised."""
        try:
            self.__self__.on_state_transition(self._last())
        finally:
            self.__self__.on_metrics_update(self._totals())
