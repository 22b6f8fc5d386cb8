"""The status of a project for a person: state, questions, errors, possible actions. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.machines.approval.model import ApprovalState
from orchestrator.machines.approval.plan import ApprovalPlan, PlanStep


@dataclass(frozen=True, slots=True)
class StepState:
    """One step of the current plan.

    `status` is pending, running, done, undone, failed (of a command), or unknown: its command may have run.
    """

    id: str
    status: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StepFact:
    """The start of a step (durable, no file changed yet) or its end (durable)."""

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
    """Last part of a command's output, on both streams. Not stored."""


@dataclass(frozen=True, slots=True)
class IntentQuestion:
    """An intent that waits for the person's confirmation, or the reason why a request did not proceed."""

    text: str
    intent: Mapping[str, Any] | None = None
    """None: there is nothing to confirm, so the person has to rephrase the request."""
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class RecoveryNote:
    """The findings and actions of a recovery, shown until the next request, execution or resume."""

    found: str
    """The state at the crash; `corrupt` if it could not be trusted."""
    now: str
    why: str
    at: float = 0.0
    kept: tuple[str, ...] = ()
    """Ids of completed steps that were kept."""
    undone: tuple[str, ...] = ()
    """Files of the open step, or of all steps after a cancel, that were restored."""
    conflicts: tuple[Mapping[str, Any], ...] = ()
    """Files that were kept, because they were changed outside."""
    options: tuple[str, ...] = ()
    """Possible actions, or descriptions of them."""

    def plain(self) -> dict[str, Any]:
        """Return the note as JSON types."""
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
        """Parse the result of `plain`."""
        lists = {name: tuple(plain.get(name, ())) for name in ("kept", "undone", "conflicts", "options")}
        return cls(plain["found"], plain["now"], plain["why"], float(plain.get("at", 0.0)), **lists)


@dataclass(frozen=True, slots=True)
class Drift:
    """A file that differs from the plan."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a project."""

    state: ApprovalState
    run_id: str = ""
    """Empty if no request was ever submitted."""
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
    """Epoch seconds; None means never."""
    steps: tuple[StepState, ...] = ()
    error: Mapping[str, Any] | None = None
    """The error, with `shown`: it may be acknowledged only after it was shown."""
    recovery: RecoveryNote | None = None
    crashed: bool = False
    """No process works on it although its state requires one: the next process that opens the project recovers it."""
    drift: tuple[Drift, ...] = ()
    undone: tuple[str, ...] = ()
    """Files that the last rollback restored."""
    conflicts: tuple[Mapping[str, Any], ...] = ()
    """Files that the last rollback kept."""
    actions: tuple[str, ...] = ()
    """Possible actions."""
    owner: str | None = None
    """The other process that works on it, if any."""
    launch: Mapping[str, Any] = field(default_factory=dict)
    """Data that the submitter stored with the request: how to make its planner."""
