"""Engine-only interface of an agent: concurrency slots, operator commands about models and tools, requests to runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from orchestrator.errors import RunExists, RunUnknown
from orchestrator.kernel.fact import Fact, Follower
from orchestrator.kernel.journal import RunHead
from orchestrator.kernel.mailbox import Kind, Signal
from orchestrator.kernel.run import Run
from orchestrator.kernel.suspension import ConcurrencyLimiter
from orchestrator.llm.message import Request, ToolCall
from orchestrator.llm.structured_output import OutputSpec
from orchestrator.runtime.service.arguments import IfExists
from orchestrator.runtime.service.recovery import OpenRun
from orchestrator.runtime.service.run_service import RunService
from orchestrator.tools.result import ToolResult


class CheckRun(Protocol):
    """Check the arguments and options of one run."""

    def __call__(
        self, run_id: object, conversation_id: object, limits: object, deadline: object, /, **options: Any
    ) -> Any: ...


class BeginRun(Protocol):
    """Start a run with checked arguments, and drive it until it ends; `settings` are from CheckRun."""

    def __call__(  # noqa: PLR0917 - the arguments of a new run
        self,
        prompt: Any,
        run_id: str,
        conversation_id: str | None,
        limits: Any,
        deadline: float | None,
        settings: Any,
        follower: Follower | None = None,
        /,
    ) -> Coroutine[Any, Any, Any]: ...


class Host(ConcurrencyLimiter, Protocol):
    """An engine that runs an agent: it gives slots, and is asked before each model call and each tool call."""

    async def may_ask(self, run: Run[Any, Any], model: str, /) -> None:
        """Return when requests to a model are allowed, by its configured name."""
        ...

    async def before_llm_request(self, run: Run[Any, Any], request: Request, /) -> None:
        """Return when the model may be called."""
        ...

    async def before_tool_execution(self, run: Run[Any, Any], call: ToolCall, /) -> ToolResult | None:
        """Return the result of a call that may not run, or None."""
        ...


class DepositRun(Protocol):
    """Store a new run in the journal, and return its id."""

    def __call__(
        self,
        value: Any,
        /,
        *,
        run_id: str,
        tenant: str = "",
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Coroutine[Any, Any, str]: ...


@dataclass(frozen=True, slots=True)
class RunInput:
    """The input of the runs of an agent, which other processes can give."""

    schema: Mapping[str, Any]
    """JSON schema of the input."""
    deposit: DepositRun
    """Stores a run with an input of this schema in the journal. Raises RunExists, ConfigError, StoreDown."""


@dataclass(frozen=True, slots=True)
class LiveRunInfo:
    """The state of a live run of this process."""

    state: str
    begun: bool
    """Whether the journal has the run."""
    paused: bool
    """Whether the run was paused."""


class Hosting:
    """Engine-only interface of one agent; an agent with models and tools has a LoopHosting."""

    model = ""
    """The configured name of its model, if its runs have one."""
    tools: tuple[str, ...] = ()
    """Names of its tools."""
    earlier: Hosting | None = None
    """The interface for the runs of the same agent from before its runs had this graph."""
    input: RunInput | None = None
    """The input of its runs; None if only the process of the agent can start them."""

    def __init__(
        self,
        service: RunService[Any],
        launch: Mapping[str, Any] | None,
        stages: Iterable[Hosting] = (),
        *,
        check: CheckRun,
        begin: BeginRun,
        bound: bool = False,
    ) -> None:
        self.journal, self.clock = service.journal, service.clock
        self.check = check
        """Checks the arguments and options of one run, and returns its settings. Raises ConfigError."""
        self.begin = begin
        """Starts a run with checked arguments and its settings, and drives it until it ends. Raises RunExists."""
        self._bound = bound
        """Whether its runs work on files of one host."""
        self._service = service
        self._driver, self._live, self._recovery = service.driver, service.live, service.recovery
        self._launched = bool(launch)
        self._stages = tuple(stages)
        """Interfaces of the agents that execute stages or branches of its runs."""
        self._host: Host | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """The configured names of all models of its runs."""
        return (self.model,) if self.model else ()

    @property
    def graph(self) -> str:
        """Name of the graph of its runs."""
        return self._driver.machine.declared.name

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states of that graph."""
        return tuple(str(state) for state in self._driver.machine.valid_graph.states)

    @property
    def agent(self) -> str:
        """Name of the agent, which its runs belong to; empty if it has none."""
        return self._recovery.identity.name

    @property
    def version(self) -> str:
        """Version of the agent; empty if it has none."""
        return self._recovery.identity.version

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its present table; while that is invalid, of the last valid one."""
        return self._driver.machine.valid_graph.fingerprint

    @property
    def owner(self) -> str:
        """Owner of its runs in the journal."""
        return self._driver.owner

    def attach(self, host: Host) -> None:
        """Attach a host. Raises RunError if another one is attached."""
        self._driver.limit_concurrency(host)
        self.obey(host)

    def detach(self) -> None:
        """Detach the host."""
        self._driver.limit_concurrency(None)
        self.obey(None)

    @property
    def generations(self) -> Sequence[Hosting]:
        """This interface, and that of the agent's earlier runs."""
        return (self,) if self.earlier is None else (self, self.earlier)

    @property
    def host_points(self) -> Mapping[str, Sequence[Callable[..., Any]]]:
        """The hooks of the host for calls of tools in branches."""
        return {} if self._host is None else {"before_tool_execution": (self._host.before_tool_execution,)}

    def join(self, child: Hosting) -> None:
        """Add the interface of an agent or workflow whose runs are child runs of these: it obeys the same host."""
        self._stages = (*self._stages, child)
        child.obey(self._host)

    def obey(self, host: Host | None) -> None:
        """Set the host that is asked before each model and tool call, or None."""
        self._host = host
        for stage in self._stages:
            stage.obey(host)

    def tree(self) -> Sequence[Hosting]:
        """Return the interfaces of all agents with models and tools in its runs and child runs, each once."""
        return [found for stage in self._stages for found in stage.tree()]

    def publish(self, fact: Fact) -> None:
        """Publish a fact to the observers of the agent."""
        self._driver.publish(fact)

    def watched(self, engine: object, *, watch: bool) -> None:
        """Start or stop showing an engine in the observers that show the load of engines."""
        for observer in self._driver.observers:
            show = getattr(observer, "watch" if watch else "unwatch", None)
            if show is not None:
                show(engine)

    def live(self, run_id: str) -> LiveRunInfo | None:
        """Return the state of a live run of this process, or of an evicted one whose caller waits here, or None."""
        run = self._live.find(run_id)
        if run is None:
            evicted = self._service.evicted.find(run_id)
            return None if evicted is None else LiveRunInfo(evicted.state, begun=True, paused=evicted.paused)
        return LiveRunInfo(
            run.cursor.state, run.started_at is not None, run.control.pause_request is not None
        )

    def ask(self, run_id: str, kind: Kind, *, by: str, why: str) -> bool:
        """Request cancel, pause or resume from a live run of this process; return False if it is not live here.

        An evicted run gets the request through the journal. `by="shutdown"` means that the process stops.
        """
        run: Any = self._live.find(run_id)
        if run is None and self._service.evicted.find(run_id) is not None:
            self._service.control.send(run_id, kind, by, why)
            return True
        if run is None:
            return False
        run.mailbox.post(Signal(kind=kind, id=secrets.token_hex(8), by=by, why=why))
        return True

    async def open_runs(self) -> list[OpenRun]:
        """Return the runs of this graph that have not ended, as `described`. Raises StoreDown."""
        return [self._ours(run) for run in await self._recovery.open_runs()]

    async def described(self, head: RunHead) -> OpenRun:
        """Return the state of a stored run of this graph, and whether it continues here unattended.

        Raises RunUnknown, StoreDown.
        """
        return self._ours(await self._recovery.described(head))

    async def refuse_same_name(self) -> None:
        """Raise ConfigError if an open run of the journal belongs to another agent of this name and version."""
        await self._service.refuse_same_name()

    async def park_for_graph(self, head: RunHead) -> None:
        """Park an open run whose version of the graph no process has. Raises Held, Fenced, RunUnknown."""
        parked = await self._recovery.park_for_graph(head)
        if parked is not None:
            self.publish(parked)

    def _ours(self, run: OpenRun) -> OpenRun:
        """Exclude a run with a `launch` if this agent has none, and one that works on files of another host."""
        foreign = run.launched and not self._launched
        if foreign or (self._bound and hasattr(self.journal, "holders")):  # many hosts share this journal
            return replace(run, unattended=False, expires_at=0.0)
        return run

    def is_over(self, head: RunHead) -> bool:
        """Return whether a run has a result that can be read."""
        return head.status == "ended"

    async def output_of(self, run_id: str, output_type: object = None) -> OutputSpec | None:  # noqa: ARG002
        """Return the form of the output of a run with this option; None for free text, and for other outputs."""
        return None

    async def continues(self, run_id: str, if_exists: IfExists) -> bool:
        """Return whether a run is continued or read, as `if_exists` says; False if it does not exist.

        Raises:
            RunExists: The run exists, and `if_exists` is `raise`, or `return` while it has no result.
        """
        try:
            head = await self.journal.head(run_id)
        except RunUnknown:
            return False
        if if_exists == "resume" or (if_exists == "return" and self.is_over(head)):
            return True
        raise RunExists(run_id)
