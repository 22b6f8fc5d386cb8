"""Runs of the ralph loop as records, and their restoration in another process or after a crash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.run import Run
from orchestrator.machines.ralph.contract import OrchestratorOutput, OrchestratorStatus
from orchestrator.machines.ralph.model import RalphContext, RalphState
from orchestrator.runtime.service import program_recovery


def codec(launch: Mapping[str, Any] | None = None) -> ContextCodec[RalphContext]:
    """Return the codec of the loop."""
    about = {"launch": dict(launch)} if launch else {}
    return ContextCodec(RalphContext, windows=("agent_calls",), about=lambda _: about)


def summary(run: Run[RalphContext, Any]) -> dict[str, Any]:
    """Return the totals for `run.completed`, and the used share of each enabled limit."""
    ctx, limits = run.ctx, run.ctx.limits
    budgets = (
        ("iterations", ctx.iteration, limits.max_executions),
        ("qa_cycles", ctx.qa_cycle_count, limits.max_qa_cycles),
        ("replans", ctx.replans, limits.max_replans),
        ("tokens", ctx.usage.input_tokens + ctx.usage.output_tokens, limits.max_tokens),
        ("cost", ctx.usage.cost_for_limits, limits.max_cost_micros),
    )
    return {
        "qualified": ctx.qualified,
        "reworks": ctx.reworks,
        "qa_cycles": ctx.qa_cycle_count,
        "replans": ctx.replans,
        **({"blockers": len(ctx.blockers)} if ctx.blockers else {}),
        "budget_used": {name: round(used / limit, 4) for name, used, limit in budgets if limit},
    }


# ---- status ----

_NEXT: Mapping[RalphState, str] = {
    RalphState.INITIALIZING: "resolve the session",
    RalphState.PLANNING: "plan",
    RalphState.EXECUTING: "execute {task}",
    RalphState.REVIEWING: "review {task}",
    RalphState.COMPLETE: "check the work against the goal",
}


_LETS_GO_ON: Mapping[str, str] = {
    "questions": "answer its questions",
    "paused": "resume",
    program_recovery.REASON: "end its programs on other hosts, then resume with --again",
}
"""Reason of a parked run -> action of a person that continues it."""


def status(stored: StoredRun, ctx: RalphContext) -> OrchestratorOutput:
    """Return the status of a stored run."""
    state = RalphState(stored.state) if stored.state in set(RalphState) else RalphState.INITIALIZING
    ended, parked = stored.ended, stored.parked
    waits = parked is not None and parked.get("reason") in _LETS_GO_ON
    how = OrchestratorStatus.IN_PROGRESS
    if ended is not None:
        done = ended.get("outcome") == "completed"
        how = OrchestratorStatus.COMPLETED if done else OrchestratorStatus.BLOCKED
    elif waits:
        how = OrchestratorStatus.BLOCKED
    following = "" if ended is not None else _NEXT[state].format(task=ctx.current_task_id or "the next task")
    if waits and parked is not None:
        following = _LETS_GO_ON[parked["reason"]]
    failed = () if stored.failure is None else (str(stored.failure["message"]),)
    counted = f"{ctx.qualified} of {ctx.iteration} executions qualified, {ctx.reworks} reworked"
    return OrchestratorOutput(
        status=how,
        session_id=ctx.session_id,
        current_state=stored.state or RalphState.INITIALIZING.value,
        last_action=str(stored.step.get("event", "")),
        next_action=following,
        summary="; ".join((*ctx.blockers, *failed, ctx.summary or counted)),
    )
