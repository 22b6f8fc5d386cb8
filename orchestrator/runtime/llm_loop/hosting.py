"""Engine-only interface of an agent that calls a model and tools, and of the agents among its tools."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from orchestrator.errors import RunUnknown
from orchestrator.llm.structured_output import OutputSpec
from orchestrator.runtime.llm_loop.agent_tool import source_of
from orchestrator.runtime.llm_loop.run_options import run_deps
from orchestrator.runtime.service.arguments import OPTIONS
from orchestrator.runtime.service.hosting import BeginRun, CheckRun, Host, Hosting
from orchestrator.runtime.service.run_service import RunService
from orchestrator_callbacks.llm_loop.deps import LoopDeps, Point

if TYPE_CHECKING:
    from orchestrator.runtime.llm_loop.agent import Agent


PROMPT: Final[Mapping[str, Any]] = {"type": "string", "title": "Message", "minLength": 1}
"""Schema of a prompt that a person types."""


class HostPoints(Mapping[str, tuple[Point, ...]]):
    """Hooks of an agent at its points: those of its host, then its own middleware.

    Each run may have a copy of its agent's handles, so nothing here is copied: `host` is one dict for all runs of an
    agent and all their child runs, and its current content applies to each of them.
    """

    def __init__(self, host: Mapping[str, Point], own: Mapping[str, tuple[Point, ...]]) -> None:
        self._host = host
        self.own = own

    def __getitem__(self, name: str) -> tuple[Point, ...]:
        if name not in self._host:
            return self.own[name]
        return (self._host[name], *self.own.get(name, ()))

    def __contains__(self, name: object) -> bool:
        # Called in each turn: the default of Mapping would use an exception.
        return name in self._host or name in self.own

    def __iter__(self) -> Iterator[str]:
        return iter({**self._host, **self.own})

    def __len__(self) -> int:
        return len({**self._host, **self.own})


class LoopHosting(Hosting):
    """Engine-only interface of an agent that calls a model and tools."""

    def __init__(
        self,
        service: RunService[Any],
        deps: LoopDeps,
        launch: Mapping[str, Any] | None,
        *,
        check: CheckRun,
        begin: BeginRun,
    ) -> None:
        super().__init__(service, launch, check=check, begin=begin)
        self._deps = deps
        self._own_points: dict[str, Point] = {}
        self._points = deps.points = HostPoints(self._own_points, deps.points)
        self.model = deps.model
        self.tools = tuple(spec.name for spec in deps.tools.offers)

    def obey(self, host: Host | None) -> None:
        """Set the host that is asked before each model and tool call, or None."""
        super().obey(host)
        self._own_points.clear()
        if host is not None:
            self._own_points["before_llm_request"] = host.before_llm_request
            self._own_points["before_tool_execution"] = host.before_tool_execution

    @property
    def own_points(self) -> Mapping[str, tuple[Point, ...]]:
        """The middleware of the agent, without that of its host."""
        return self._points.own

    def points_of_child(self, child: LoopHosting) -> HostPoints:
        """Return the points of a child agent's runs: the host of this agent, and the child's own middleware."""
        return HostPoints(self._own_points, child._points.own)

    async def output_of(self, run_id: str, output_type: object = None) -> OutputSpec | None:
        """Return the form of the output of a run: by its option, else as it is stored, else that of the agent."""
        if output_type is not None:
            return None if output_type is str else OutputSpec.of(output_type)
        try:
            stored, _ = await self._service.recovery.read(run_id)
        except RunUnknown:
            return self._deps.output
        return run_deps(self._deps, stored.created.get(OPTIONS) or {}).output

    def tree(self) -> list[LoopHosting]:
        """Return this one, and those of the agents among its tools and handoffs, and theirs.

        Functions are called for their agents.
        """
        found: list[LoopHosting] = []
        level: list[LoopHosting] = [self]
        seen: dict[int, Agent | Callable[[], Agent]] = {}

        def agents_of(one: LoopHosting, depth: int, *, handoffs: bool) -> Iterator[LoopHosting]:
            for spec in one._deps.tools.offers:
                source, most = source_of(spec), getattr(spec.call, "max_depth", math.inf)
                is_handoff = most == math.inf
                if source is None or id(source) in seen or is_handoff != handoffs or depth >= most:
                    continue
                seen[id(source)] = source
                if (hosting := _hosting_of(source)) is not None:
                    yield hosting

        for depth in itertools.count():
            for one in level:  # an agent that takes over is as deep as the one before: the level grows by it
                level += agents_of(one, depth, handoffs=True)
            found += level
            level = [new for one in level for new in agents_of(one, depth, handoffs=False)]
            if not level:
                break
        return found


def _hosting_of(source: Agent | Callable[[], Agent]) -> LoopHosting | None:
    """Return the interface of a tool's agent; None if its function fails, because it has no runs then."""
    try:
        return (source() if callable(source) else source).hosting
    except Exception:  # noqa: BLE001 - an operator command must not fail because of a host's function
        return None
