"""Operator commands of an engine: the closed list of commands, their checks, and the commands that stay in force.

A command applies to this engine from now on, until it is revoked or the engine stops. Other engines and the next
start of this engine do not have it.

- A disabled tool is still offered to the model: its calls are answered as denied, and the model reads the reason.
- A blocked model gets no further requests. Its runs wait without a slot before their next request and continue when
  the model is unblocked, so no work is lost.
- A running tool and a sent request finish.

Both apply to the engine's runs and to all their child runs of every agent. A child run uses the slot of its parent
and keeps it while it waits.

Each command is checked, then journalled with actor and reason, then carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from orchestrator.engines.engine_directory import KINDS, START, STARTED, STATUS, EngineLog, Registration
from orchestrator.engines.run_queue import EngineJob, Phase, RunQueue, check_slots
from orchestrator.errors import CancelRequested, ConfigError, JournalError, RunError
from orchestrator.kernel.journal import Posted
from orchestrator.kernel.mailbox import Kind, Signal
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Request, ToolCall
from orchestrator.runtime.service.arguments import run_data
from orchestrator.runtime.service.hosting import Hosting
from orchestrator.tools.result import ToolResult
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_guards import tool_key

_OPTIONAL = ("grace", "graph")
OF_RUNS = frozenset(("stop_admitting", "start_admitting", "drain", "cancel_all", "pause_all", "resume_all"))
"""Commands that can concern some runs only: those of one agent, those with tags."""
SOME_GRACE = 30.0
"""Seconds that the drained runs of an agent or with tags have to end, unless the command says."""
_SAME = {"cancel": "drain", "pause": "stop_admitting", "resume": "start_admitting"}
"""Meaning of `runs cancel|pause|resume` for the run that represents an engine."""


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """One operator command."""

    kind: str
    by: str
    why: str = ""
    about: Any = None
    """A tool, model or graph by name, a number of slots, or a grace period in seconds, as KINDS says."""
    agent: str = ""
    """Name of the agent whose runs it concerns; empty for all agents."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags that each run has that it concerns; empty for all runs."""

    @classmethod
    def of(cls, kind: str, by: str, body: Mapping[str, Any]) -> Self:
        """Parse a command. Raises ConfigError for a command that no engine can carry out."""
        kind = _SAME.get(kind, kind)
        if kind not in KINDS:
            raise ConfigError(f"unknown operator command {kind!r}; allowed: {', '.join(KINDS)}")
        member = KINDS[kind]
        about = None if member is None else body.get(member)
        if member is not None and about is None and member not in _OPTIONAL:
            raise ConfigError(f"{kind} needs {member}")
        allowed = [*filter(None, (member,)), *(("agent", "tags") if kind in OF_RUNS else ())]
        stray = body.keys() - {*allowed, "why"}
        if stray:
            takes = " and ".join(allowed) or "nothing"
            raise ConfigError(f"{kind} takes {takes}, not {', '.join(sorted(stray))}")
        agent = _checked("agent", body.get("agent")) or ""
        tags = run_data(None, body.get("tags")).get("tags", {})
        return cls(kind, by, str(body.get("why") or ""), _checked(member, about), agent, tags)

    def body(self) -> dict[str, Any]:
        """Return the command as the body of its record."""
        member = KINDS[self.kind]
        about = {member: self.about} if member is not None and self.about is not None else {}
        agent = {"agent": self.agent} if self.agent else {}
        tags = {"tags": dict(self.tags)} if self.tags else {}
        return {"kind": self.kind, "by": self.by, "why": self.why} | about | agent | tags

    def covers(self, agent: str, tags: Mapping[str, str]) -> bool:
        """Return whether it concerns the runs of an agent with tags."""
        return self.agent in ("", agent) and self.tags.items() <= tags.items()

    def concerns(self, job: EngineJob) -> bool:
        """Return whether it concerns a run: of its graph and its agent and with its tags, if it has them."""
        graph = None if KINDS[self.kind] != "graph" else self.about
        return graph in (None, job.hosting.graph) and self.covers(job.hosting.agent, job.tags)

    @property
    def is_partial(self) -> bool:
        """Whether it concerns some runs of an engine only, by their agent or their tags."""
        return bool(self.agent or self.tags)

    def explain(self) -> str:
        """Return actor and reason as text."""
        return f"{self.by}: {self.why}" if self.why else self.by


