"""One run of a composition in front of whoever looks: its screen, and what stops it from the keyboard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from orchestrator.cli.output import shown
from orchestrator.cli.screen import Screen
from orchestrator.cli.stop import on_signal
from orchestrator.errors import ConfigError, RunError, RunUnknown
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.record import Fact, Observer, RunStarted


class Stoppable(Protocol):
    """What carries runs."""

    def cancel(self, run_id: str, *, by: str = "", why: str = "") -> object:
        """Ask a run to end. Raises RunUnknown."""
        ...


C = TypeVar("C", bound=Stoppable)
R = TypeVar("R")


class Carried:
    """One run with its screen; a signal, or the loss of whoever reads the screen, cancels it. An observer too."""

    def __init__(self, graph: Graph, run_id: str, place: Path, *, show: bool) -> None:
        self._run_id = run_id
        self._place = place
        self._carrier: Stoppable | None = None
        self._began = self._stopped = self.lost = False
        self._screen = Screen(graph, self._lose) if show else None

    @property
    def screens(self) -> list[Observer]:
        """What shows the run, if anything does."""
        return [] if self._screen is None else [self._screen]

    async def carry(self, carrier: C, journal: SqliteJournal, go: Callable[[C], Awaitable[R]]) -> R:
        """Open the journal, let the run go, and return its end. What keeps it from beginning is a ConfigError."""
        self._carrier = carrier
        try:
            with on_signal(self._cancel):
                async with journal:
                    if self._stopped:
                        raise KeyboardInterrupt
                    with self._screen.showing() if self._screen else nullcontext():
                        return await go(carrier)
        except RunError as error:
            if self._began or isinstance(error, ConfigError):
                raise
            raise ConfigError(shown(str(error), 4_000)) from error

    def observe(self, fact: Fact) -> None:
        """Take note that the run has begun."""
        if isinstance(fact, RunStarted) and fact.run_id == self._run_id:
            if not self._began and self._screen is not None:
                self._screen.notice(f"run {shown(fact.run_id)}, journal {shown(str(self._place))}")
            self._began = True
            if self._stopped:
                self._cancel()

    def _cancel(self) -> None:
        self._stopped = True
        if self._carrier is not None:
            with suppress(RunUnknown):  # it has not begun: then it is cancelled when it does
                self._carrier.cancel(self._run_id, by="terminal", why="a signal")

    def _lose(self) -> None:
        self.lost = True
        self._cancel()
