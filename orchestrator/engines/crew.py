"""The agents of one engine: by name, over one journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from orchestrator.engines.line import Line
from orchestrator.engines.order import Standing
from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import RunHead
from orchestrator.kernel.record import RunRejected
from orchestrator.runtime.hosting import Hosting
from orchestrator.runtime.llm_loop import Orchestrator
from orchestrator.runtime.recovery import OpenRun
from orchestrator.telemetry.engine import Load


class Crew:
    """One agent, or several. Raises ConfigError where they cannot work in one engine."""

    def __init__(self, agents: Orchestrator | Mapping[str, Orchestrator]) -> None:
        self._agents = {"agent": agents} if isinstance(agents, Orchestrator) else dict(agents)
        hosts = self.hosts = tuple(agent.hosting for agent in self._agents.values())
        if not hosts:
            raise ConfigError("an engine needs at least one agent")
        if any(host.journal is not hosts[0].journal for host in hosts):
            raise ConfigError("the agents of an engine must share one journal: give each the same `journal=`")
        if len({id(host) for host in hosts}) < len(hosts):
            raise ConfigError("each agent of an engine has one name, not several")
        self.journal, self.clock = hosts[0].journal, hosts[0].clock

    def __getitem__(self, name: str) -> Orchestrator:
        return self._agents[name]

    def chosen(self, name: str | None) -> str:
        """Return the name of the agent that is meant. Raises ConfigError."""
        if name is None and len(self._agents) == 1:
            return next(iter(self._agents))
        if name is None or name not in self._agents:
            given = "none was named" if name is None else f"not {name!r}"
            raise ConfigError(f"agent must be one of {', '.join(self._agents)}; {given}")
        return name

    def attach(self, engine: object, line: Line, standing: Standing) -> None:
        """Let the engine decide about the agents' runs. Raises RunError, with none attached, if one has an engine."""
        attached: list[Hosting] = []
        try:
            for host in self.hosts:
                host.attach(_Host(line, standing))
                host.watched(engine, watch=True)
                attached.append(host)
        except BaseException:
            for host in attached:
                host.watched(engine, watch=False)
                host.detach()
            raise

    def detach(self, engine: object) -> None:
        """Leave the agents to themselves."""
        for host in self.hosts:
            host.watched(engine, watch=False)
            host.detach()

    def refused(self, agent: str | None, run_id: str | None, reason: str) -> None:
        """Tell the observers of an agent that a run of it was not taken in."""
        host = self[self.chosen(agent)].hosting
        host.tell(RunRejected(host.graph, run_id or "", reason, self.clock.time()))

    def load(self, line: Line, phase: str) -> Load:
        """Return how busy the agents are together."""
        queued = Counter(job.hosting.graph for job in tuple(line.queued))
        graphs = tuple(dict.fromkeys(host.graph for host in self.hosts))
        return Load(graphs, line.slots.limit, queued, phase)

    def plain(self) -> dict[str, Any]:
        """Return who the agents are, as plain data."""
        return {
            name: {
                "owner": agent.hosting.owner,
                "graph": agent.hosting.graph,
                "model": agent.hosting.model,
                "tools": agent.hosting.tools,
            }
            for name, agent in self._agents.items()
        }

    async def open_runs(self) -> list[OpenRun]:
        """Return the runs that have not ended, each graph asked once."""
        one_each = {agent.hosting.graph: agent for agent in self._agents.values()}
        return [run for agent in one_each.values() for run in await agent.open_runs()]

    async def unattended(self, found: Iterable[OpenRun]) -> AsyncIterator[tuple[str, RunHead]]:
        """Yield those of the runs that can go on without a person, each with the agent for it.

        Where several agents have one graph nobody can tell whose run it was: those are for a person.
        """
        graphs = [host.graph for host in self.hosts]
        by_graph = {agent.hosting.graph: name for name, agent in self._agents.items()}
        for run in found:
            if run.status not in {"open", "parked"}:
                continue  # damaged
            head = await self.journal.head(run.run_id)
            name = by_graph[head.graph]
            if graphs.count(head.graph) == 1 and await self[name].hosting.unattended(run.run_id):
                yield name, head


class _Host:
    """What the runs of an engine meet (runtime.hosting.Host)."""

    def __init__(self, line: Line, standing: Standing) -> None:
        self.leave = line.leave
        self.back = line.back
        self.before_llm_request = standing.before_llm_request
        self.before_tool_execution = standing.before_tool_execution