def _checked(member: str | None, about: Any) -> Any:
    if member == "slots":
        check_slots(about)
    elif member == "grace" and about is not None:
        if not isinstance(about, int | float) or isinstance(about, bool) or not 0 <= about < float("inf"):
            raise ConfigError(f"grace is {about!r}; it must be a number of seconds, 0 or more")
    elif about is not None and (not isinstance(about, str) or not about):
        raise ConfigError(f"{member} is {about!r}; it must be a name")
    return about


class ActiveCommands:
    """The commands about tools and models that are in force, as the runs of the engine see them.

    `wake` starts queued runs that waited for their model.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._disabled: dict[str, OperatorCommand] = {}
        self._blocked: dict[str, OperatorCommand] = {}
        self._waiting: set[Run[Any, Any]] = set()
        """Runs that wait for a model: runs of the engine and child runs."""

    def take(self, command: OperatorCommand) -> None:
        """Apply a command about a tool or a model."""
        match command.kind:
            case "disable_tool":
                self._disabled[tool_key(command.about)] = command
            case "enable_tool":
                self._disabled.pop(tool_key(command.about), None)
            case "block_model":
                self._blocked[command.about] = command
            case _:
                self._blocked.pop(command.about, None)
                for run in self._waiting:  # a decision without an answer makes the run check again
                    run.mailbox.post(Signal(kind="decision"))
                self._wake()

    def blocks(self, model: str) -> bool:
        """Return whether requests to a model are blocked."""
        return model in self._blocked

    def plain(self) -> dict[str, list[dict[str, Any]]]:
        """Return the commands in force as plain data."""
        return {
            "disabled": [asdict(command) for command in self._disabled.values()],
            "blocked": [asdict(command) for command in self._blocked.values()],
        }

    # ---- called by the runs (runtime.hosting.Host) ----

    async def before_llm_request(self, run: LoopRun, request: Request) -> None:
        """Return when the run's model is not blocked; park the run until then."""
        del request
        await self.may_ask(run, run.deps.model)

    async def may_ask(self, run: Run[Any, Any], model: str) -> None:
        """Return when a model is not blocked; park the run until then."""
        while (command := self._blocked.get(model)) is not None and run.control.services is not None:
            detail = {"model": model, "by": command.by, "why": command.why}
            self._waiting.add(run)
            try:
                await run.control.services.wait(run, "waiting", detail, lambda: model not in self._blocked)
            finally:
                self._waiting.discard(run)

    async def before_tool_execution(self, run: Run[Any, Any], call: ToolCall) -> ToolResult | None:
        """Return the denial of a call if its tool is disabled, else None."""
        del run
        command = self._disabled.get(tool_key(call.name))
        if command is None:
            return None
        why = f"not run: the tool {call.name} is switched off by {command.explain()}; go on without it"
        return ToolResult.failure(call, 0, "denied", why, kind="Disabled")


START_MEMBERS = frozenset(("value", "agent", "run_id", "tenant", "metadata", "tags"))
"""Members of a request to start a run."""
_LISTED = 100
"""Maximum number of runs in a status."""
_BEGINNING = 0.005
"""Seconds between two checks of a run that is about to start."""
_ASKS: dict[str, Kind] = {"cancel_all": "cancel", "pause_all": "pause", "resume_all": "resume"}


