"""The status of a project, from the process that holds it or from another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.approval.graph import is_approved
from orchestrator.machines.approval.model import ApprovalContext, ApprovalState
from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator.runtime.approval.status import IntentQuestion, RecoveryNote, Status, StepState
from orchestrator.runtime.approval.step_log import UNKNOWN, StepLog

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
    plain = ctx.plan if version is None else _version(ctx, version)
    kept = ctx.kept
    return Status(
        state=state,
        run_id=run_id,
        request=ctx.request,
        intent=ctx.intent,
        question=IntentQuestion(ctx.question, kept, kept.get("confidence") if kept else None)
        if ctx.question
        else None,
        plan=_readable(plain),
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
        actions=tuple(_actions(state, ctx, log, owner)),
        owner=owner,
        launch=launch or {},
    )


def _readable(plain: Mapping[str, Any] | None) -> ApprovalPlan | None:
    """Return a plan; None if there is none or it is unreadable, which a resume reports."""
    try:
        return None if plain is None else ApprovalPlan.read(plain)
    except ApprovalError:
        return None


def _version(ctx: ApprovalContext, version: int) -> Mapping[str, Any] | None:
    now = ctx.plan or {}
    found = [one for one in ctx.versions if one["version"] == version]
    same = [one for one in found if one["id"] == now.get("id")]
    chosen: Iterable[Mapping[str, Any]] = same or found
    return next((one["plan"] for one in chosen), None)


def _actions(state: ApprovalState, ctx: ApprovalContext, log: StepLog, owner: str | None) -> Iterator[str]:
    """Yield the possible actions of a person, the most likely first."""
    if owner is not None:
        yield from _EXPECTED_ACTIONS.get(state, ())
    else:
        yield from _OWN[state](ctx, log) if state in _OWN else ()
    if ctx.plan is not None:
        yield from ("show", "diff")


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
    if any(map(log.has_changes, _failed_plans(ctx))):
        yield "rollback"
    yield "acknowledge"


def _failed_plans(ctx: ApprovalContext) -> Iterator[Mapping[str, Any]]:
    for one in ctx.versions:
        if f"{one['id']}.{one['version']}/" not in ctx.completed:
            yield one["plan"]


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
