"""`after_<event>`: memory of failed runs."""

from __future__ import annotations

from orchestrator_callbacks.llm_loop import memory
from orchestrator_callbacks.llm_loop.deps import LoopRun


async def after_failure(run: LoopRun) -> None:
    """Store a failure episode."""
    await memory.store_failure(run)


async def after_budget_exceeded(run: LoopRun) -> None:
    """Store a failure episode: a used-up budget is a failure too."""
    await memory.store_failure(run)
