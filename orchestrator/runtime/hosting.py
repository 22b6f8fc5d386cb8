"""What an engine may do with an agent beyond what everybody may: seats, orders about tools and models, requests."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from orchestrator.errors import RunUnknown
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.kernel.parking import Seats
from orchestrator.kernel.record import Fact
from orchestrator.kernel.run import Kind, Signal
from orchestrator.messages import Request, ToolCall
from orchestrator.ports import Clock
from orchestrator.runtime.conversation import LiveRuns
from orchestrator.runtime.recovery import OpenRun, Recovery
from orchestrator.toolresult import ToolResult
from orchestrator_callbacks.llm_loop.deps import LoopDeps, LoopRun, Point


class Host(Seats, Protocol):
    """Who runs an agent: gives seats, and is asked before each model call and each tool call."""

    async def before_llm_request(self, run: LoopRun, request: Request, /) -> None:
        """Return when the model may be asked."""
        ...

    async def before_tool_execution(self, run: LoopRun, call: ToolCall, /) -> ToolResult | None:
        """Return the result of a call that may not run, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Live:
    """Where a run of this process stands."""

    state: str
    begun: bool
    """The journal knows it."""
    held: bool
    """Somebody paused it."""


class Hosting:
    """The inside of one agent, for the engine that runs it."""

    def __init__(  # noqa: PLR0917 - the parts of one agent, put together in one place
        self,
        journal: Journal,
        driver: Driver,
        deps: LoopDeps,
        live: LiveRuns,
        recovery: Recovery,
        launch: Mapping[str, Any] | None,
    ) -> None:
        self.journal = journal
        self._driver = driver
        self._deps = deps
        self._live = live
        self._own = deps.points
        self._recovery = recovery
        self._launched = bool(launch)

    @property
    def graph(self) -> str:
        """Name of the graph of its runs."""
        return self._driver.machine.graph.name

    @property
    def fingerprint(self) -> str:
        """Version of that graph."""
        return self._driver.machine.graph.fingerprint

    @property
    def owner(self) -> str:
        """Who holds its runs, as the journal knows it."""
        return self._driver.owner

    @property
    def clock(self) -> Clock:
        """Its clock."""
        return self._deps.clock

    @property
    def model(self) -> str:
        """The configured name of its model."""
        return self._deps.model

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of its tools."""
        return tuple(spec.name for spec in self._deps.tools.offers)

    def attach(self, host: Host) -> None:
        """Let a host decide from now on. Raises RunError when another one does already."""
        self._driver.seat(host)
        self._own = self._deps.points
        asked: dict[str, Point] = {
            "before_llm_request": host.before_llm_request,
            "before_tool_execution": host.before_tool_execution,
        }
        first = {name: (hook, *self._own.get(name, ())) for name, hook in asked.items()}
        self._deps.points = {**self._own, **first}

    def detach(self) -> None:
        """Let nobody decide any more."""
        self._driver.seat(None)
        self._deps.points = self._own

    def tell(self, fact: Fact) -> None:
        """Hand a fact to the observers of the agent."""
        self._driver.tell(fact)

    def watched(self, engine: object, *, watch: bool) -> None:
        """Let those observers that show the load of engines begin, or cease, to show this one."""
        for observer in self._driver.observers:
            show = getattr(observer, "watch" if watch else "unwatch", None)
            if show is not None:
                show(engine)

    def live(self, run_id: str) -> Live | None:
        """Return where a run of this process stands, or None where it is not under way here."""
        run = self._live.find(run_id)
        if run is None:
            return None
        return Live(run.cursor, run.started_at is not None, run.held is not None)

    def ask(self, run_id: str, kind: Kind, *, by: str, why: str) -> bool:
        """Ask a run of this process to cancel, pause or resume, at once; False where it is not under way here.

        `shutdown` as `by` says that the process goes down.
        """
        return self._post(run_id, Signal(kind=kind, id=secrets.token_hex(8), by=by, why=why))

    def nudge(self, run_id: str) -> None:
        """Let a run that waits look again whether it may go on: an answer that answers nothing."""
        self._post(run_id, Signal(kind="decision"))

    async def open_runs(self) -> list[OpenRun]:
        """Return the runs of this graph that have not ended, as `described`. Raises StoreDown."""
        return [self._ours(run) for run in await self._recovery.open_runs()]

    async def described(self, head: RunHead) -> OpenRun:
        """Say where a stored run of this graph stands, and whether it goes on here by itself.

        Raises RunUnknown, StoreDown.
        """
        return self._ours(await self._recovery.described(head))

    def _ours(self, run: OpenRun) -> OpenRun:
        """Leave a run alone that was begun with a `launch`, where this agent has none: it is another agent's."""
        return run if self._launched or not run.launched else replace(run, unattended=False, expires_at=0.0)

    async def knows(self, run_id: str) -> bool:
        """Tell whether the journal has a run."""
        try:
            await self.journal.head(run_id)
        except RunUnknown:
            return False
        return True

    def _post(self, run_id: str, signal: Signal) -> bool:
        run: Any = self._live.find(run_id)
        if run is None:
            return False
        run.mailbox.post(signal)
        return True
