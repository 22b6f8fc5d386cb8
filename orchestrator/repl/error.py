"""When there is no REPL to run code in."""

from __future__ import annotations

from orchestrator.errors import RunError


class ReplError(RunError):
    """A worker could not be started, or is not locked up as far as was asked for."""


class WorkerLost(RunError):
    """The worker is gone, or had to be killed; `why` is short, the message is for the model."""

    def __init__(self, why: str, message: str) -> None:
        self.why = why
        super().__init__(message)
