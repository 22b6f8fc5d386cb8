"""The status of each step of a plan, from the records of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.machines.approval.model import ApprovalState

PENDING, RUNNING, DONE, UNDONE, FAILED, UNKNOWN = "pending", "running", "done", "undone", "failed", "unknown"


class StepLog:
    """Statuses of steps by their labels. Call `fold` with every record of a run, in order."""

    def __init__(self) -> None:
        self._status: dict[str, str] = {}
        self._changes: dict[str, str] = {}
        """Key of a file change that was not reverted -> its step."""
        self._commands: dict[str, str] = {}
        """Key of a command that has not ended -> its step."""

    def fold(self, kind: str, body: Mapping[str, Any]) -> None:
        """Apply the next record."""
        effect, step, key = body.get("effect"), str(body.get("step", "")), str(body.get("key", ""))
        match kind:
            case "step":
                self._status[step] = FAILED if body.get("status") == FAILED else RUNNING
            case "intent" if step:
                self._status[step] = RUNNING
                (self._commands if effect == "command" else self._changes)[key] = step
            case "done" if effect == "command":
                self._commands.pop(key, None)
                self._status[step] = RUNNING if body.get("exit") == 0 else FAILED
            case "done" if effect == "step":
                self._status[step] = DONE
            case "rolled_back":
                self._taken_back(key)
            case "recovered":
                self._settle()
            case "transition" if body.get("dest") == ApprovalState.IDLE:
                self._settle()
            case _:
                pass

    def _taken_back(self, key: str) -> None:
        step = self._changes.pop(key, None) or self._commands.pop(key, None)
        if step is not None and step not in self._changes.values():
            self._status[step] = UNDONE

    def _settle(self) -> None:
        """Settle started steps when nothing runs, after a crash or in Idle.

        They are untouched, undone, or have an uncertain command.
        """
        for step, status in self._status.items():
            if status == RUNNING:
                self._status[step] = UNKNOWN if step in self._commands.values() else PENDING

    def of(self, plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield id and status of each step of a plan."""
        for step in plan.get("steps", ()):
            yield str(step.get("id")), self._status.get(f"{_label(plan)}{step.get('id')}", PENDING)

    def has_changes(self, plan: Mapping[str, Any]) -> bool:
        """Return whether a plan has file changes that were not reverted."""
        return any(step.startswith(_label(plan)) for step in self._changes.values())


def _label(plan: Mapping[str, Any]) -> str:
    return f"{plan.get('id')}.{plan.get('version')}/"
