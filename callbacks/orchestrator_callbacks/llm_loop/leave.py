"""`leave_<state>`: conditions of the transcript that hold for every event that leaves the state."""

from __future__ import annotations

from orchestrator_callbacks.llm_loop import admission, tool_work
from orchestrator_callbacks.llm_loop.deps import LoopRun


async def leave_process_tools(run: LoopRun) -> None:
    """Add one result for each call to the transcript; an unfinished call is answered as cancelled.

    Budgets are checked after this, so a turn that exceeds one is complete in the history, and a conversation that was
    interrupted here can be continued.
    """
    tool_work.close_ledger(run)
    admission.close_turn(run.ctx)
