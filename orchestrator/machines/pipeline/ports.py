"""Who does the work of the four stages, and who else may say that the budget is used up.

A port is any callable that takes a StageRequest; a sync one runs in a thread of its own. What it gives is typed, or
plain data that says the same. One that raises, or gives what is neither, fails the run: no score stands in for one that
was not given.

    planner      Plan, or plain data: the plan itself
    validator    Validation, a list of Issue, or {"issues": [{"severity", "message", "where"}, ...]}
    implementer  Implementation, or plain data: the implementation itself
    judge        Evaluation, or {"score", "categories", "comments"}

A stage that ended is never run again; one that was cut short by a crash is, with the same `request.key`. A port may say
by an attribute `effect` what that means: `pure` and `idempotent` (what is taken for granted) may be repeated, for an
`irreversible` one a person has to say so: `resume(run_id, again=True)`.
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
    """What a stage is asked to do, with everything that is known."""

    stage: OrchestrationState
    spec: Any
    iteration: int
    """Plans that were validated so far: 0 for the first plan, 1 for all that is done with it."""
    refinement: int
    """Soft failures of the run so far."""
    feedback: tuple[Feedback, ...] = ()
    """What this stage is to be told, oldest first."""
    plan: Plan | None = None
    """The present plan; while planning again, the one before."""
    validation: Validation | None = None
    implementation: Implementation | None = None
    evaluation: Evaluation | None = None
    remaining_tokens: int | None = None
    """Of the run's budget; None where that is unlimited."""
    key: str = ""
    """Idempotency key: the same for this stay in this state, whichever process works on it."""
    run_id: str = ""
    deps: Any = None
    """The host's own handles."""
    used: list[int] = field(default_factory=list)
    """See `spend`."""

    def spend(self, tokens: int) -> None:
        """Say what was used beside the `tokens` of the result; it counts also where the stage then raises.

        Raises ConfigError for what is no number of tokens.
        """
        if type(tokens) is not int or tokens < 0:
            raise ConfigError(f"a stage spent {tokens!r} tokens; give a whole number, 0 or more")
        self.used.append(tokens)


Port: TypeAlias = Callable[[StageRequest], Any]
"""One of the four, as the hooks see it."""


class Planner(Protocol):
    """Makes a plan from the spec and from what was wrong with the one before."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class Validator(Protocol):
    """Looks a plan over before anything is spent on it."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class Implementer(Protocol):
    """Makes of a plan what was asked for; after a soft failure, makes it better."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class Judge(Protocol):
    """Scores an implementation."""

    def __call__(self, request: StageRequest, /) -> Awaitable[Any] | Any: ...


class BudgetManager(Protocol):
    """The host's own budget, asked before and after each stage."""

    def is_exhausted(self) -> bool | Awaitable[bool]:
        """Tell whether nothing more may be spent."""
        ...
