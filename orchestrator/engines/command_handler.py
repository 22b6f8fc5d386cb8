"""Execution of operator commands: each one is checked, then journalled with actor and reason, then carried out."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from orchestrator.engines.engine_log import EngineLog
from orchestrator.engines.handle import EngineJob, Phase
from orchestrator.engines.operator_command import KINDS, ActiveCommands, OperatorCommand
from orchestrator.engines.registration import STATUS, Registration
from orchestrator.engines.run_queue import RunQueue
from orchestrator.errors import CancelRequested, ConfigError
from orchestrator.kernel.journal import Posted
from orchestrator.kernel.mailbox import Kind
from orchestrator.runtime.service.hosting import Hosting

_LISTED = 100
"""Maximum number of runs in a status."""
_BEGINNING = 0.005
"""Seconds between two checks of a run that is about to start."""
_ASKS: dict[str, Kind] = {"cancel_all": "cancel", "pause_all": "pause", "resume_all": "resume"}


class CommandHandler:
    """Check, journal and carry out operator commands. `drain` starts to drain the engine."""

    def __init__(
        self,
        hosts: tuple[Hosting, ...],
        line: RunQueue,
        commands: ActiveCommands,
        registration: Registration,
        log: EngineLog,
        *,
        drain: Callable[[OperatorCommand], object],
    ) -> None:
        self._name = line.name
        self._hosts = hosts
        self._line = line
        self._commands = commands
        self._registration = registration
        self._log = log
        self._drain = drain
        self.closed: OperatorCommand | None = None
        """The command that stopped admission; None while runs are admitted."""
        self.draining = False

    def is_closed(self) -> bool:
        """Return whether the engine accepts no further runs."""
        return self.closed is not None

    async def take(self, posted: Posted) -> None:
        """Carry out a command of another process. A command that is not allowed is journalled with the reason."""
        if posted.kind == STATUS:
            await self._registration.note(STATUS, {"id": posted.id, **self.status()})
            return
        known = {"id": posted.id, "number": posted.number}
        try:
            command = OperatorCommand.of(posted.kind, posted.by, posted.body)
            self.check(command)
        except ConfigError as error:
            body = {"kind": posted.kind, "by": posted.by, "why": posted.body.get("why", "")}
            await self._registration.note("control", {**body, **known, "refused": str(error)})
            self._log.ordered(posted.kind, posted.by, "", refused=str(error))
        else:
            await self.execute(command, **known)

    def check(self, command: OperatorCommand) -> None:
        """Raise ConfigError for a command that this engine cannot carry out."""
        if self.draining and command.kind in {"stop_admitting", "start_admitting"}:
            raise ConfigError(f"engine {self._name!r} is draining; that cannot be taken back")
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
            case "stop_admitting" | "start_admitting":
                self.closed = command if command.kind == "stop_admitting" else None
            case "drain":
                self._drain(command)
            case "slots":
                self._line.slots.limit = command.about
            case "cancel_all" | "pause_all" | "resume_all":
                await self._ask_all(command)
            case _:
                self._commands.take(command)

    def status(self) -> dict[str, Any]:
        """Return the status of the engine as plain data."""
        line = self._line
        return {
            "engine": self._name,
            "slots": line.slots.limit,
            "taken": line.slots.taken,
            **line.count(),
            "admitting": self.closed is None and not self.draining,
            "closed": None if self.closed is None else asdict(self.closed),
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

    async def _ask_all(self, command: OperatorCommand) -> None:
        if command.kind == "cancel_all":
            await self._cancel_queued(command)
        for job in list(self._line.of_graph(command.about)):
            await self._begun(job)
            live = job.hosting.live(job.run_id)
            if live is not None and (command.kind != "resume_all" or live.paused):
                job.hosting.ask(job.run_id, _ASKS[command.kind], by=command.by, why=command.why)

    async def _cancel_queued(self, command: OperatorCommand) -> None:
        """Remove the runs that have not started.

        A stored run gets a cancel request and ends as cancelled in its turn.
        """

        def chosen(job: EngineJob) -> bool:
            return command.about in (None, job.hosting.graph)

        for job in self._line.let_go(lambda job: chosen(job) and not job.stored):
            job.settle(CancelRequested("caller", f"before it began; {command.explain()}"))
        for job in [job for job in self._line.queued if chosen(job)]:
            request = Posted(secrets.token_hex(8), "cancel", {"why": command.why}, command.by)
            await job.hosting.journal.post(job.run_id, request)

    async def _begun(self, job: EngineJob) -> None:
        """Return when a run that was just started accepts requests, or is over."""
        # Polled, because an agent does not announce that it has taken a run.
        while job.phase is not Phase.OVER and job.hosting.live(job.run_id) is None:  # noqa: ASYNC110
            await asyncio.sleep(_BEGINNING)
