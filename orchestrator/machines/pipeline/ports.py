"""The ports of the four stages, and of an external budget.

A port is any callable that takes a StageRequest; a synchronous one runs in its own thread. It returns a typed result
or equivalent plain data. If it raises or returns anything else, the run fails: a missing score is never replaced.

    planner      Plan, or plain data: the plan itself
    validator    Validation, a list of Issue, or {"issues": [{"severity", "message", "where"}, ...]}
    implementer  Implementation, or plain data: the implementation itself
    judge        Evaluation, or {"score", "categories", "comments"}

A finished stage is never run again. A stage that a crash interrupted is repeated with the same `request.key`. The
attribute `effect` of a port states whether that is safe: `pure` and `idempotent` (the default) stages may be
repeated; for an `irreversible` one a person has to allow it with `resume(run_id, again=True)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.machines.pipeline.model import (
    Evaluation,
    Feedback,
    Implementation,
    OrchestrationState,
    Plan,
    Validation,
)

EFFECTS = ("pure", "idempotent", "irreversible")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """The request to a stage, with all known data."""

    stage: OrchestrationState
    spec: Any
    iteration: int
    """Plans that were validated so far: 0 for the first plan, 1 for all work on it."""
    refinement: int
    """Soft failures of the run so far."""
    feedback: tuple[Feedback, ...] = ()
    """Feedback for this stage, oldest first."""
    plan: Plan | None = None
    """The current plan; during replanning, the previous one."""
    validation: Validation | None = None
    implementation: Implementation | None = None
    evaluation: Evaluation | None = None
    remaining_tokens: int | None = None
    """Remaining tokens of the run's budget; None if it is unlimited."""
    key: str = ""
    """Idempotency key: the same for this visit of this state in every process."""
    run_id: str = ""
    deps: Any = None
    """Handles of the host."""
    used: list[int] = field(default_factory=list)
    """See `spend`."""

    def spend(self, tokens: int) -> None:
        """Record tokens that were used in addition to the `tokens` of the result, even if the stage then raises.

        Raises ConfigError for an invalid number of tokens.
        """
        if type(tokens) is not int or tokens < 0:
            raise ConfigError(f"a stage spent {tokens!r} tokens; it must be a whole number, 0 or more")
        self.used.append(tokens)


Port: TypeAlias = Callable[[StageRequest], Any]
"""One of the four ports, as the hooks see it."""


class Planner(Protocol):
    """Makes a plan from the spec and the faults of the previous plan."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class Validator(Protocol):
    """Checks a plan before resources are spent on it."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class Implementer(Protocol):
    """Implements a plan; after a soft failure, improves the implementation."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class Judge(Protocol):
    """Scores an implementation."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class BudgetManager(Protocol):
    """The host's own budget, checked before and after each stage."""

    def is_exhausted(self) -> bool | Awaitable[bool]:
        """Return whether nothing more may be spent."""
        ...