class CommandHandler:
    """Check, journal and carry out operator commands.

    `drain` starts to drain the engine. `start` stores and queues the run of a request.
    """

    def __init__(
        self,
        hosts: tuple[Hosting, ...],
        line: RunQueue,
        commands: ActiveCommands,
        registration: Registration,
        log: EngineLog,
        *,
        drain: Callable[[OperatorCommand], object],
        start: Callable[..., Awaitable[str]],
    ) -> None:
        self._name = line.name
        self._hosts = hosts
        self._line = line
        self._commands = commands
        self._registration = registration
        self._log = log
        self._drain = drain
        self._start = start
        self._closed: list[OperatorCommand] = []
        """The commands that stopped the admission of runs and are in force."""
        self.draining = False
        self._pausing: set[asyncio.Task[None]] = set()

    def closed_for(self, agent: str, tags: Mapping[str, str]) -> OperatorCommand | None:
        """Return a command that stopped the admission of runs of an agent with tags; None if they are admitted."""
        return next((command for command in self._closed if command.covers(agent, tags)), None)

    def is_closed(self, agent: str, tags: Mapping[str, str]) -> bool:
        """Return whether the engine accepts no further runs of an agent with tags."""
        return self.closed_for(agent, tags) is not None

    async def take(self, posted: Posted) -> None:
        """Carry out a command of another process. A command that is not allowed is journalled with the reason."""
        if posted.kind == STATUS:
            await self._registration.note(STATUS, {"id": posted.id, **self.status()})
            return
        known = {"id": posted.id, "number": posted.number}
        if posted.kind == START:
            await self._take_start(posted, known)
            return
        try:
            command = OperatorCommand.of(posted.kind, posted.by, posted.body)
            self.check(command)
        except ConfigError as error:
            body = {"kind": posted.kind, "by": posted.by, "why": posted.body.get("why", "")}
            await self._registration.note("control", {**body, **known, "refused": str(error)})
            self._log.ordered(posted.kind, posted.by, "", refused=str(error))
        else:
            await self.execute(command, **known)

    async def _take_start(self, posted: Posted, known: Mapping[str, Any]) -> None:
        """Start a run for another process, then journal it, without its input. Raises JournalError.

        A request that is read again, after the store was down, finds its run in the journal and starts no second one.
        """
        body: Mapping[str, Any] = posted.body
        refused = {}
        try:
            if unknown := body.keys() - START_MEMBERS:
                raise ConfigError(  # noqa: TRY301 - recorded as the other refusals
                    f"start takes {', '.join(sorted(START_MEMBERS))}, not {', '.join(sorted(unknown))}"
                )
            await self._start(body.get("value"), **{name: body[name] for name in body if name != "value"})
        except JournalError:
            raise
        except (ConfigError, RunError) as error:
            refused = {"refused": str(error)}
        named = {name: str(body.get(name) or "") for name in ("agent", "run_id")}
        await self._registration.note(STARTED, {"by": posted.by, **named, **known, **refused})
        self._log.ordered(START, posted.by, "", named["run_id"], **refused)

    def check(self, command: OperatorCommand) -> None:
        """Raise ConfigError for a command that this engine cannot carry out."""
        if self.draining and command.kind in {"stop_admitting", "start_admitting"}:
            raise ConfigError(f"engine {self._name!r} is draining; that cannot be taken back")
        agents = {host.agent for host in self._hosts if host.agent}
        if command.agent and command.agent not in agents:
            names = ", ".join(sorted(agents)) or "none with a name"
            raise ConfigError(f"engine {self._name!r} has no agent {command.agent!r}; it has: {names}")
        known = self._known(KINDS[command.kind])
        if known is not None and command.about is not None and command.about not in known:
            names = ", ".join(sorted(known)) or "none"
            raise ConfigError(
                f"engine {self._name!r} has no {KINDS[command.kind]} {command.about!r}; it has: {names}"
            )

    def _known(self, member: str | None) -> set[str] | None:
        """Return the names that a command may refer to; None if the command takes no name.

        Names of tools and models come from the whole tree of agents below each agent, because commands apply to all
        of it.
        """
        match member:
            case "tool":
                return {name for host in self._hosts for one in host.tree() for name in one.tools}
            case "model":
                return {name for host in self._hosts for one in host.tree() for name in one.models}
            case "graph":
                return {host.graph for host in self._hosts}
        return None

    async def execute(self, command: OperatorCommand, **known: Any) -> None:
        """Journal a command, then carry it out. If the journal raises, nothing is done."""
        await self._registration.note("control", {**command.body(), **known})
        self._log.ordered(command.kind, command.by, command.why, command.about)
        match command.kind:
            case "stop_admitting":
                self._closed.append(command)
            case "start_admitting":  # also of fewer runs: those of an agent, of which only some were refused
                self._closed = [one for one in self._closed if not command.covers(one.agent, one.tags)]
            case "drain" if command.is_partial:
                self._closed.append(command)
                pausing = asyncio.create_task(self._pause_later(command))
                self._pausing.add(pausing)
                pausing.add_done_callback(self._pausing.discard)
            case "drain":
                self._drain(command)
            case "slots":
                self._line.slots.limit = command.about
            case "cancel_all" | "pause_all" | "resume_all":
                if command.kind == "cancel_all":
                    await self._cancel_queued(command)
                await self._ask(command, _ASKS[command.kind])
            case _:
                self._commands.take(command)

    async def _ask(self, command: OperatorCommand, request: Kind) -> None:
        """Ask the live runs that a command concerns."""
        for job in [job for job in self._line.live.values() if command.concerns(job)]:
            # Wait until a run that was just started accepts requests, or is over.
            # Polled, because an agent does not announce that it has taken a run.
            while job.phase is not Phase.OVER and job.hosting.live(job.run_id) is None:  # noqa: ASYNC110
                await asyncio.sleep(_BEGINNING)
            live = job.hosting.live(job.run_id)
            if live is not None and (request != "resume" or live.paused):
                job.hosting.ask(job.run_id, request, by=command.by, why=command.why)

    async def _pause_later(self, command: OperatorCommand) -> None:
        """Give the drained runs of an agent, or with tags, their grace period, then pause those that still work."""
        seconds = SOME_GRACE if command.about is None else command.about
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(map(command.concerns, self._line.live.values())):
                    self._line.changed.clear()
                    await self._line.changed.wait()
        await self._ask(command, "pause")

    def status(self) -> dict[str, Any]:
        """Return the status of the engine as plain data."""
        line, closed = self._line, self.closed_for("", {})
        return {
            "engine": self._name,
            "slots": line.slots.limit,
            "taken": line.slots.taken,
            **line.count(),
            "admitting": closed is None and not self.draining,
            "closed": None if closed is None else asdict(closed),
            "closed_runs": [asdict(command) for command in self._closed if command.is_partial],
            "draining": self.draining,
            **self._commands.plain(),
            "live": [self._plain(job) for job in list(line.live.values())[:_LISTED]],
        }

    def _plain(self, job: EngineJob) -> dict[str, Any]:
        live = job.hosting.live(job.run_id)
        return {
            "run_id": job.run_id,
            "agent": job.agent,
            "graph": job.hosting.graph,
            "state": "" if live is None else live.state,
            "phase": job.phase.value,
            "reason": job.reason,
        }

    async def _cancel_queued(self, command: OperatorCommand) -> None:
        """Remove the runs that have not started.

        A stored run gets a cancel request and ends as cancelled in its turn.
        """
        for job in self._line.let_go(lambda job: command.concerns(job) and not job.stored):
            job.settle(CancelRequested("caller", f"before it began; {command.explain()}"))
        for job in [job for job in self._line.queued if command.concerns(job)]:
            request = Posted(secrets.token_hex(8), "cancel", {"why": command.why}, command.by)
            await job.hosting.journal.post(job.run_id, request)
