"""Logs of a project: one file of JSON lines per day, without prompts, contents, command output and keys.

The log is an observer. It drops lines that it cannot write, and a gate reports that before the next plan is executed.
By default it keeps 7 days, at most 100 MB per day and 1 GB in total.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.kernel.record import (
    EventFailed,
    Fact,
    GuardEvaluated,
    OperationAttempt,
    RolledBack,
    RunCompleted,
    RunParked,
    RunRecovered,
    RunStarted,
    Transition,
    WorkAbandoned,
    kind_of,
)
from orchestrator.llm.port import Clock
from orchestrator.machines.approval.limits import ApprovalLimits

_FIELDS: Mapping[type, tuple[str, ...]] = {
    RunStarted: ("origin", "state"),
    Transition: ("seq", "event", "source", "dest", "dwell", "guard", "reason"),
    EventFailed: ("state", "event", "reason", "hook", "committed"),
    GuardEvaluated: ("state", "event", "guard", "result"),
    OperationAttempt: ("operation", "number", "outcome", "reason", "delay"),
    RunParked: ("state", "reason"),
    RunCompleted: ("outcome", "reason", "transitions", "seconds"),
    RunRecovered: ("outcome",),
    RolledBack: ("outcome",),
    WorkAbandoned: ("state", "kind", "name"),
}
"""Fact -> its logged fields: only names and numbers from closed sets."""


class ProjectLog:
    """An observer that writes `<folder>/<day>.jsonl`. Days are in UTC."""

    def __init__(self, folder: Path, limits: ApprovalLimits, clock: Clock) -> None:
        self._folder = folder
        self._limits = limits
        self._clock = clock
        self._day = ""

    def observe(self, fact: Fact, /) -> None:
        """Write a line about a fact. Raises OSError, which the driver counts."""
        names = _FIELDS.get(type(fact))
        if names is None:
            return
        kind = kind_of(fact)
        said: dict[str, Any] = {name: getattr(fact, name) for name in names}
        if isinstance(fact, EventFailed):
            said["error"] = type(fact.error).__name__ if fact.error is not None else None
        self.write(kind, run_id=getattr(fact, "run_id", ""), **said)

    def write(self, kind: str, **said: Any) -> None:
        """Write a line, unless the day's file is full."""
        now = datetime.fromtimestamp(self._clock.time(), UTC)
        day = f"{now:%Y-%m-%d}"
        if day != self._day:
            self._turn_over(day)
        line = json.dumps({"at": now.isoformat(), "kind": kind, **said}, ensure_ascii=False).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._folder / f"{day}.jsonl", flags, 0o600)
        try:
            most = self._limits.log_file_bytes
            if not most or os.fstat(fd).st_size + len(line) <= most:
                os.write(fd, line)
        finally:
            os.close(fd)

    def is_ready(self) -> bool:
        """Return whether the log can be written."""
        return os.access(self._folder, os.W_OK | os.X_OK)

    def _turn_over(self, day: str) -> None:
        """Start a new day: remove expired files, and the oldest ones if all are too large."""
        self._day = day
        files = sorted(self._folder.glob("????-??-??.jsonl"))
        keep = self._limits.log_days
        if keep:
            oldest = datetime.fromisoformat(day).timestamp() - (keep - 1) * 86_400
            for file in files:
                if datetime.fromisoformat(file.stem).timestamp() < oldest:
                    file.unlink(missing_ok=True)
            files = [file for file in files if file.exists()]
        total = sum(file.stat().st_size for file in files)
        for file in files:
            if not self._limits.log_total_bytes or total <= self._limits.log_total_bytes:
                return
            total -= file.stat().st_size
            file.unlink(missing_ok=True)
