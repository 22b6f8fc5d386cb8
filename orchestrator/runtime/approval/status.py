"""What a person is told of a project: where it stands, what is asked, what went wrong, what can be done. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.machines.approval.model import ApprovalState
from orchestrator.machines.approval.plan import ApprovalPlan, PlanStep


@dataclass(frozen=True, slots=True)
class StepState:
    """One step of the present plan.

    `status` is pending, running, done, undone, failed (of a command), or unknown: its command may have run.
    """

    id: str
    status: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StepFact:
    """A step that begins (durable, nothing touched yet) or ends (durable)."""

    step: PlanStep
    index: int
    """From 1."""
    of: int
    phase: str
    """`begins` or `ends`."""
    status: str
    """`running`, then `done` or `failed`."""
    seconds: float = 0.0
    output: str = ""
    """The end of what a command said, on both streams. It is stored nowhere."""


@dataclass(frozen=True, slots=True)
class IntentQuestion:
    """An intent that waits for the person to confirm it, or the reason why a request was not gone on with."""

    text: str
    intent: Mapping[str, Any] | None = None
    """None: there is nothing to confirm, say it in other words."""
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class RecoveryNote:
    """What a recovery found, and did. It is told until the next request, execution or resume."""

    found: str
    """The state at the crash; `corrupt` where it could not be trusted."""
    now: str
    why: str
    at: float = 0.0
    kept: tuple[str, ...] = ()
    """Ids of the steps that had been completed, and stay."""
    undone: tuple[str, ...] = ()
    """Files of the step that was open, or of all steps after a cancel: they are as before."""
    conflicts: tuple[Mapping[str, Any], ...] = ()
    """Files that were kept, because somebody else has changed them."""
    options: tuple[str, ...] = ()
    """What can be done now, in words or as actions."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "found": self.found,
            "now": self.now,
            "why": self.why,
            "at": self.at,
            "kept": list(self.kept),
            "undone": list(self.undone),
            "conflicts": [dict(one) for one in self.conflicts],
            "options": list(self.options),
        }

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> RecoveryNote:
        """Return what `plain` stands for."""
        lists = {name: tuple(plain.get(name, ())) for name in ("kept", "undone", "conflicts", "options")}
        return cls(plain["found"], plain["now"], plain["why"], float(plain.get("at", 0.0)), **lists)


@dataclass(frozen=True, slots=True)
class Drift:
    """A file that is not as the plan expects it."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a project stands."""

    state: ApprovalState
    run_id: str = ""
    """Empty where nothing was ever submitted."""
    request: str = ""
    intent: Mapping[str, Any] | None = None
    question: IntentQuestion | None = None
    plan: ApprovalPlan | None = None
    plan_status: str = ""
    """One of PlanStatus; empty without a plan."""
    versions: tuple[tuple[str, int], ...] = ()
    """(id, version) of every plan of this request, oldest first."""
    approved_at: float | None = None
    expires_at: float | None = None
    """Epoch seconds; None: never."""
    steps: tuple[StepState, ...] = ()
    error: Mapping[str, Any] | None = None
    """The error object, with `shown`: only after that may it be acknowledged."""
    recovery: RecoveryNote | None = None
    crashed: bool = False
    """Nobody works on it though its state says so: the next process that opens the project recovers it."""
    drift: tuple[Drift, ...] = ()
    undone: tuple[str, ...] = ()
    """Files that the last rollback put back."""
    conflicts: tuple[Mapping[str, Any], ...] = ()
    """Files that the last rollback kept."""
    actions: tuple[str, ...] = ()
    """What can be done now."""
    held: str | None = None
    """Who works on it, if somebody else does."""
    launch: Mapping[str, Any] = field(default_factory=dict)
    """What whoever submitted kept with the request: how its planner is made."""
