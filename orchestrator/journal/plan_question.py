"""The question of a run of approval: may this plan be carried out? Pure, from the run's own records.

The records have the whole plan, so any process that reads the journal can show it, and an answer names the digest of
exactly these bytes. Only a process with the project's folder carries the answer out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from orchestrator.machines.approval.model import ApprovalState, PlanStatus
from orchestrator.machines.llm_loop.model import Question

PLAN: Final = "plan"
"""Reason and tool of the question; also the name in `RunHead.waiting`."""


def plan_question(state: str, context: Mapping[str, Any]) -> Question | None:
    """Return the question about the plan that waits for approval, or None.

    Args:
        state: State of the run.
        context: Plain context of the run, at least `plan`, `plan_status`, `consent` and `expires_at`.
    """
    plan = context.get("plan")
    if state != ApprovalState.AWAITING_APPROVAL or not plan or context.get("consent"):
        return None
    if context.get("plan_status") != PlanStatus.PENDING:
        return None
    text = orjson.dumps(plan, option=orjson.OPT_SORT_KEYS)
    runs = any(step.get("kind") == "run" for step in plan.get("steps") or ())
    return Question(
        key=f"{plan.get('id', '')}.{plan.get('version', '')}",
        tool=PLAN,
        arguments=text.decode(),
        digest=hashlib.sha256(text).hexdigest(),
        why=PLAN,
        expires_at=float(context.get("expires_at") or 0.0),
        effect="irreversible" if runs else "compensable",  # a command cannot be undone, files can
    )
