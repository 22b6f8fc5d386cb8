"""Errors of the REPL worker."""

from __future__ import annotations

from orchestrator.errors import RunError


class ReplError(RunError):
    """A worker could not be started, or its isolation is below the required level."""


class WorkerLost(RunError):
    """The worker ended or was killed; `why` is short, the message is for the model."""

    def __init__(self, why: str, message: str) -> None:
        self.why = why
        super().__init__(message)
