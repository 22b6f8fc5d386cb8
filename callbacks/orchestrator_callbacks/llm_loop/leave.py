"""`leave_<state>`: what must be true of the transcript whichever event leaves."""

from __future__ import annotations

from orchestrator_callbacks.llm_loop import admission, tool_work
from orchestrator_callbacks.llm_loop.deps import LoopRun


async def leave_process_tools(run: LoopRun) -> None:
    """Put one result for each call on the transcript; a call that did not finish is answered as cancelled.

    Budgets are checked after this, so a turn that trips one is whole in the history (D18), and a conversation
    that was interrupted here can be continued.
    """
    tool_work.close_ledger(run)
    admission.close_turn(run.ctx)
