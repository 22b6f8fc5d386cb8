"""`before_<event>`: preparations that may still refuse the event."""

from __future__ import annotations

from orchestrator_callbacks.llm_loop import admission, turn_accounting
from orchestrator_callbacks.llm_loop.deps import LoopRun


async def before_response_with_tools(run: LoopRun) -> None:
    """Decide which calls may run, so that what is about to happen is durable before it does."""
    admission.admit(run)


async def before_restart_loop(run: LoopRun) -> None:
    """Go back to the messages the run started with. What was spent stays spent, iterations included (D19)."""
    turn_accounting.start_over(run.ctx)
