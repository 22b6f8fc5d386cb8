"""What can go wrong in a session: an agent that fails or answers what cannot be used, a file that cannot be."""

from __future__ import annotations

from orchestrator.errors import RunError


class AgentFailed(RunError):
    """An agent (planner, executor …) did not do its work; `retriable`: another try may well succeed."""

    def __init__(self, role: str, why: str, *, retriable: bool = False) -> None:
        super().__init__(f"the {role} failed: {why}")
        self.role = role
        self.why = why
        self.retryable = retriable
        self.kind = "connection" if retriable else "other"


class AgentOutputInvalid(RunError):
    """What an agent answered does not keep its contract; `why` says where."""

    def __init__(self, role: str, why: str) -> None:
        super().__init__(f"the {role} gave what cannot be used: {why}")
        self.role = role
        self.why = why


class SessionFileError(RunError):
    """A file of a session cannot be read; `line` is from 1, 0 where it is about the whole file."""

    def __init__(self, path: str, line: int, why: str) -> None:
        super().__init__(f"{path}{f':{line}' if line else ''}: {why}")
        self.path = path
        self.line = line
        self.why = why


class OutsideEdit(RunError):
    """Somebody changed a file since it was read; it is left as it is."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} was changed by somebody else since it was read; nothing was written. Look at it, then go on"
        )
        self.path = path


class IllegalMove(RunError):
    """A task's marker was to be moved as no task may go; `allowed` are the markers that may follow."""

    def __init__(self, task: str, before: str, after: str, allowed: tuple[str, ...]) -> None:
        may = ", ".join(f"[{one}]" for one in allowed) or "nothing"
        super().__init__(
            f"task {task!r} cannot go from [{before}] to [{after}]; after [{before}] comes {may}"
        )
        self.task = task
        self.before = before
        self.after = after
        self.allowed = allowed
