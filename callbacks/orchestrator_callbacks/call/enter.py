"""`enter_<state>`: the work of a call."""

from __future__ import annotations

from orchestrator.errors import RejectRequested, RunError
from orchestrator.machines.call.graph import CallEvent
from orchestrator.tools.result import RETURNED
from orchestrator_callbacks.llm_loop import tool_work
from orchestrator_callbacks.llm_loop.deps import LoopRun


async def enter_call(run: LoopRun) -> CallEvent:
    """Run the call as the loop runs its calls. A call without a result fails the run."""
    await tool_work.run_calls(run)
    result = run.ctx.results[0]
    if result.outcome in RETURNED:
        return CallEvent.RETURN
    answer = run.ctx.ledger.decided.get(f"{run.ctx.iteration}:0")
    if result.outcome == "denied" and answer is not None:
        raise RejectRequested(str(answer.get("by", "")), str(answer.get("why", "")))
    run.ctx.fault = "tool_error"
    raise RunError(f"tool {result.call.name} ended as {result.outcome}: {result.content}")
