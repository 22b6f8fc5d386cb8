"""The status of a project for a person: state, questions, errors, possible actions. Plain data."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import Corrupt, JournalError
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.kernel.mailbox import Signal
from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.approval.graph import is_approved
from orchestrator.machines.approval.model import ApprovalContext, ApprovalState
from orchestrator.machines.approval.plan import ApprovalPlan, PlanStep
from orchestrator.runtime.approval.project_journal import UNKNOWN, StepLog
from orchestrator_callbacks.approval.control_request import WISHES
from orchestrator_callbacks.approval.deps import ApprovalRun


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


WORKING = frozenset(
    (
        ApprovalState.EXTRACTING_INTENT,
        ApprovalState.PLANNING,
        ApprovalState.EXECUTING,
        ApprovalState.CANCELLING,
    )
)
"""States in which a process works on the project; without such a process there was a crash."""


def status_of(  # noqa: PLR0917 - the parts of a status
    run_id: str,
    state: ApprovalState,
    ctx: ApprovalContext,
    log: StepLog,
    owner: str | None = None,
    launch: Mapping[str, Any] | None = None,
    version: int | None = None,
    *,
    here: bool = False,
) -> Status:
    """Return the status of a request. `version` selects an earlier plan; `here`: this process holds the project."""
    plain, kept = ctx.plan, ctx.kept
    if version is not None:  # of the present plan, if it has several
        now, found = ctx.plan or {}, [one for one in ctx.versions if one["version"] == version]
        same = [one for one in found if one["id"] == now.get("id")]
        plain = next((one["plan"] for one in same or found), None)
    plan = None
    if plain is not None:
        with contextlib.suppress(ApprovalError):  # a resume reports a plan that cannot be read
            plan = ApprovalPlan.read(plain)
    if owner is not None:  # what a person can do, the most likely first
        actions = [*_EXPECTED_ACTIONS.get(state, ())]
    else:
        actions = [*_OWN[state](ctx, log)] if state in _OWN else []
    if ctx.plan is not None:
        actions += "show", "diff"
    return Status(
        state=state,
        run_id=run_id,
        request=ctx.request,
        intent=ctx.intent,
        question=IntentQuestion(ctx.question, kept, kept.get("confidence") if kept else None)
        if ctx.question
        else None,
        plan=plan,
        plan_status=ctx.plan_status,
        versions=tuple((str(one["id"]), int(one["version"])) for one in ctx.versions),
        approved_at=ctx.consent.at if ctx.consent else None,
        expires_at=ctx.expires_at or None,
        steps=tuple(StepState(step, status) for step, status in log.of(ctx.plan or {})),
        error=None if ctx.fault is None else {**ctx.fault, "shown": ctx.shown},
        recovery=None if ctx.recovery is None else RecoveryNote.read(ctx.recovery),
        crashed=owner is None and not here and state in WORKING,
        undone=tuple(ctx.undone),
        conflicts=tuple(ctx.conflicts),
        actions=tuple(actions),
        owner=owner,
        launch=launch or {},
    )


def _idle(ctx: ApprovalContext, _: StepLog) -> Iterator[str]:
    if ctx.kept is not None:
        yield "confirm"
    yield "submit"


def _awaiting(ctx: ApprovalContext, _: StepLog) -> Iterator[str]:
    yield "execute" if is_approved(ctx) else "approve"
    yield from ("changes", "reject", "cancel")


def _paused(ctx: ApprovalContext, log: StepLog) -> Iterator[str]:
    in_doubt = any(status == UNKNOWN for _, status in log.of(ctx.plan or {}))
    yield from ("resume --again" if in_doubt else "resume", "cancel")


def _failed(ctx: ApprovalContext, log: StepLog) -> Iterator[str]:
    if ctx.intent is not None:
        yield "retry"
    failed = [one["plan"] for one in ctx.versions if f"{one['id']}.{one['version']}/" not in ctx.completed]
    if any(map(log.has_changes, failed)):
        yield "rollback"
    yield "acknowledge"


_EXPECTED_ACTIONS = {
    ApprovalState.EXTRACTING_INTENT: ("cancel",),
    ApprovalState.PLANNING: ("cancel",),
    ApprovalState.EXECUTING: ("pause", "cancel"),
}
"""Control requests to another process that works on the project. A cancel cannot be stopped."""

_OWN = {
    ApprovalState.IDLE: _idle,
    ApprovalState.AWAITING_APPROVAL: _awaiting,
    ApprovalState.PAUSED: _paused,
    ApprovalState.FAILED: _failed,
}


POLL = 0.1
"""Seconds between two reads of posted messages."""

_MOST = 1_000
"""Maximum number of damaged messages that are skipped in the search for a readable one."""


class CommandLost(Corrupt):
    """A posted message is missing or was changed; its content is unknown."""


@contextlib.asynccontextmanager
async def listening(run: ApprovalRun, journal: Journal) -> AsyncIterator[None]:
    """Deliver messages of other processes to the run while the block is active."""
    task = asyncio.create_task(_listen(run, journal), name="approval inbox") if journal.shared else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))


async def lost(run: ApprovalRun, journal: Journal) -> CommandLost | None:
    """Return an error if one of the unread messages is missing; the run then continues after it.

    Raises Corrupt if no posted message can be read.
    """
    damage: CommandLost | None = None
    for number in range(run.control.inbox, run.control.inbox + _MOST):
        try:
            await journal.inbox(run.run_id, number)
        except Corrupt as error:
            damage = CommandLost(f"a posted command is missing: {error}")
        else:
            break
    else:
        raise damage or Corrupt(f"run {run.run_id!r}: the posted messages cannot be read")
    if damage is not None:
        run.acknowledge(number)
        run.note(
            "control", {"id": f"lost-{number}", "kind": "lost", "number": number, "refused": str(damage)}
        )
    return damage


async def deliver(run: ApprovalRun, journal: Journal) -> None:
    """Deliver messages posted since the last read to the run."""
    for posted in await journal.inbox(run.run_id, run.control.inbox):
        run.acknowledge(posted.number)
        if posted.kind in WISHES:
            run.mailbox.post(signal_of(posted))


def signal_of(posted: Posted) -> Signal:
    """Return a control request as the hooks read it."""
    why = str(posted.body.get("why") or "")
    payload = {"wish": posted.kind}
    return Signal(kind="decision", id=posted.id, by=posted.by, why=why, payload=payload, number=posted.number)


async def _listen(run: ApprovalRun, journal: Journal) -> None:
    while True:
        with contextlib.suppress(JournalError):  # the next append reports the error
            await deliver(run, journal)
        await asyncio.sleep(POLL)
