"""The state of a project as data, for `--json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator.runtime.approval.status import IntentQuestion, RecoveryNote, Status


def status(found: Status, recovered: RecoveryNote | None) -> dict[str, Any]:
    """Return the whole state; `recovered` is the recovery of this start, `recovery` the latest one of the project."""
    return {
        "state": found.state.value,
        "run_id": found.run_id,
        "request": found.request,
        "intent": None if found.intent is None else dict(found.intent),
        "plan": None if found.plan is None else plan(found.plan),
        "plan_status": found.plan_status,
        "approved_at": found.approved_at,
        "expires_at": found.expires_at,
        "steps": [asdict(one) for one in found.steps],
        "question": None if found.question is None else _question(found.question),
        "error": None if found.error is None else dict(found.error),
        "recovered": None if recovered is None else recovered.plain(),
        "recovery": None if found.recovery is None else found.recovery.plain(),
        "crashed": found.crashed,
        "drift": [asdict(one) for one in found.drift],
        "undone": list(found.undone),
        "conflicts": [dict(one) for one in found.conflicts],
        "actions": list(found.actions),
        "held": found.owner,
    }


def plan(made: ApprovalPlan) -> dict[str, Any]:
    """Return a plan document with its digest."""
    return {**made.plain(), "digest": made.digest}


def _question(found: IntentQuestion) -> dict[str, Any]:
    intent = None if found.intent is None else dict(found.intent)
    return {"text": found.text, "intent": intent, "confidence": found.confidence}
