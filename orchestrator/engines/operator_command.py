"""Operator commands of an engine: the closed list of commands, their checks, and the commands that stay in force.

A command applies to this engine from now on, until it is revoked or the engine stops. Other engines and the next
start of this engine do not have it.

- A disabled tool is still offered to the model: its calls are answered as denied, and the model reads the reason.
- A blocked model gets no further requests. Its runs wait without a slot before their next request and continue when
  the model is unblocked, so no work is lost.
- A running tool and a sent request finish.

Both apply to the engine's runs and to all their child runs of every agent. A child run uses the slot of its parent
and keeps it while it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from orchestrator.engines.slot import check_slots
from orchestrator.errors import ConfigError
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Request, ToolCall
from orchestrator.tools.result import ToolResult
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_guards import tool_key

KINDS: Mapping[str, str | None] = {
    "stop_admitting": None,
    "start_admitting": None,
    "drain": "grace",
    "cancel_all": "graph",
    "pause_all": "graph",
    "resume_all": "graph",
    "disable_tool": "tool",
    "enable_tool": "tool",
    "block_model": "model",
    "unblock_model": "model",
    "slots": "slots",
}
"""Every command -> the field that names its object."""

_OPTIONAL = ("grace", "graph")
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
        stray = body.keys() - {member, "why"}
        if stray:
            raise ConfigError(f"{kind} takes {member or 'nothing'}, not {', '.join(sorted(stray))}")
        return cls(kind, by, str(body.get("why") or ""), _checked(member, about))

    def body(self) -> dict[str, Any]:
        """Return the command as the body of its record."""
        member = KINDS[self.kind]
        about = {member: self.about} if member is not None and self.about is not None else {}
        return {"kind": self.kind, "by": self.by, "why": self.why} | about

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
