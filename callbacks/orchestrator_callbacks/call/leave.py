"""`leave_<state>`: a call that was stopped has a result, too."""

from __future__ import annotations

from orchestrator_callbacks.llm_loop import tool_work
from orchestrator_callbacks.llm_loop.deps import LoopRun


async def leave_call(run: LoopRun) -> None:
    """Record a result of a call that has none, because the run was stopped."""
    tool_work.close_ledger(run)
