"""What became of each step of a plan, as the records of a run tell. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PENDING, RUNNING, DONE, UNDONE, UNKNOWN = "pending", "running", "done", "undone", "unknown"


class StepLog:
    """Statuses of steps by their labels. Feed it every record of a run, in order."""

    def __init__(self) -> None:
        self._status: dict[str, str] = {}
        self._step_of: dict[str, str] = {}
        """Key of an effect that is not taken back -> its step."""
        self._commands: dict[str, str] = {}
        """The same of commands that have not ended."""

    def fold(self, kind: str, body: Mapping[str, Any]) -> None:
        """Take one more record."""
        effect, step = body.get("effect"), str(body.get("step", ""))
        match kind:
            case "step":
                self._status[step] = RUNNING
            case "intent" if step:
                self._begun(str(body["key"]), step, effect)
            case "done" if effect == "command":
                self._commands.pop(str(body["key"]), None)
            case "done" if effect == "step":
                self._status[step] = DONE
            case "rolled_back" if body.get("key") in self._step_of:
                self._taken_back(str(body["key"]))
            case "recovered":
                self._settle()
            case _:
                pass

    def _begun(self, key: str, step: str, effect: object) -> None:
        self._step_of[key] = step
        self._status[step] = RUNNING
        if effect == "command":
            self._commands[key] = step

    def _taken_back(self, key: str) -> None:
        self._commands.pop(key, None)
        step = self._step_of.pop(key)
        if step not in self._step_of.values():
            self._status[step] = UNDONE

    def _settle(self) -> None:
        """After a crash nothing runs: what had begun has touched nothing, is undone, or is a command in doubt."""
        for step, status in self._status.items():
            if status == RUNNING:
                self._status[step] = UNKNOWN if step in self._commands.values() else PENDING

    def of(self, plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield id and status of each step of a plan."""
        for step in plan.get("steps", ()):
            label = f"{plan.get('id')}.{plan.get('version')}/{step.get('id')}"
            yield str(step.get("id")), self._status.get(label, PENDING)
