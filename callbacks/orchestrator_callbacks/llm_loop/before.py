"""`before_<event>`: preparations that may still refuse the event."""

from __future__ import annotations

from orchestrator_callbacks.llm_loop import admission, enter, tool_work, turn_accounting
from orchestrator_callbacks.llm_loop.deps import LoopRun


async def before_response_with_tools(run: LoopRun) -> None:
    """Decide which calls may run, so that their announcement is durable before they start, except pure ones."""
    admission.admit(run)
    services = run.control.services
    if services is not None and services.overlaps and tool_work.may_overlap(run):
        run.overlap(enter.enter_process_tools)


async def before_restart_loop(run: LoopRun) -> None:
    """Restore the messages of the start of the run. Used budgets, including iterations, are not given back."""
    turn_accounting.keep_window(run)
    turn_accounting.start_over(run.ctx)
