"""Errors of a session: a failed agent, an invalid answer of an agent, an unreadable or changed file."""

from __future__ import annotations

from orchestrator.errors import RunError


class AgentFailed(RunError):
    """An agent (planner, executor …) did not complete its work; `retriable` says that another attempt may succeed."""

    def __init__(self, role: str, why: str, *, retriable: bool = False) -> None:
        super().__init__(f"the {role} failed: {why}")
        self.role = role
        self.why = why
        self.retryable = retriable
        self.kind = "connection" if retriable else "other"


class AgentOutputInvalid(RunError):
    """The answer of an agent violates its contract; `why` says where."""

    def __init__(self, role: str, why: str) -> None:
        super().__init__(f"the answer of the {role} is invalid: {why}")
        self.role = role
        self.why = why


class SessionFileError(RunError):
    """A file of a session cannot be read; `line` counts from 1 and is 0 for the whole file."""

    def __init__(self, path: str, line: int, why: str) -> None:
        super().__init__(f"{path}{f':{line}' if line else ''}: {why}")
        self.path = path
        self.line = line
        self.why = why


class OutsideEdit(RunError):
    """A file was changed outside since it was read. It is left unchanged."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} was changed outside since it was read; nothing was written. Check the file, then continue"
        )
        self.path = path


class IllegalMove(RunError):
    """A task's marker cannot move in this way; `allowed` are the markers that may follow."""

    def __init__(self, task: str, before: str, after: str, allowed: tuple[str, ...]) -> None:
        may = ", ".join(f"[{one}]" for one in allowed) or "nothing"
        super().__init__(
            f"task {task!r} cannot move from [{before}] to [{after}]; allowed after [{before}]: {may}"
        )
        self.task = task
        self.before = before
        self.after = after
        self.allowed = allowed
