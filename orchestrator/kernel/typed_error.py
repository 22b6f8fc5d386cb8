"""Errors of typed machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.errors import EventError, RunError


class UnhandledEventError(EventError):
    """A typed machine got an event that has no allowed edge in its state.

    `handled` lists the events with an edge there; `verdict` is the refusal of the last guard if all guards refused.
    """

    def __init__(
        self, *, graph: str, state: str, event: str, handled: Sequence[str] = (), verdict: Any = None
    ) -> None:
        self.handled = tuple(handled)
        self.verdict = verdict
        can = ", ".join(repr(str(name)) for name in handled) or "nothing"
        why = f"not handled in state {state!r}; handled there: {can}"
        if event in self.handled:
            why = f"refused by every guard in state {state!r}"
            explain = getattr(verdict, "explain", None)
            why += "" if explain is None else f": {explain()}"
        super().__init__(f"event {event!r} is {why}", graph=graph, state=state, event=event)


class ContextInUse(RunError):
    """A context belongs to one active run at a time: two runs would change it concurrently."""

    def __init__(self, graph: str, kind: str) -> None:
        super().__init__(
            f"{graph}: this {kind} is the context of an active run; give each run its own context"
        )
        self.graph = graph
