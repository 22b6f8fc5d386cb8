"""The agents of one engine, by name, and the interface that each has.

An agent is an Agent, a Pipeline, an Rlm or a host's own class. All agents of an engine use one journal.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from typing_extensions import TypeVar

from orchestrator.engines.operator_command import ActiveCommands
from orchestrator.engines.run_queue import EngineJob, RunQueue
from orchestrator.errors import ConfigError
from orchestrator.kernel.fact import AdmissionRejected, Follower
from orchestrator.kernel.journal import RunHead
from orchestrator.runtime.llm_loop.run_options import RunArguments
from orchestrator.runtime.service.arguments import IfExists
from orchestrator.runtime.service.hosting import Hosting
from orchestrator.runtime.service.recovery import OpenRun
from orchestrator.telemetry.instrument import Load

AgentResultT_co = TypeVar("AgentResultT_co", default=Any, covariant=True)


class RunLimits(Protocol):
    """The limits of one run. Each agent has its own class of limits."""

    @property
    def max_seconds(self) -> float: ...


class SubmitArguments(RunArguments, total=False):
    """Options of a submitted run, as in `LocalEngine.submit`."""

    agent: str | None
    if_exists: IfExists
    conversation_id: str | None
    limits: RunLimits | None
    deadline: float | None


@runtime_checkable
class EngineAgent(Protocol[AgentResultT_co]):
    """An agent that executes the runs of one graph. It defines the types of its input and of its results."""

    @property
    def hosting(self) -> Hosting:
        """The engine-only interface of the agent."""
        ...

    parks: bool
    """Whether a run that has to wait for a person is left in the journal instead of waiting in this process."""

    def resume(
        self, run_id: str, /, *, limits: Any = None, by: str = ""
    ) -> Coroutine[Any, Any, AgentResultT_co]:
        """Resume a run of the journal from its last record."""
        ...


def refuse_bound(agent: object) -> None:
    """Raise ConfigError for an agent whose runs work on files of one machine: no other machine could resume them."""
    if place := getattr(agent, "bound_to", ""):
        raise ConfigError(
            f"the runs of {type(agent).__name__} are bound to {place}, so another process could not resume them: "
            "run them there, without an engine"
        )


class AgentRegistry:
    """The agents of one engine by name. Raises ConfigError if they cannot work in one engine."""

    def __init__(self, agents: EngineAgent | Mapping[str, EngineAgent]) -> None:
        self._agents = dict(agents) if isinstance(agents, Mapping) else {"agent": agents}
        for name, agent in self._agents.items():
            if not isinstance(agent, EngineAgent):
                raise ConfigError(
                    f"{name} is a {type(agent).__name__}; an engine runs an Agent, a Pipeline, a Ralph, an Rlm or an "
                    "Approval"
                )
        hosts = tuple(agent.hosting for agent in self._agents.values())
        if not hosts:
            raise ConfigError("an engine needs at least one agent")
        if any(host.journal is not hosts[0].journal for host in hosts):
            raise ConfigError("the agents of an engine must share one journal: give each the same `journal=`")
        if len({id(host) for host in hosts}) < len(hosts):
            raise ConfigError("each agent of an engine has one name, not several")
        # The agent of a run must be known.
        seen: set[tuple[str, str, str, str]] = set()
        for host in hosts:
            if (key := (host.graph, host.agent, host.version, host.fingerprint)) in seen:
                one = f"are named {host.agent!r}" if host.agent else "have no name"
                raise ConfigError(
                    f"two agents of graph {host.graph!r} {one}, so the agent of a run would be unknown: "
                    "give each its own `name=`, or its own `version=`"
                )
            seen.add(key)
        self.journal, self.clock = hosts[0].journal, hosts[0].clock
        self.hosts = tuple(one for host in hosts for one in host.generations)
        """The interfaces of all agents, and of their earlier runs."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __getitem__(self, name: str) -> EngineAgent:
        return self._agents[name]

    def chosen(self, name: str | None) -> str:
        """Return the name of the selected agent. Raises ConfigError."""
        if name is None and len(self._agents) == 1:
            return next(iter(self._agents))
        if name is None or name not in self._agents:
            given = "none was named" if name is None else f"not {name!r}"
            raise ConfigError(f"agent must be one of {', '.join(self._agents)}; {given}")
        return name

    def checked(
        self, agent: str, arguments: tuple[object, object, object, object], options: RunArguments
    ) -> Any:
        """Check the arguments and options of a run, and return its settings. Raises ConfigError."""
        return self[agent].hosting.check(*arguments, **options)

    def work(  # noqa: PLR0917 - the arguments of a new run
        self,
        agent: str,
        prompt: Any,
        run_id: str,
        conversation_id: str | None,
        limits: Any,
        deadline: float | None,
        follower: Follower | None,
        settings: Any,
    ) -> Callable[[], Coroutine[Any, Any, Any]]:
        """Return a function that executes a run of an agent; `settings` are from `checked`."""
        begin, asked = self[agent].hosting.begin, self.clock.monotonic()

        async def work() -> Any:
            left = None if deadline is None else deadline - (self.clock.monotonic() - asked)
            return await begin(prompt, run_id, conversation_id, limits, left, settings, follower)

        return work

    def attach(self, engine: object, line: RunQueue, commands: ActiveCommands) -> None:
        """Attach the engine to every agent. Raises RunError, with no agent attached, if one already has an engine."""
        attached: list[Hosting] = []
        try:
            for host in self.hosts:
                host.attach(_Host(line, commands))
                host.watched(engine, watch=True)
                attached.append(host)
        except BaseException:
            for host in attached:
                host.watched(engine, watch=False)
                host.detach()
            raise

    def detach(self, engine: object) -> None:
        """Detach the engine from every agent."""
        for host in self.hosts:
            host.watched(engine, watch=False)
            host.detach()

    def refused(self, agent: str | None, run_id: str | None, reason: str) -> None:
        """Publish to the observers of an agent that one of its runs was rejected."""
        host = self[self.chosen(agent)].hosting
        host.publish(AdmissionRejected(host.graph, run_id or "", reason, self.clock.time(), host.agent))

    def load(self, line: RunQueue, phase: str) -> Load:
        """Return the load of all agents together."""
        queued = Counter((job.hosting.graph, job.hosting.agent) for job in tuple(line.queued))
        graphs = tuple(dict.fromkeys(host.graph for host in self.hosts))
        return Load(graphs, line.slots.limit, queued, phase)

    def plain(self) -> dict[str, Any]:
        """Return a description of the agents as plain data."""
        return {
            name: {
                "owner": agent.hosting.owner,
                "agent": agent.hosting.agent,
                "version": agent.hosting.version,
                "graph": agent.hosting.graph,
                "fingerprint": agent.hosting.fingerprint,
                "model": agent.hosting.model,
                "tools": agent.hosting.tools,
                **(
                    {}
                    if (earlier := agent.hosting.earlier) is None
                    else {"earlier": {"graph": earlier.graph, "fingerprint": earlier.fingerprint}}
                ),
                **({} if agent.hosting.input is None else {"input": agent.hosting.input.schema}),
            }
            for name, agent in self._agents.items()
        }

    async def open_runs(self) -> list[OpenRun]:
        """Return the runs that have not ended, as their own agent describes them if it is here."""
        found: dict[str, OpenRun] = {}
        for host in self.hosts:
            for run in await host.open_runs():
                if run.run_id not in found or run.agent == host.agent:
                    found[run.run_id] = run
        return list(found.values())

    def resumer(self, head: RunHead) -> str | None:
        """Return the name, in this engine, of the agent that a run belongs to; None if it is not here.

        Of several versions of that agent, it is the one with the graph of the run, and the version of the run if two
        have that graph; an agent whose new runs have that graph comes before one with earlier runs of it.
        """
        hosts = {name: self.hosting(name, head) for name in self}
        found = [
            (
                host.fingerprint == head.fingerprint,
                host.version == head.agent_version,
                host is self[name].hosting,
                name,
            )
            for name, host in hosts.items()
            if (host.graph, host.agent) == (head.graph, head.agent)
        ]
        return max(found, key=lambda one: one[:3])[-1] if found else None

    def hosting(self, name: str, head: RunHead) -> Hosting:
        """Return the interface of an agent for a run: that of its earlier runs if the run has their graph."""
        own = self[name].hosting
        return next((host for host in own.generations if host.graph == head.graph), own)

    def job(
        self,
        run_id: str,
        agent: str,
        work: Callable[[], Coroutine[Any, Any, Any]],
        conversation_id: str | None,
        tags: Mapping[str, str],
    ) -> EngineJob:
        """Return a queue entry for a new run of an agent."""
        end = asyncio.get_running_loop().create_future()
        hosting, context = self[agent].hosting, contextvars.copy_context()
        return EngineJob(run_id, agent, hosting, work, context, end, conversation_id, tags)

    def stored_job(
        self, head: RunHead, agent: str, work: Callable[[], Coroutine[Any, Any, Any]]
    ) -> EngineJob:
        """Return a queue entry for a run of the journal."""
        job = self.job(head.run_id, agent, work, head.conversation_id, head.tags)
        job.hosting, job.stored = self.hosting(agent, head), True
        if head.seq == 0:  # deposited for an engine to start
            job.before = max(0.0, self.clock.time() - head.created_at)
        return job


class _Host:
    """Services that an engine offers to its runs (runtime.hosting.Host)."""

    def __init__(self, line: RunQueue, commands: ActiveCommands) -> None:
        self.leave = line.leave
        self.back = line.back
        self.may_ask = commands.may_ask
        self.before_llm_request = commands.before_llm_request
        self.before_tool_execution = commands.before_tool_execution
