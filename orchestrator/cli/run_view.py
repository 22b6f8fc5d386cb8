"""The display of one run that asks no questions about calls: journal, screen and signals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any, Generic, TypeVar

from orchestrator.cli.loop import on_signal
from orchestrator.cli.output import shown
from orchestrator.cli.screen import Screen
from orchestrator.errors import ConfigError, RunError, RunUnknown
from orchestrator.journal.address import Address
from orchestrator.journal.opening import StoredJournal
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.record import Fact, Observer, RunStarted
from orchestrator.runtime.service.run_service import RunService

C = TypeVar("C", bound=RunService[Any])
R = TypeVar("R")


class RunView(Generic[C, R]):
    """A run with its screen; a signal, or a closed output pipe, cancels it.

    `run_id` is None if it is unknown before the run starts. `screen` creates the screen; None shows nothing.
    """

    def __init__(
        self,
        graph: Graph,
        run_id: str | None,
        address: Address,
        screen: Callable[[Callable[[], None]], Screen] | None,
    ) -> None:
        self.run_id = run_id
        self.lost = False
        self.screen = None if screen is None else screen(self._lose)
        self._graph = graph.name
        self._address = address
        self._service: C | None = None
        self._began = self._stopped = False

    @property
    def observers(self) -> list[Observer]:
        """The observers of the run."""
        return [self] if self.screen is None else [self, self.screen]

    async def run(self, service: C, journal: StoredJournal, go: Callable[[C], Awaitable[R]]) -> R:
        """Open the journal, drive the run, and return its result. Raises ConfigError if it cannot start."""
        self._service = service
        try:
            with on_signal(self._cancel):
                async with journal:
                    if self._stopped:
                        raise KeyboardInterrupt
                    with self.screen.showing() if self.screen else nullcontext():
                        return await go(service)
        except RunError as error:
            if self._began or isinstance(error, ConfigError):
                raise
            raise ConfigError(shown(str(error), 4_000)) from error

    def observe(self, fact: Fact) -> None:
        """Record that the run has started."""
        if not isinstance(fact, RunStarted) or fact.graph != self._graph:
            return
        if self.run_id is None:
            self.run_id = fact.run_id
        if fact.run_id != self.run_id:
            return
        is_first, self._began = not self._began, True
        if self._stopped:
            self._cancel()
        if is_first and self.screen is not None:  # last, because the terminal may be gone
            self.screen.notice(f"run {shown(fact.run_id)}, journal {shown(str(self._address))}")

    def _cancel(self) -> None:
        self._stopped = True
        if self._service is not None and self.run_id is not None:
            with suppress(RunUnknown):  # a run that has not started is cancelled at its start
                self._service.cancel(self.run_id, by="terminal", why="a signal")

    def _lose(self) -> None:
        self.lost = True
        self._cancel()
